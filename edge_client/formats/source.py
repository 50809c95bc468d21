"""A file of texts: its dialect (columns, delimiter, encoding), and how it is opened within bounds.

    dialect = Dialect(text_column="body", label_column="stars", delimiter=";", encoding="latin-1")
    read_folder(Path("mine"), task, dialect)

Only what is unambiguous is detected: names that differ just in case or outer spaces, a header that
has the wanted columns with one delimiter only, UTF-16 by its byte order mark. Each is reported in
one line.

`Reader`: how one file format is recognized and read.

One module per format defines a `Reader`; `registry` lists them and picks one. A reader knows
nothing of tasks: it yields every row of the file in order, as a `Row` with its contents or as a
`LeftOut` with the reason. Whether a value is text, and a label one of the task's, is decided once
for all formats, by `texts.examples`.

Law (accounting): each row of the file is yielded exactly once, in order.
"""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias

from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.formats.lines import BOUNDS, Lines, LongLine, ReadBounds, TooMuch, Whole
from smidgen.edge_client.tables import plain

Wants: TypeAlias = Literal["text", "label", "tags"]  # what is looked for in the rows of a file
NAMED = 12  # labels and columns that a message names
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
TYPED = {"tab": "\t", "\\t": "\t"}  # a tab is hard to type


@dataclass(frozen=True)
class Dialect:
    """What the user tells of a file; empty: found out, or as usual.

    Attributes:
        text_column: Column with the text, or two of a pair with a comma between; else `text`, or
            `text_a` and `text_b`. Beside a column of another name `text_b` is not a second text.
            Of CoNLL the column with the words, by its name or its number from 1.
        label_column: Column with the label; else `label`. Of CoNLL likewise that with the tags.
        delimiter: What stands between two columns of CSV or TSV.
        encoding: The file's encoding; else UTF-8, or UTF-16 where the file begins with its mark.
        option: What says `text_column`, for messages; empty of a command without such an option.

    Raises:
        WrongInput: No such encoding, or a delimiter that is none.
    """

    text_column: str = ""
    label_column: str = ""
    delimiter: str = ""
    encoding: str = ""
    option: str = "--text-column"

    def __post_init__(self) -> None:
        demand(
            not self.delimiter
            or (
                len(self.separator) == 1
                and self.separator not in '"\r\n'
                and self.separator.isascii()
            ),
            f"--delimiter {self.delimiter[:20]!r}: one character such as ; or tab is expected",
        )
        demand(
            not self.encoding or _is_encoding(self.encoding),
            f"--encoding {self.encoding[:40]!r} is not known as one of files; such as latin-1, "
            "cp1252 or utf-16 is expected",
        )

    @property
    def separator(self) -> str:
        """The delimiter as one character; empty if none is told."""
        return TYPED.get(self.delimiter, self.delimiter)

    def columns(self, names: Sequence[str]) -> "Columns":
        """Which of a file's columns hold what."""
        return _columns(self, tuple(names))

    def delimiter_of(self, header: str, usual: str, labelled: bool) -> str:
        """What stands between the columns of a file with this first line.

        The usual delimiter, unless the wanted columns are there by exactly one other and not by it.
        """
        if self.separator:
            return self.separator
        splits = (found for found in DELIMITERS if self._has_wanted(header, found, labelled))
        fitting = list(splits)
        return fitting[0] if len(fitting) == 1 and usual not in fitting else usual

    def _has_wanted(self, header: str, delimiter: str, labelled: bool) -> bool:
        columns = self.columns(names_of(header, delimiter))
        return columns.text is not None and (not labelled or columns.label is not None)

    def wanted(self, labelled: bool) -> str:
        names = [self.text_column or "text", *([self.label_column or "label"] if labelled else ())]
        return f"columns {','.join(names)} are expected"

    def no_header(self, found: int, labelled: bool, is_table: bool = True) -> str:
        """What is said of columns none of which is wanted; they may be a text: none is quoted."""
        options = f"{self.option} and --label-column" if labelled else self.option
        told = f"{self.wanted(labelled)}, {found} found"
        told = f"line 1 is not a header: {told}; put one there" if is_table else told
        if not self.option:
            return told
        return f"{told}{', or' if is_table else ';'} say by {options} how they are called"


@dataclass(frozen=True)
class Columns:
    """The names of a file's columns by what they hold; None: there is no such column."""

    text: str | None
    text_b: str | None
    label: str | None
    language: str | None
    id: str | None

    @property
    def is_any(self) -> bool:
        """Whether there is a text or a label: the names are names, then."""
        return self.text is not None or self.label is not None

    def renamed(self, dialect: Dialect, labelled: bool) -> list[str]:
        """Columns that are taken though they are not called exactly so."""
        text = self.text if dialect.text_column else None
        usual = {"text": self.text, "text_b": self.text_b, "label": self.label if labelled else ""}
        known = {"text", "text_a", "text_b", "label", dialect.label_column, text}
        known |= set(dialect.text_column.split(","))
        found = {used: name for used, name in usual.items() if name and name not in known}
        return [f"{name!r} as `{used}`" for used, name in found.items()]


@lru_cache(maxsize=16)  # rows of JSON have names of their own, mostly the same
def _columns(dialect: Dialect, names: tuple[str, ...]) -> Columns:
    text, second = find(names, dialect.text_column or "text"), None
    if text is None and not dialect.text_column:
        text = find(names, "text_a")
    if _plain(dialect.text_column) in ("", "text", "text_a"):
        second = find(names, "text_b")
    if text is None and "," in dialect.text_column:
        first, _, other = dialect.text_column.partition(",")
        text, second = find(names, first), find(names, other)
        text = text if second else None
    label = find(names, dialect.label_column or "label")
    return Columns(text, second, label, find(names, "language"), find(names, "id"))


def named(names: Sequence[str]) -> str:
    """Labels or columns in a message: printable, and not too many."""
    more = f" ... ({len(names)})" if len(names) > NAMED else ""
    return ", ".join(plain(name)[:60] for name in names[:NAMED]) + more


def find(names: Sequence[str], wanted: str) -> str | None:
    """A column of this name or, if it is the only one, of this name but for case and spaces."""
    if wanted in names:
        return wanted
    alike = [name for name in names if _plain(name) == _plain(wanted)]
    return alike[0] if len(alike) == 1 else None


def names_of(header: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:
        return []


def _plain(name: str) -> str:
    return name.strip().casefold()


def _is_encoding(name: str) -> bool:
    """Whether files can be read by it; some codecs know no lone surrogates for what is wrong."""
    try:
        "".encode(name)  # of bytes as other bytes, such as hex, this is refused
        codecs.getincrementaldecoder(name)("surrogateescape").decode(b"")
    except (LookupError, ValueError):
        return False
    return True


PLAIN = Dialect()


MARKS = {
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
MARK = "\ufeff"  # within a file too, where files with such a beginning were joined
NO_TEXT = re.compile("[\ud800-\udfff]")  # bytes that are not UTF-8, halves of pairs in JSON
NUL_FOUND = "a NUL byte; text is expected"
MOST_ARRAY = 64 << 20  # characters of a file that has to be held whole, such as one JSON array


class DataError(WrongInput):
    """A data folder or file that cannot be used; names file and line."""


@dataclass
class Source:
    """A file that is to be read, and how.

    Attributes:
        path: The file or folder.
        wants: What is looked for in its rows.
        dialect: How it is written down.
        labels: Labels that are known; they may tell which of two ways to read a row is right.
        bounds: What is read at most; None: all.
        notes: Gets what was found out without being told, in words that quote no text.
        stream: Its bytes, where they come from no file.
        is_several: Whether a text may have several labels, or none.
    """

    path: Path
    wants: Wants = "text"
    dialect: Dialect = PLAIN
    labels: tuple[str, ...] = ()
    bounds: ReadBounds | None = None
    notes: list[str] = field(default_factory=list)
    stream: BinaryIO | None = None
    is_several: bool = False
    _streamed: Lines | None = None

    def note(self, said: str) -> None:
        if said not in self.notes:
            self.notes.append(said)

    @contextmanager
    def lines(self, whole: Whole | None = None) -> Iterator[Lines]:
        """The lines of the file, bytes that are not of its encoding as lone surrogates.

        Args:
            whole: The folder that it is a part of, and what was read of that; None: it is alone.

        Raises:
            DataError: It cannot be read, or holds too much; also while its lines are read.
        """
        if self._streamed is not None:
            yield self._streamed
            return
        encoding, whole = self.dialect.encoding or "UTF-8", whole or Whole(self.path)
        try:
            with self._binary() as binary:
                encoding = encoding_of(binary, self.dialect, self.notes)
                text = _as_text(binary, encoding)
                lines = Lines(text, self.bounds, whole)
                if self.stream is not None:
                    self._streamed = lines
                yield lines
        except TooMuch as error:
            raise DataError(f"{whole.path} holds {error}, or split it among devices") from error
        except LongLine as error:
            raise DataError(f"{self.path}, line 1: {error}") from error
        except UnicodeError as error:  # UTF-16 without its mark is no UnicodeDecodeError
            reason = error.reason if isinstance(error, UnicodeDecodeError) else error
            raise DataError(
                f"{self.path} is not {encoding}: {reason}; give its own --encoding"
            ) from error
        except (OSError, EOFError, zlib.error) as error:
            what = f"{encoding} {ending_of(self.path)[1:]}".strip()
            raise DataError(f"{self.path} cannot be read as {what}: {error}") from error

    def _binary(self) -> "BinaryIO | gzip.GzipFile | nullcontext[BinaryIO]":
        if self.stream is not None:
            return nullcontext(self.stream)
        return gzip.GzipFile(self.path) if self.path.suffix == ".gz" else self.path.open("rb")

    def whole(self) -> str:
        """All characters of a file that cannot be read row by row.

        Raises:
            DataError: It cannot be read, or is larger than what is held at once.
        """
        with self.lines() as lines:
            text = lines.rest(MOST_ARRAY)
        if text is None:
            raise DataError(
                f"{self.path} is one document of more than {MOST_ARRAY:,} characters, which would "
                "have to be held whole; save it as JSON lines (.jsonl)"
            )
        return text

    def unread(self, text: str) -> str:
        """What was wrong with the bytes of a text; empty if nothing was."""
        if not NO_TEXT.search(text):
            return NUL_FOUND if "\0" in text else ""
        encoding = self.dialect.encoding or "UTF-8"
        if codecs.lookup(encoding).name != "utf-8":
            return f"not {encoding}; give its own --encoding"
        return "not UTF-8; save it as UTF-8, or give --encoding such as latin-1"


def head_of(path: Path, dialect: Dialect = PLAIN, characters: int = 1 << 16) -> str:
    """The first characters of a file; empty where it cannot be read as text."""
    try:
        with Source(path, dialect=dialect, bounds=BOUNDS).lines() as lines:
            return lines.start(characters)
    except (DataError, ValueError):
        return ""


def ending_of(path: Path) -> str:
    """A file's format, such as `.csv`, whether it is gzipped or not."""
    return Path(path.name.removesuffix(".gz")).suffix


def encoding_of(binary: object, dialect: Dialect, notes: list[str]) -> str:
    """The encoding that is told, or that the first two bytes tell, or UTF-8.

    A told encoding that does not know its own mark has it read over.
    """
    if not isinstance(binary, io.BufferedReader | gzip.GzipFile):
        return dialect.encoding or "UTF-8"
    start = binary.peek(4)[:4]
    if dialect.encoding:
        mark = MARKS.get(codecs.lookup(dialect.encoding).name)
        if mark and start.startswith(mark):
            binary.read(len(mark))
        return dialect.encoding
    if start[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "UTF-8"
    notes += [] if "UTF-16" in notes else ["UTF-16"]
    return "UTF-16"


def _as_text(binary: object, encoding: str) -> io.TextIOWrapper:
    """Bytes as text, whatever they are: those not UTF-8 become lone surrogates."""
    codec = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    return io.TextIOWrapper(binary, codec, errors="surrogateescape", newline="")  # type: ignore[arg-type]


Reason: TypeAlias = Literal[
    "unreadable",  # not of the format, or its bytes are not of the encoding
    "too long",
    "too short",  # nothing is left that could be asked for
    "columns",  # a column is missing, or there are more than the first line names
    "not text",  # a list, an object, a number, NaN, where text is expected
    "empty",  # a row without a text; no fault
    "rejected",  # an annotator rejected, ignored, skipped or cancelled it
    "unanswered",  # nobody has annotated it yet, or a conversation has no answer
    "ambiguous",  # two answers where one is expected, quotes that can be read in two ways
    "duplicate",  # the same text and answer as in a row before, by another annotator
    "label",  # none, or not one of the task's
    "tags",  # not of a scheme, or not one for each word
    "spans",  # not there, outside the text, or overlapping
    "header",  # the names of the columns once more
    "template",  # a conversation that the base's chat template does not take
]
GENERIC = 0.6  # readers that are surer of a file than that are named
SEVERAL = 'a task with `kind = "multilabel"` takes several'  # where one label is expected


@dataclass(frozen=True, slots=True)
class Row:
    """One row as its format holds it.

    Attributes:
        line: Where it ends, from 1; of a format without lines, its number.
        columns: Its columns by name; values as the format has them (strings, numbers, lists).
            Annotation formats call theirs `text`, `text_b`, `label`, `language`, `id`.
        words: Its words, where the file tells them apart.
        tags: A tag of each word; empty where they are not wanted.
        lines: Of each word, the line that it stands in; empty where words have none.
        spans: Labelled spans of `columns["text"]`, where the file has offsets in place of words:
            first character, the one behind the last, type.
        file: The file that it is in, where several are read as one.
    """

    line: int
    columns: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    spans: tuple[tuple[int, int, str], ...] | None = None
    file: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One row that gives no text.

    Attributes:
        line: See `Row`.
        reason: The kind of reason, which is counted.
        said: What was expected and what came; never quotes the text.
        file: See `Row`.
    """

    line: int
    reason: Reason
    said: str
    file: str = ""


Rows: TypeAlias = Iterator[Row | LeftOut]


@dataclass(frozen=True)
class Head:
    """The beginning of a file, by which its format is recognized.

    Attributes:
        ending: Of its name, lower case, without `.gz`, such as `.json`; empty of a folder.
        text: Its first characters, decoded; empty of folders and of what is not text.
        path: The file or folder; None of a stream.
        dialect: What the user says of how it is written down.
    """

    ending: str
    text: str
    path: Path | None = None
    dialect: Dialect = PLAIN


@dataclass(frozen=True)
class Usual:
    """See `Reader`: a format that any file of its endings may have."""

    name: str
    endings: tuple[str, ...]
    wants: frozenset[Wants]
    read: Callable[[Source], Rows]

    def sniff(self, head: Head) -> float:
        return 0.5

    def gives(self, head: Head) -> frozenset[Wants]:
        return self.wants


class Reader(Protocol):
    """A file format: what it is recognized by, and how its rows are read and written."""

    @property
    def name(self) -> str:
        """What messages call a file of it, such as "a Label Studio export"."""

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of names that it may have, such as `(".json",)`; `("",)`: a folder."""

    def sniff(self, head: Head) -> float:
        """How surely a file with one of its endings is of this format.

        0 is not, 1 is by marks that no other format has. A generic format (a table, JSON lines)
        gives 0.5 at most, so that what an annotation tool writes wins by its own marks.
        """

    def gives(self, head: Head) -> frozenset[Wants]:
        """What rows of such a file may hold: texts, labels of texts, tags of words."""

    def read(self, source: Source) -> Rows:
        """Every row of a file, in order.

        Raises:
            DataError: It cannot be read at all, or holds too much.
        """

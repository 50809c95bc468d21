"""Dialect of a file of texts: columns, delimiter and encoding, given or detected.

    dialect = Dialect(text_column="body", label_column="stars", delimiter=";", encoding="latin-1")
    read_folder(Path("mine"), task, dialect)

Only what is unambiguous is detected: names that differ just in case or outer spaces, a header that
has the wanted columns with one delimiter only, UTF-16 by its byte order mark. Each is reported in
one line.
"""

import codecs
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from smidgen.edge_client.errors import demand
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

    Raises:
        WrongInput: No such encoding, or a delimiter that is none.
    """

    text_column: str = ""
    label_column: str = ""
    delimiter: str = ""
    encoding: str = ""

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
        options = "--text-column and --label-column" if labelled else "--text-column"
        told = f"{self.wanted(labelled)}, {found} found"
        told = f"line 1 is not a header: {told}; put one there, or" if is_table else f"{told};"
        return f"{told} say by {options} how they are called"


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

"""Opens a file of texts within bounds: decompression, decoding, line counts."""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.formats.dialect import PLAIN, Dialect, Wants
from smidgen.edge_client.formats.lines import BOUNDS, Lines, LongLine, ReadBounds, TooMuch, Whole

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

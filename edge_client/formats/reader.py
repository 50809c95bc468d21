"""A format of files of texts: how one is recognized, read and, where that makes sense, written.

One module per format defines one `Reader`; `registry.READERS` lists them. A reader knows nothing of
tasks: it yields every row of the file in its order, as a `Row` with what the file says or as a
`LeftOut` with the reason. Whether a label is one of the task's, or a value is text at all, is
decided once for all formats, by `texts.examples`.

Law (accounting): the rows of a file are the `Row`s and `LeftOut`s that its reader yields, one each,
in the file's order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

Reason: TypeAlias = Literal[
    "unreadable",  # not of the format, or its bytes are not of the encoding
    "too long",
    "not text",  # a list, an object, a number, NaN, where text is expected
    "empty",  # a row without a text; no fault
    "rejected",  # an annotator rejected, ignored, skipped or cancelled it
    "unanswered",  # a row that nobody has annotated yet, in a file of labelled texts
    "duplicate",  # a row before it has the same text and answer
    "ambiguous",  # two answers where one is expected, quotes or columns that can be read two ways
    "unknown label",
    "tags",  # tags that are not of a scheme, or do not fit the words
]


@dataclass(frozen=True, slots=True)
class Row:
    """One row as its format holds it.

    Attributes:
        line: Where it ends, from 1; of a format without lines, its number.
        columns: Its columns by name; values as the format has them (`str`, numbers, lists ...).
            Annotation formats name theirs `text`, `text_b`, `label`, `language`, `id`.
        words: Its words, where the file tells them apart.
        tags: A BIO tag of each word; empty where there are none.
        spans: Labelled spans of `columns["text"]` where the file has offsets in place of words:
            first character, the one behind the last, type. `spans.tagged` makes words and tags.
    """

    line: int
    columns: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    spans: tuple[tuple[int, int, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One row that gives no text.

    Attributes:
        line: See `Row`.
        reason: The kind of reason, which is counted.
        said: What was expected and what came; never quotes the text.
    """

    line: int
    reason: Reason
    said: str


@dataclass(frozen=True)
class Head:
    """The beginning of a file, by which its format is recognized.

    Attributes:
        ending: Of its name, lower case, without `.gz`, such as `.json`; empty of a stream.
        text: Its first characters, decoded (at most `HEAD_CHARACTERS`); empty of binary files.
        start: Its first bytes, unpacked.
        path: The file or folder; None of a stream.
    """

    ending: str
    text: str
    start: bytes = b""
    path: Path | None = None


HEAD_CHARACTERS = 1 << 16


class Reader(Protocol):
    """A format.

    Attributes:
        name: What messages call it, such as "a Label Studio export (JSON)".
        endings: Endings of names that it may have, such as `(".json",)`; `("",)`: a folder.
    """

    name: str
    endings: tuple[str, ...]

    def sniff(self, head: Head) -> float:
        """How surely a file is of this format: 0 (not) to 1 (nothing else looks so).

        A generic format (a table, JSON lines) answers 0.5 at most, so that what an annotation tool
        writes wins by its own marks.
        """

    def read(self, source: "Source") -> Iterator[Row | LeftOut]:
        """Every row of a file, in order.

        Raises:
            DataError: It cannot be read at all, or holds too much.
        """


@dataclass(frozen=True)
class Source:
    """What a reader reads: owned by `texts`; see the fields for what is decided already.

    To be completed by the work on tables: an opened file (or stream) of bounded `Lines`, the
    `Dialect`, whether labels are wanted, the bounds, and `notes` that the reader may add to (what
    was found out without being told, said once in one line).
    """

    path: Path
    notes: list[str]

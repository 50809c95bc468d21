"""`Reader`: how one file format is recognized and read.

One module per format defines a `Reader`; `registry` lists them and picks one. A reader knows
nothing of tasks: it yields every row of the file in order, as a `Row` with its contents or as a
`LeftOut` with the reason. Whether a value is text, and a label one of the task's, is decided once
for all formats, by `texts.examples`.

Law (accounting): each row of the file is yielded exactly once, in order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from smidgen.edge_client.formats.dialect import PLAIN, Dialect, Wants
from smidgen.edge_client.formats.opened import Source

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

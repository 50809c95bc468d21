"""Examples of a task from a device's files: `labelled.*`, `unlabelled.*`, `test.*` in one folder.

`smidgen.edge_client.formats` reads the rows of files, in whatever format; here they become texts
with labels, or words with tags. Columns: `text` (or `text_a`, `text_b`), `label`, optional
`language` and `id`; see `formats.source` for others. Texts never leave this process, and no
message quotes one.

A bad row is left out and logged with its place and reason. A file that is useless as a whole is an
error; one without any row counts as missing.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from smidgen.edge_client.formats.annotation.answers import Unaligned, tagged
from smidgen.edge_client.formats.json_rows import MESSAGES
from smidgen.edge_client.formats.lines import BOUNDS, ReadBounds
from smidgen.edge_client.formats.paragraphs import LINES
from smidgen.edge_client.formats.registry import read, read_stream
from smidgen.edge_client.formats.source import (
    PLAIN,
    DataError,
    Dialect,
    LeftOut,
    Reason,
    Row,
    Rows,
    Source,
    Wants,
    ending_of,
    find,
    named,
)
from smidgen.edge_client.formats.tags import OUTSIDE, Scheme, is_iob1
from smidgen.edge_client.formats.tags import TagFault as TagFault
from smidgen.edge_client.texts.accounting import (
    NUMBERS,
    Accounting,
    Fault,
    fault_of,
    is_other_count,
    missing_column,
    odd_value,
    tell,
    useless,
    value_of,
)
from smidgen.edge_client.texts.parts import (
    ANY,
    PARTS,
    Files,
    Wanted,
    expected,
    files_of,
    without_texts,
)

LOOKED_AT = 500  # texts whose tags say how the tags of a file are meant
COMPARED = 200_000  # texts of a file that are compared, to see whether one has two labels
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """One text of the device.

    Attributes:
        text: The text, or the first of a pair.
        text_b: The second of a pair, or empty.
        label: Its label, or None where there is none.
        language: The language that the file names, or empty.
        words: Its words, where the file tells them apart, as for tagging; the text is these with
            spaces between them. Empty: they are found in the text.
        tags: A tag of each word; empty where there are none.
        line: Where in its file it ends, from 1; 0 where nobody said. Two texts that differ in it
            alone are equal.
        file: The name of its file, for messages on this device; not compared either.
    """

    text: str
    text_b: str = ""
    label: str | None = None
    language: str = ""
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)
    file: str = field(default="", compare=False)


def joined(example: Example) -> str:
    """A text, or both of a pair, one behind the other."""
    return f"{example.text} {example.text_b}" if example.text_b else example.text


@dataclass(frozen=True)
class Found:
    """One row of a file.

    Attributes:
        line: Where it ends, from 1.
        row: All its columns.
        example: Its text; None without one.
        fault: Why it cannot be used; empty if it can, or holds no text.
        id: What its `id` column says, or empty.
        file: The file that it is in, where several are read as one; else empty.
        reason: The kind of reason for which it is left out; that of one without a text is `empty`.
    """

    line: int
    row: Mapping[str, Any]
    example: Example | None = None
    fault: str = ""
    id: str = ""
    file: str = ""
    reason: Reason = "empty"


@dataclass(frozen=True)
class ClientData:
    """What a device holds.

    Attributes:
        labelled: Texts to train on.
        unlabelled: Texts without label.
        test: Texts kept for evaluation, labelled.
        rows: What became of the rows of each file, by the part that it holds.
    """

    labelled: tuple[Example, ...]
    unlabelled: tuple[Example, ...]
    test: tuple[Example, ...]
    rows: Mapping[str, Accounting] = field(default_factory=dict, compare=False)


def read_folder(folder: Path, wanted: Wanted, dialect: Dialect = PLAIN) -> ClientData:
    """Read a client data folder (or one labelled file in its place); an empty part is absent.

    Args:
        folder: The folder.
        wanted: The task, or what of it says how its texts are read.
        dialect: How the files are written down.

    Raises:
        DataError: Nothing there, a column is missing, or a file has rows and no text that can be
            used.
    """
    rows = dict[str, Accounting]()
    return replace(client_data(read_parts(folder, wanted, dialect, rows), wanted.files), rows=rows)


def read_parts(
    folder: Path,
    wanted: Wanted,
    dialect: Dialect = PLAIN,
    rows: dict[str, Accounting] | None = None,
) -> dict[str, tuple[Example, ...]]:
    """The texts of a folder by the part that they are; see `read_folder`.

    Args:
        folder: The folder.
        wanted, dialect: As `read_folder` takes them.
        rows: Gets what became of the rows of each file, by its part; None: nobody asks.
    """
    paths = files_of(folder, wanted.files)
    counted = {} if rows is None else rows
    counted |= {part: Accounting() for part in paths}
    found = {
        part: tuple(_read_part(path, wanted, part != "unlabelled", dialect, counted[part]))
        for part, path in paths.items()
    }
    if not any(found.values()):
        raise without_texts(paths, wanted.files, dialect)
    return found


def client_data(parts: Mapping[str, tuple[Example, ...]], files: Files) -> ClientData:
    """Texts by what they are for; masked words are asked for in texts with labels or without."""
    labelled, unlabelled, test = (parts.get(part, ()) for part in PARTS)
    if files.wants == "text":
        return ClientData(labelled + unlabelled, (), test)
    return ClientData(labelled, unlabelled, test)


def read_file(
    path: Path, wanted: Wanted, *, labelled: bool, dialect: Dialect = PLAIN
) -> list[Example]:
    """Read one file of texts; lines that cannot be used are left out and told in the log.

    Args:
        path: The file; its ending says the format.
        wanted: The task, or what of it says how its texts are read; `ANY` allows any label.
        labelled: Whether labels, or tags, must be there; of `mlm` they are not read.
        dialect: How the file is written down.

    Raises:
        DataError: No such format or column, or no line can be used; names the file, and the first
            bad line.
    """
    examples = _read_part(path, wanted, labelled, dialect, Accounting())
    if not examples:
        is_told = labelled or wanted.files.wants != "label"  # lines have no columns
        said = f"; {expected(wanted.files, labelled, dialect)}" if is_told else ""
        raise DataError(f"{path} holds no texts{said}")
    return examples


def _read_part(
    path: Path, wanted: Wanted, labelled: bool, dialect: Dialect, accounting: Accounting
) -> list[Example]:
    """As `read_file`, but a file without rows is one without texts."""
    found = read_texts(path, wanted, labelled, accounting, dialect)
    examples = [example for _, example, _ in found]
    if not examples and accounting.left_out:
        raise useless(path, accounting)
    tell(path, accounting)
    return examples


def read_texts(
    path: Path,
    wanted: Wanted,
    labelled: bool,
    accounting: Accounting,
    dialect: Dialect = PLAIN,
) -> Iterator[tuple[int, Example, Mapping[str, Any]]]:
    """The texts of a file one by one, each with its line and all its columns; see `read_file`.

    Args:
        path: The file, or a folder that is read as one.
        wanted: The task, or what of it says how its texts are read; `ANY` allows any label.
        labelled: Whether labels, or tags, must be there.
        accounting: Gets what became of each row.
        dialect: How the file is written down.

    Raises:
        DataError: No such format or column, the file cannot be read at all, or it holds more than
            `lines.BOUNDS`.
    """
    for found in every_row(path, wanted, labelled, accounting.notes, dialect, BOUNDS):
        if found.example is not None:
            accounting.read += 1
            yield found.line, found.example, found.row
        else:
            leave_out(accounting, found)


def leave_out(accounting: Accounting, found: Found) -> None:
    """Count a row that gives no text."""
    where = f"{found.file}, " if found.file else ""
    accounting.leave_out(found.reason, f"{where}line {found.line}: {found.fault}")


def every_row(
    path: Path,
    wanted: Wanted,
    labelled: bool,
    notes: list[str],
    dialect: Dialect = PLAIN,
    bounds: ReadBounds | None = None,
) -> Iterator[Found]:
    """Every row of a file in its order, good or not; see `read_texts`.

    Args:
        path: The file.
        wanted, labelled: As `read_texts` takes them.
        notes: Gets what was found out without being told.
        dialect: How the file is written down.
        bounds: What is read at most; None: however much there is.
    """
    wants: Wants = wanted.files.wants if labelled else "text"
    if not dialect.text_column:
        dialect = replace(dialect, text_column=wanted.files.columns)
    is_several, labels = wanted.files.is_several, tuple(wanted.labels)
    source = Source(path, wants, dialect, () if is_several else labels, bounds, notes)
    source.is_several = is_several
    return found_in(read(source), source, _table(path), wanted)


def streamed(source: Source, wanted: Wanted = ANY) -> Iterator[Found]:
    return found_in(read_stream(source), source, "", wanted)


def _table(path: Path) -> str:
    """The file, if all its rows have the same columns; else empty."""
    return str(path) if ending_of(path).lower() not in (".jsonl", ".ndjson", ".json", LINES) else ""


def found_in(rows: Rows, source: Source, table: str, wanted: Wanted = ANY) -> Iterator[Found]:
    """What rows hold.

    Args:
        rows: As their format has them.
        source: Where they are from, and what is looked for.
        table: The file, if all its rows have the same columns; empty: each has its own.
        wanted: See `read_texts`.

    Raises:
        DataError: A table lacks a column, or class numbers begin elsewhere than the labels.
    """
    interpreter, turns = _Texts(source, table, wanted), wanted.files.turns
    if source.wants == "tags":
        rows = interpreter.looking_ahead(rows)
    for row in rows:
        if isinstance(row, LeftOut):
            yield Found(row.line, {}, fault=row.said, file=row.file, reason=row.reason)
        elif source.wants == "tags" or (row.words and source.wants == "text" and not turns):
            yield interpreter.of_words(row)
        else:
            yield interpreter.of_columns(row)
    interpreter.close()


class _Texts:
    """Makes texts of the rows of one file; see `found_in`."""

    def __init__(self, source: Source, table: str, wanted: Wanted) -> None:
        self._source, self._table = source, table
        self._files, self._known = wanted.files, tuple(wanted.labels)
        self._names: tuple[str, ...] = ()
        self._columns = source.dialect.columns(())
        self._scheme = Scheme(source.labels, notes=source.notes)
        self._labels: dict[int, str] = {}  # of texts, by their hashes
        self._doubled = 0

    def looking_ahead(self, rows: Rows) -> Rows:
        """The same rows; those from the first entity on tell which scheme its tags are of."""
        for row in rows:
            if isinstance(row, Row) and any(tag != OUTSIDE for tag in row.tags):
                first = [row, *islice(rows, LOOKED_AT - 1)]
                is_first = is_iob1(one.tags for one in first if isinstance(one, Row))
                self._scheme = Scheme(self._source.labels, is_first, self._source.notes)
                yield from first
                break
            yield row
        yield from rows

    def of_columns(self, row: Row) -> Found:
        """A text, its label where one is wanted."""
        labelled = self._source.wants == "label"
        if tuple(row.columns) != self._names:
            self._names = tuple(row.columns)
            self._columns = self._source.dialect.columns(self._names)
            for note in self._columns.renamed(self._source.dialect, labelled):
                self._source.note(note)
        columns, dialect = self._columns, self._source.dialect
        needs_label = labelled and not self._files.has_gold(self._names, self._known)
        missing = missing_column(self._names, columns, dialect, needs_label, bool(self._table))
        if self._files.turns is not None and missing:
            missing = "" if MESSAGES in self._names else self._no_turns()
        if missing and self._table:
            raise DataError(f"{self._table}: {missing}")
        if missing:
            return Found(row.line, row.columns, fault=missing, reason="columns", file=row.file)
        example = fault_of(row.columns, columns) or self._example(row, labelled)
        if isinstance(example, Fault):
            return self._faulty(row, row.line, example.reason, example.said)
        return Found(
            row.line, row.columns, example, id=value_of(row.columns, columns.id), file=row.file
        )

    def _no_turns(self) -> str:
        """What is said of a row without a conversation; see `missing_column`."""
        dialect = self._source.dialect
        usual = (*dialect.text_column.split(","), "text", "label")
        known = [name for name in self._names if name in usual]
        others = f"{len(self._names) - len(known)} of other names"
        return (
            f"{expected(self._files, True, dialect)}; found "
            f"{' and '.join([*([named(known)] if known else []), others])}; "
            "say by --text-column how yours are called, such as question,answer"
        )

    def _refuse_other_count(self, row: Row) -> None:
        label, labels = value_of(row.columns, self._columns.label), self._source.labels
        if self._source.wants == "label" and is_other_count(label, labels):
            known = ", ".join(labels[:12])
            raise DataError(
                f"{self._source.path}, line {row.line}: a class number that is not one of {known}, "
                f"beside others that may be meant otherwise; {NUMBERS}"
            )

    def _example(self, row: Row, labelled: bool) -> Example | Fault | None:
        """A row's text; None if it holds none."""
        columns, label = self._columns, None
        text, second = value_of(row.columns, columns.text), value_of(row.columns, columns.text_b)
        if self._files.turns is not None:
            said = self._files.turns(row.columns, columns)
            if not isinstance(said, str):
                return said
            text, second = said, ""
        if not text.strip():
            return None
        if labelled:
            gold = self._files.gold(row.columns, columns, self._known)
            if isinstance(gold, Fault):
                self._refuse_other_count(row)
                return gold
            label = sys.intern(gold)
        if self._files.marked is not None:
            marked = self._files.marked(text, row.columns)
            if isinstance(marked, Fault):
                return marked
            text = marked
        language = sys.intern(value_of(row.columns, columns.language))  # held once, not per text
        if label is not None:
            self._compare(hash((text, second)), label)
        return Example(text, second, label, language, line=row.line, file=self._file(row))

    def _compare(self, text: int, label: str) -> None:
        if len(self._labels) < COMPARED:
            self._doubled += self._labels.setdefault(text, label) != label

    def of_words(self, row: Row) -> Found:
        """A text whose words are known, with their tags where these are wanted."""
        words, tags, wants_tags = row.words, row.tags, self._source.wants == "tags"
        id_column = find(list(row.columns), "id")
        if odd := odd_value(row.columns, "language") or odd_value(row.columns, id_column):
            return self._faulty(row, row.line, odd.reason, odd.said)
        text = value_of(row.columns, "text")
        if row.spans is not None and wants_tags:
            try:
                words, tags = tagged(text, row.spans)
            except Unaligned as error:
                return self._faulty(row, row.line, "ambiguous", str(error))
        elif wants_tags and not words and text.strip():
            return self._faulty(row, row.line, "unanswered", "no spans or tags of its words")
        if wants_tags:
            made = self._scheme.bio(tags)
            if isinstance(made, TagFault):
                line = row.lines[made.place] if row.lines else row.line
                where = "" if row.lines else f"token {made.place + 1}: "
                return self._faulty(row, line, "tags", where + made.said)
            tags = made
        if not words:
            return Found(row.line, row.columns, file=row.file)
        example = Example(
            text if row.spans is not None else " ".join(words),
            language=sys.intern(value_of(row.columns, "language")),
            words=tuple(map(sys.intern, words)),
            tags=tuple(map(sys.intern, tags)) if wants_tags else (),
            line=row.line,
            file=self._file(row),
        )
        id_ = value_of(row.columns, id_column)
        return Found(row.line, row.columns, example, id=id_, file=row.file)

    def _faulty(self, row: Row, line: int, reason: Reason, said: str) -> Found:
        return Found(line, row.columns, fault=said, reason=reason, file=row.file)

    def _file(self, row: Row) -> str:
        return row.file or self._source.path.name

    def close(self) -> None:
        """Note what only all rows together tell."""
        if self._doubled:
            some = f" of its first {COMPARED:,}" if len(self._labels) == COMPARED else ""
            texts = "text" if self._doubled == 1 else "texts"
            self._source.note(f"{self._doubled} {texts}{some} that had another label before")

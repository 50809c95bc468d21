r"""Tables: CSV and TSV, a row a line, or several where a quoted cell holds line ends.

Quotes follow RFC 4180: a cell that begins with one ends at the next quote that is not doubled,
which a delimiter or the line's end must follow. Many files that people exchange were written
without regard to that, with quotes that are characters of a text, so the rules are applied with
care:

- In TSV a quote that does not enclose a whole cell is a character. A quoted cell over several lines
  is one, as spreadsheets write it, if all of these together have the header's number of tabs, or if
  it holds tabs and at most the first or the last of its lines can be a row by itself: by its tabs
  and, where the task's labels are known, by its label. If all of them can be, each line is a row;
  if some can, all of them are left out.
- In CSV a row with a quote that never closes, or that text follows, is left out, and reading goes
  on with the next line, so that at most this row is lost.
- A quoted CSV cell over lines each of which has the header's number of delimiters can be read in
  two ways. If the task's labels are known and stand where the label would be in each line, these
  are rows, of which the first is left out; if they do not, it is one row. Where nothing tells, all
  of its lines are left out.

Law: each line of a file is of exactly one row, but for empty lines and the header; rows end in
ascending lines.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edge_client.formats.dialect import DELIMITERS, Dialect, Wants, named, names_of
from edge_client.formats.lines import LONGEST_LINE, Lines, LongLine
from edge_client.formats.opened import MARK, DataError, Source
from edge_client.formats.reader import Head, LeftOut, Row, Rows

csv.field_size_limit(LONGEST_LINE)
KEPT = 1000  # lines behind that are let go of together
USUAL = {".csv": ",", ".tsv": "\t"}
SEPARATOR = "sep="  # a first line by which Excel is told the delimiter
UNCLOSED = "a quote that is not closed, or that text follows; double quotes within a quoted text"
TWO_WAYS = (
    "quoted text over lines that are each a row of their own; double the quotes that are "
    "characters, or put the text in one line"
)


@dataclass(frozen=True)
class Table:
    """CSV and TSV."""

    name: str = "a table"
    endings: tuple[str, ...] = (".csv", ".tsv")

    def sniff(self, head: Head) -> float:
        return 0.5

    def gives(self, head: Head) -> frozenset[Wants]:
        return frozenset(("text", "label"))

    def read(self, source: Source) -> Rows:
        with source.lines() as lines:
            yield from _Rows(source, lines).all()


TABLE = Table()


class Piece(NamedTuple):
    """A line that is not parsed yet, its number, and why it cannot be."""

    number: int
    text: str
    fault: str = ""


class _Rows:
    """The rows of one table; see the module."""

    def __init__(self, source: Source, lines: Lines) -> None:
        self._source, self._lines = source, lines
        self._ahead, self._next = list[Piece](), 0  # lines looked at, and the first not taken yet
        self._last = 0  # the line that the last row ends in
        self._delimiter, self._names = "", list[str]()

    def all(self) -> Rows:
        is_any = False
        if not self._read_header():
            return
        for row in self._body():
            is_any = True
            yield row
        columns = self._source.dialect.columns(self._names)
        wants_label = self._source.wants == "label"
        if not is_any and self._names and not columns.is_any:
            said = self._source.dialect.no_header(len(self._names), wants_label)
            yield LeftOut(1, "columns", said)

    def _read_header(self) -> bool:
        source, wants_label = self._source, self._source.wants == "label"
        usual = USUAL.get(_ending(source), ",")
        while self._peek() is not None and self._is_empty():
            self._pop()
        first = self._peek() and self._pop()
        if first is not None and first.text.lower().startswith(SEPARATOR):
            told = first.text.rstrip("\r\n")[len(SEPARATOR) :]
            if len(told) == 1:
                usual, first = told, self._peek() and self._pop()
                source.note(f"{_sign(told)} between columns, as its line sep= says")
                self._delimiter = source.dialect.separator or told
        if first is None:
            return False
        if first.fault:
            raise LongLine(f"longer than {LONGEST_LINE:,} characters, and it names the columns")
        if not self._delimiter:
            self._delimiter = source.dialect.delimiter_of(first.text, usual, wants_label)
            if self._delimiter not in (usual, source.dialect.separator):
                source.note(f"{_sign(self._delimiter)} between columns")
        self._next -= 1
        header = self._next_cells(width=0)
        self._names = header if isinstance(header, list) else names_of(first.text, self._delimiter)
        _refuse_twice(source, self._names)
        return True

    def _body(self) -> Rows:
        names, source = self._names, self._source
        while self._peek() is not None:
            if self._is_empty():
                self._pop()
                continue
            cells = self._next_cells(len(names))
            if isinstance(cells, LeftOut):
                yield cells
                continue
            line, more = self._last, cells[len(names) :]
            if cells == names:
                yield LeftOut(line, "header", "the names of the columns once more")
            elif any(more):
                yield LeftOut(line, "columns", _surplus(len(more), self._delimiter))
            else:
                padded = [*cells, *[""] * (len(names) - len(cells))]
                if len(cells) < len(names):
                    self._short(len(cells))
                row = dict(zip(names, padded, strict=False))
                fault = source.unread("".join(cells))
                yield LeftOut(line, "unreadable", fault) if fault else Row(line, row)

    def _short(self, count: int) -> None:
        """Cells that a row lacks are empty: without a text or a label it is left out, else said."""
        if self._source.dialect.columns(self._names).text_b in self._names[count:]:
            self._source.note("rows of fewer columns than the first line names")

    def _next_cells(self, width: int) -> list[str] | LeftOut:
        """The cells of the next row; `_last` is then the line that it ends in."""
        piece = self._pop()
        self._last = piece.number
        if piece.fault:
            return LeftOut(piece.number, "too long", piece.fault)
        text = piece.text.rstrip("\r\n")
        if text.startswith(MARK) and piece.number > 1:
            self._source.note("a byte-order mark inside the file, as joined files have it")
            if cells_of(text[len(MARK) :], self._delimiter) == self._names:
                return self._names  # which begin the second of two files
        if self._delimiter == "\t":
            return self._tabbed(text, piece, width)
        cells = cells_of(text, self._delimiter)
        if cells is not None:
            return cells
        return self._quoted(text, piece, width)

    def _tabbed(self, text: str, piece: Piece, width: int) -> list[str] | LeftOut:
        plain = text.split("\t")
        if len(plain) > width > 0 and (cells := cells_of(text, "\t")) and len(cells) == width:
            return cells
        is_open = any(cell.startswith('"') and not _is_enclosed(cell) for cell in plain[-1:])
        if is_open and len(plain) <= max(width, 1):
            found = self._joined(piece, most=max(width, 1) - 1)
            if found and len(found.cells) == max(width, 1):
                return self._take(found)
        if width > 1 and '"' in text and _is_open(text, "\t"):
            found = self._joined(piece)
            if found and len(found.cells) == width:
                are_rows = self._which_are_rows(found, width)
                if not any(are_rows[1:]) or not any(are_rows[:-1]):
                    return self._take(found)
                if not all(are_rows):
                    self._take(found)
                    return LeftOut(self._last, "ambiguous", f"lines {piece.number} on: {TWO_WAYS}")
        return [_unquoted(cell) for cell in plain]

    def _quoted(self, text: str, piece: Piece, width: int) -> list[str] | LeftOut:
        found = self._joined(piece) if _is_open(text, self._delimiter) else None
        if found is None:
            return LeftOut(piece.number, "unreadable", UNCLOSED)
        if width < 2 or not self._is_rows(found, width):
            return self._take(found)
        are_labels = self._labels_fit(found)
        if are_labels is None:
            self._take(found)
            return LeftOut(self._last, "ambiguous", f"lines {piece.number} on: {TWO_WAYS}")
        if are_labels:
            return LeftOut(piece.number, "unreadable", UNCLOSED)
        return self._take(found)

    def _is_rows(self, found: "Joined", width: int) -> bool:
        """Whether each of its lines has the header's number of delimiters."""
        return all(_count(line, self._delimiter) == width - 1 for line in found.lines)

    def _which_are_rows(self, found: "Joined", width: int) -> list[bool]:
        """Which lines may be rows of TSV by themselves: by their tabs, and a label if any known."""
        label, labels = self._source.dialect.columns(self._names).label, self._source.labels
        place = self._names.index(label) if label is not None and labels else None
        rows = (line.split("\t") for line in found.lines)
        return [
            len(row) == width and (place is None or _unquoted(row[place]) in labels) for row in rows
        ]

    def _labels_fit(self, found: "Joined") -> bool | None:
        """Whether each line, read alone, has one of the task's labels; None: nothing tells."""
        column = self._source.dialect.columns(self._names).label
        if column is None or not self._source.labels:
            return None
        place, labels = self._names.index(column), self._source.labels
        alone = (
            cells_of(line, self._delimiter) or line.split(self._delimiter) for line in found.lines
        )
        if all(cells[place].strip('"') in labels for cells in alone):
            return True
        return False if len(found.cells) > place and found.cells[place] in labels else None

    def _joined(self, piece: Piece, most: int | None = None) -> "Joined | None":
        """The lines of a quoted cell that the first of them leaves open; None: it never closes.

        Args:
            piece: The first.
            most: Delimiters that all of them have together, at most; None: any number.
        """
        taken = [piece.text]
        try:
            cells = next(
                csv.reader(self._further(taken, most), delimiter=self._delimiter, strict=True)
            )
        except csv.Error:
            return None
        return Joined([line.rstrip("\r\n") for line in taken], cells)

    def _further(self, taken: list[str], most: int | None) -> Iterator[str]:
        """A line, then those behind it as far as they may be of its row; `taken` gets them."""
        yield taken[0]
        size, delimiters = len(taken[0]), taken[0].count(self._delimiter)
        while size <= LONGEST_LINE and (further := self._peek(len(taken) - 1)) is not None:
            size, delimiters = (
                size + len(further.text),
                delimiters + further.text.count(self._delimiter),
            )
            if further.fault or (most is not None and delimiters > most):
                return
            taken.append(further.text)
            yield further.text

    def _take(self, found: "Joined") -> list[str]:
        for _ in found.lines[1:]:
            self._last = self._pop().number
        return found.cells

    def _is_empty(self) -> bool:
        piece = self._peek()
        return piece is not None and not piece.fault and not piece.text.strip("\r\n")

    def _peek(self, number: int = 0) -> Piece | None:
        while len(self._ahead) <= self._next + number:
            piece = next(self._pieces(), None)
            if piece is None:
                return None
            self._ahead.append(piece)
        return self._ahead[self._next + number]

    def _pop(self) -> Piece:
        piece = self._peek()
        assert piece is not None, "peeked at before"
        self._next += 1
        if self._next == KEPT:
            del self._ahead[: self._next]
            self._next = 0
        return piece

    def _pieces(self) -> Iterator[Piece]:
        while True:
            self._lines.begin_row()
            try:
                line = next(self._lines, None)
            except LongLine as error:
                yield Piece(self._lines.number, "", str(error))
                continue
            if line is None:
                return
            yield Piece(self._lines.number, line)


class Joined(NamedTuple):
    """Lines that are one row, and its cells."""

    lines: list[str]
    cells: list[str]


def cells_of(text: str, delimiter: str) -> list[str] | None:
    """The cells of a row by RFC 4180; None where a quote does not close, or text follows it."""
    if '"' not in text:
        return text.split(delimiter)
    reader = csv.reader([text], delimiter=delimiter, strict=True)
    try:
        cells = next(reader, [])
    except csv.Error:
        return None
    return cells if next(reader, None) is None else None


def _is_open(text: str, delimiter: str) -> bool:
    """Whether the last cell of a row begins with a quote that is not closed."""
    return cells_of(text + '"', delimiter) is not None


def _count(line: str, delimiter: str) -> int:
    """Delimiters of a line by itself; those within quotes count only where these are not closed."""
    cells = cells_of(line, delimiter)
    return line.count(delimiter) if cells is None else len(cells) - 1


def _is_enclosed(cell: str) -> bool:
    return len(cell) > 1 and cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")


def _unquoted(cell: str) -> str:
    if cell.startswith('"') and _is_enclosed(cell):
        return cell[1:-1].replace('""', '"')
    return cell


def _ending(source: Source) -> str:
    name = source.path.name.removesuffix(".gz")
    return name[name.rfind(".") :].lower()


def _sign(delimiter: str) -> str:
    return DELIMITERS.get(delimiter, repr(delimiter))


def _surplus(more: int, delimiter: str) -> str:
    columns = f"{more} column{'s' if more > 1 else ''}"
    sign = _sign(delimiter)
    return f"{columns} more than the first line names; put quotes around a text with {sign} in it"


def _refuse_twice(source: Source, names: Sequence[str]) -> None:
    """Refuse a column in use that is there twice.

    Raises:
        DataError: Names both.
    """
    for wanted in used_columns(source.dialect, names, source.wants):
        places = [number for number, name in enumerate(names, start=1) if name == wanted]
        if len(places) > 1:
            which = " and ".join(map(str, places))
            raise DataError(
                f"{source.path}: columns {which} are both called `{named([wanted])}`; one is "
                "expected: rename or remove the other"
            )


def used_columns(dialect: Dialect, names: Sequence[str], wants: Wants) -> list[str]:
    """The columns that are read of those that a file names."""
    columns = dialect.columns(names)
    label = columns.label if wants == "label" else None
    found = (columns.text, columns.text_b, label, columns.language, columns.id)
    return [name for name in found if name is not None]

"""CSV and TSV tables; a row is one line, or several where a quoted cell contains line ends.

Quotes follow RFC 4180: a quoted cell ends at the next quote that is not doubled, which a delimiter
or line end must follow. Many files were written without regard to that, with quotes that are plain
characters, so:

- A quoted cell over several lines may be a text with line ends, or several rows whose quotes are
  characters. What tells is how many of the lines are rows by themselves: have as many cells as the
  header, and one of the task's labels where these are known and have a column. None is where lines
  end otherwise than the header, or where labels tell nothing and CSV has doubled quotes there.
- In TSV a quote that does not enclose a whole cell is a character. A quoted cell over several lines
  counts as one if they have the header's number of tabs together (as spreadsheets write them), or
  if only the first or only the last of them is a row by itself. If another one is, all are left
  out; if more are, each line is a row.
- In CSV a row with a quote that never closes, or that text follows, is left out, and reading
  continues with the next line, so that at most this row is lost. The same holds for a cell over
  several lines where labels are known and two or more of its lines are rows by themselves. Where no
  labels are known, all its lines are left out if each is a row by itself.
- In a single column nothing tells; quoted cells over several lines are reported.

Law: each line belongs to exactly one row, except for empty lines and the header; rows end in
ascending lines.
"""

import csv
import re
from collections.abc import Sequence
from typing import NamedTuple

from smidgen.edge_client.formats.lines import LONGEST_LINE, Lines, LongLine, each_line
from smidgen.edge_client.formats.source import (
    DELIMITERS,
    MARK,
    DataError,
    Dialect,
    LeftOut,
    Row,
    Rows,
    Source,
    Usual,
    Wants,
    named,
    names_of,
)

csv.field_size_limit(LONGEST_LINE)
KEPT = 1000  # lines behind that are let go of together
USUAL = {".csv": ",", ".tsv": "\t"}
SEPARATOR = re.compile(r'"?sep=([^\r\n"])"?\1*[\r\n]*', re.IGNORECASE)  # tells Excel the delimiter
CLOSING = re.compile(r'[^"]*(?:""[^"]*)*"(?!")')  # the rest of a quoted cell, with its last quote
UNCLOSED = "a quote that is not closed, or that text follows; double quotes within a quoted text"
TWO_WAYS = (
    "quoted text over lines that are each a row of their own; double the quotes that are "
    "characters, or put the text in one line"
)


def _read(source: Source) -> Rows:
    with source.lines() as lines:
        yield from _Rows(source, lines).all()


TABLE = Usual("a table", (".csv", ".tsv"), frozenset(("text", "label")), _read)


class Piece(NamedTuple):
    """A line that is not parsed yet, its number, and why it cannot be."""

    number: int
    text: str
    fault: str = ""


class _Rows:
    def __init__(self, source: Source, lines: Lines) -> None:
        self._source, self._pieces = source, map(Piece._make, each_line(lines))
        self._ahead, self._next = list[Piece](), 0  # lines looked at, and the first not taken yet
        self._last = 0  # the line that the last row ends in
        self._delimiter, self._names = "", list[str]()
        self._end = ""  # of the first line

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
        if first is not None and (match := SEPARATOR.fullmatch(first.text)):
            usual, first = match[1], self._peek() and self._pop()
            source.note(f"{_sign(usual)} between columns, as its line sep= says")
            self._delimiter = source.dialect.separator or usual
        if first is None:
            return False
        if first.fault:
            raise LongLine(f"longer than {LONGEST_LINE:,} characters, and it names the columns")
        self._end = _end_of(first.text)
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
        again, most = _plain(names), len("".join(names)) + 8 * len(names)
        while self._peek() is not None:
            if self._is_empty():
                self._pop()
                continue
            cells = self._next_cells(len(names))
            if isinstance(cells, LeftOut):
                yield cells
                continue
            line, more = self._last, cells[len(names) :]
            is_short = len("".join(cells)) <= most  # as one with the names is
            if is_short and (cells == names or (len(names) > 1 and _plain(cells) == again)):
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
        plain, cells = text.split("\t"), cells_of(text, "\t")
        if cells is not None and len(plain) > width == len(cells):
            return cells
        found = self._joined(piece) if width and cells is None and _is_open(text, "\t") else None
        if found and len(found.cells) == width:
            tabs = sum(line.count("\t") for line in found.lines)
            alone = self._rows_alone(found)
            if tabs == width - 1 or not (any(alone[1:]) and any(alone[:-1])):
                return self._take(found)
            if sum(alone) == 1:
                return self._left_out(piece, found)
        return [_unquoted(cell) for cell in plain]

    def _quoted(self, text: str, piece: Piece, width: int) -> list[str] | LeftOut:
        found = self._joined(piece) if _is_open(text, self._delimiter) else None
        if found is None:
            return LeftOut(piece.number, "unreadable", UNCLOSED)
        if width < 2 or sum(alone := self._rows_alone(found)) < 2:
            return self._take(found)
        if self._place_of_label() is not None:
            return LeftOut(piece.number, "unreadable", UNCLOSED)
        are_all = sum(alone) == sum(1 for line in found.lines if line.strip())
        return self._left_out(piece, found) if are_all else self._take(found)

    def _rows_alone(self, found: "Joined") -> list[bool]:
        """Which of its lines, read alone, have the header's columns and a label of the task."""
        place, labels = self._place_of_label(), self._source.labels
        is_quoted = place is None and self._delimiter != "\t" and found.has_doubled
        if is_quoted or self._end not in found.ends:
            return [False] * len(found.lines)

        def is_row(cells: Sequence[str]) -> bool:
            is_whole = len(cells) == len(self._names)
            return is_whole and (place is None or cells[place].strip('"') in labels)

        ways = (
            (cells_of(one, self._delimiter) or (), one.split(self._delimiter)) * bool(one.strip())
            for one in found.lines
        )
        return [any(map(is_row, both)) for both in ways]

    def _place_of_label(self) -> int | None:
        """Where labels stand; None: in no column, or they are not known."""
        column = self._source.dialect.columns(self._names).label
        return self._names.index(column) if column is not None and self._source.labels else None

    def _left_out(self, piece: Piece, found: "Joined") -> LeftOut:
        """All lines of what may be one row or several."""
        self._take(found)
        return LeftOut(self._last, "ambiguous", f"lines {piece.number} on: {TWO_WAYS}")

    def _joined(self, piece: Piece) -> "Joined | None":
        """The lines of a quoted cell that the first of them leaves open; None: it never closes.

        Each line is looked at once, however many a cell goes over.
        """
        lines, size, number = [piece.text], len(piece.text), 0
        while size <= LONGEST_LINE and (further := self._peek(number)) is not None:
            lines.append(further.text)
            size, number = size + len(further.text), number + 1
            is_open = _goes_on(further.text, self._delimiter)
            if further.fault or is_open is None:
                return None
            if not is_open:
                cells = cells_of("".join(lines).rstrip("\r\n"), self._delimiter)
                ends = {_end_of(line) for line in lines[:-1]}
                return Joined([one.rstrip("\r\n") for one in lines], cells, ends) if cells else None
        return None

    def _take(self, found: "Joined") -> list[str]:
        if len(self._names) == 1:
            self._source.note("quoted texts over several lines")
        for _ in found.lines[1:]:
            self._last = self._pop().number
        return found.cells

    def _is_empty(self) -> bool:
        piece = self._peek()
        return piece is not None and not piece.fault and not piece.text.strip("\r\n")

    def _peek(self, number: int = 0) -> Piece | None:
        while len(self._ahead) <= self._next + number:
            piece = next(self._pieces, None)
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


class Joined(NamedTuple):
    """Lines that may be one row.

    Attributes:
        lines: Without their ends.
        cells: Of the row.
        ends: What all lines but the last end with.
    """

    lines: list[str]
    cells: list[str]
    ends: set[str]

    @property
    def has_doubled(self) -> bool:
        """Whether the text over several lines has quotes, which are doubled in the file."""
        return any('"' in cell and not {"\n", "\r"}.isdisjoint(cell) for cell in self.cells)


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


def _goes_on(line: str, delimiter: str) -> bool | None:
    """Whether a quoted cell that is open before a line is open behind it too, or the next is.

    None: text follows its last quote.
    """
    closing = CLOSING.match(line)
    if closing is None:
        return True
    rest = line[closing.end() :].rstrip("\r\n")
    if rest and not rest.startswith(delimiter):
        return None
    if cells_of(rest, delimiter) is not None:
        return False
    return True if _is_open(rest, delimiter) else None


def _end_of(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def _unquoted(cell: str) -> str:
    inner = cell[1:-1].replace('""', "")
    is_enclosed = len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner
    return cell[1:-1].replace('""', '"') if is_enclosed else cell


def _plain(names: Sequence[str]) -> list[str]:
    return [name.strip().casefold() for name in names]


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
        # A name that the user says exactly means that column alone.
        is_told = wanted in (source.dialect.text_column, source.dialect.label_column)
        alike = (
            [wanted] if is_told else [name for name in names if _plain([name]) == _plain([wanted])]
        )
        places = [number for number, name in enumerate(names, start=1) if name in alike]
        if len(places) > 1:
            which = " and ".join(map(str, places))
            called = dict.fromkeys(f"`{named([name])}`" for name in alike)
            both = "both called " if len(called) == 1 else "called "
            said = f"columns {which} are {both}{' and '.join(called)}; one is expected"
            raise DataError(f"{source.path}: {said}: rename or remove the other")


def used_columns(dialect: Dialect, names: Sequence[str], wants: Wants) -> list[str]:
    """The columns that are read of those that a file names."""
    columns = dialect.columns(names)
    label = columns.label if wants == "label" else None
    found = (columns.text, columns.text_b, label, columns.language, columns.id)
    return [name for name in found if name is not None]

"""A number as a paper prints it, with the cell it stands in and what the paper says about it.

Tables are written down as they are printed, one line per row; `-` is an empty cell, which is
None. Nothing here is estimated.

    table = read_table(PAPER, "table 2", SETTING, " | AGNEWS\\nUniform FedCLS | 66.1±12.8", "%")
    table.at("Uniform FedCLS", "AGNEWS")  # shown as 66.1±12.8
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

UNKNOWN = "not known"
CELL = re.compile(r"~?(?P<value>[\d.,]+)(?:±(?P<spread>[\d.]+))?")


@dataclass(frozen=True)
class Paper:
    """Where figures are from.

    Attributes:
        name: What we call it.
        source: Title or venue and identifier, for people who look it up.
        remark: How its figures came here, where that is not from the paper itself.
    """

    name: str
    source: str
    remark: str = ""

    def __str__(self) -> str:
        told = f"; {self.remark}" if self.remark else ""
        return f"{self.name} ({self.source}{told})"


@dataclass(frozen=True)
class Setting:
    """What the paper says about how a table's figures were made.

    Attributes:
        what: Base, data, clients.
        runs: Runs that each figure is the mean of; 0 where it is counted, None where the paper does
            not say.
    """

    what: str
    runs: int | None = None

    def __str__(self) -> str:
        told = "number of runs not said" if self.runs is None else f"{self.runs} runs"
        return self.what if self.runs == 0 else f"{self.what}; {told}"


@dataclass(frozen=True)
class Figure:
    """One printed number.

    Attributes:
        value: In `unit`.
        unit: Such as `%`, `GB` or `parameters`.
        paper: The paper that prints it.
        table: Such as `table 2`, or the section of a figure that stands in a sentence.
        row: The row's name as printed; of a sentence, what the number is.
        column: The column's name as printed; empty of a sentence.
        setting: What the paper says about how it was made.
        spread: What it prints behind ±, in `unit`; None where it prints nothing.
        printed: The cell as it is printed, with all its digits; empty of a sentence.
        remark: What else has to be known, such as another reading of the cell.
    """

    value: float
    unit: str
    paper: Paper
    table: str
    row: str
    column: str
    setting: Setting
    spread: float | None = None
    printed: str = ""
    remark: str = ""

    def __str__(self) -> str:
        return self.printed or f"{self.value:,}"

    def to_json(self) -> dict[str, object]:
        """The number and where it stands, for machines."""
        return {
            "value": self.value,
            "spread": self.spread,
            "unit": self.unit,
            "paper": self.paper.name,
            "table": self.table,
            "row": self.row,
            "column": self.column,
            "runs": self.setting.runs,
            "remark": self.remark,
        }


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        paper: The paper that prints it.
        name: Such as `table 2`.
        setting: What the paper says about how the figures were made.
        columns: Names as printed.
        rows: Row -> its cells, in the order of the columns; None where one is not known.
    """

    paper: Paper
    name: str
    setting: Setting
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Figure | None, ...]]

    def at(self, row: str, column: str) -> Figure | None:
        """A cell; None where it is not known.

        Raises:
            KeyError: The table has no such row.
            ValueError: It has no such column.
        """
        return self.rows[row][self.columns.index(column)]

    def by_column(self, row: str) -> dict[str, Figure]:
        """The known cells of a row."""
        pairs = zip(self.columns, self.rows[row], strict=True)
        return {column: figure for column, figure in pairs if figure is not None}

    @property
    def figures(self) -> list[Figure]:
        """Every cell that is known, row by row."""
        return [figure for row in self.rows.values() for figure in row if figure is not None]

    @property
    def source(self) -> str:
        """One line for people: paper, table, setting."""
        return f"{self.paper}, {self.name}: {self.setting}"


def read_table(
    paper: Paper,
    name: str,
    setting: Setting,
    text: str,
    unit: str = "",
    units: Mapping[str, str] | None = None,
    remarks: Mapping[tuple[str, str], str] | None = None,
) -> Table:
    """Read a table that is written down with `|` between cells, its head in the first line.

    Args:
        paper: The paper that prints it.
        name: Such as `table 2`.
        setting: What the paper says about how the figures were made.
        text: The table; a cell is `12`, `~12`, `1.2±0.3` or `-`.
        unit: Unit of every figure that `units` does not name.
        units: Row or column -> its unit.
        remarks: (row, column) -> what else has to be known of a cell.
    """
    units, remarks = units or {}, remarks or {}
    head, *lines = [
        [cell.strip() for cell in line.split("|")] for line in text.strip("\n").splitlines()
    ]
    columns = tuple(head[1:])
    rows: dict[str, tuple[Figure | None, ...]] = {}
    for row, *cells in lines:
        found: list[Figure | None] = []
        for column, cell in zip(columns, cells, strict=True):
            said = None if cell == "-" else CELL.fullmatch(cell)
            assert said or cell == "-", f"{name}, {row}, {column}: {cell!r}"
            if said is None:
                found.append(None)
                continue
            found.append(
                Figure(
                    value=_number(said["value"]),
                    unit=units.get(row, units.get(column, unit)),
                    paper=paper,
                    table=name,
                    row=row,
                    column=column,
                    setting=setting,
                    spread=float(said["spread"]) if said["spread"] else None,
                    printed=cell,
                    remark=remarks.get((row, column), ""),
                )
            )
        rows[row] = tuple(found)
    return Table(paper, name, setting, columns, rows)


def _number(text: str) -> float:
    plain = text.replace(",", "")
    return float(plain) if "." in plain else int(plain)


def shown(figure: Figure | None) -> str:
    """A published figure as people read it; what could not be read is said to be unknown."""
    return UNKNOWN if figure is None else str(figure)

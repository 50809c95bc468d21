"""Published figures: each number with its table cell and the paper's remarks on it.

Tables are copied as printed, one line per row; `-` is an empty cell. Nothing here is estimated.

    paper = read_paper(tomllib.loads(text))
    paper.tables["few_shot"].known["Uniform FedCLS"]["AGNEWS"]  # shown as 66.1±12.8
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smidgen.edge_client.tables import Column, Table
from smidgen.simulation.report.scenario import Figure

CELL = re.compile(r"~?(?P<value>[\d.,]+)(?:±(?P<spread>[\d.]+))?")
EMPTY = "-"  # the paper's cell is


@dataclass(frozen=True)
class Printed:
    """A table of a paper.

    Attributes:
        paper: The paper that prints it, for people.
        name: Such as `table 2`.
        setting: What the paper says about how the figures were made, and of how many runs.
        columns: Names as printed.
        known: Row -> column -> its figure; without those that are not known.
    """

    paper: "Paper"
    name: str
    setting: str
    columns: tuple[str, ...]
    known: Mapping[str, Mapping[str, Figure]]

    def __getitem__(self, row: str) -> Mapping[str, Figure]:
        return self.known[row]

    @property
    def figures(self) -> list[Figure]:
        """Every cell that is known, row by row."""
        return [figure for cells in self.known.values() for figure in cells.values()]

    @property
    def source(self) -> str:
        """One line for people: paper, table, setting."""
        return f"{self.paper}, {self.name}: {self.setting}"

    def shown(self) -> Table:
        """The table as it is printed, with what has to be known of its cells."""
        columns = [Column("", "word"), *(Column(name) for name in self.columns)]
        rows = [
            [row, *(str(cells.get(name, EMPTY)) for name in self.columns)]
            for row, cells in self.known.items()
        ]
        return Table(
            columns,
            rows,
            f"published: {self.paper.name}, {self.name}",
            [self.source, *self._remarks()],
        )

    def _remarks(self) -> list[str]:
        """Each remark once, behind the rows, and the columns where these have more cells."""
        cells: dict[str, list[Figure]] = {}
        for figure in self.figures:
            if figure.remark:
                cells.setdefault(figure.remark, []).append(figure)
        lines = []
        for remark, whose in cells.items():
            rows = dict.fromkeys(figure.row for figure in whose)
            is_all = len(whose) == sum(len(self.known[row]) for row in rows)
            columns = {} if is_all else dict.fromkeys(figure.column for figure in whose)
            named = [", ".join(names) for names in (rows, columns) if names]
            lines.append(f"{', '.join(named)}: {remark}")
        return lines


@dataclass(frozen=True)
class Paper:
    """Where figures are from.

    Attributes:
        name: What we call it.
        source: Title or venue and identifier, for people who look it up.
        remark: How its figures came here, where that is not from the paper itself.
        tables: What it prints, by our names.
        figures: What it prints in a sentence or a drawing, by our names.
    """

    name: str
    source: str
    remark: str = ""
    tables: dict[str, Printed] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} ({'; '.join(filter(None, (self.source, self.remark)))})"


def read_paper(doc: Mapping[str, Any]) -> Paper:
    paper = Paper(doc["name"], doc["source"], doc.get("remark", ""))
    for name, table in doc.get("tables", {}).items():
        paper.tables[name] = read_table(**{"paper": paper} | table)
    for name, figure in doc.get("figures", {}).items():
        paper.figures[name] = Figure(paper=paper.name, **figure)
    return paper


def read_table(
    paper: "Paper | Mapping[str, str]",
    name: str,
    setting: str,
    cells: str,
    runs: int | None = None,
    unit: str = "",
    units: Mapping[str, str] | None = None,
    remarks: Mapping[str, Mapping[str, str]] | None = None,
) -> Printed:
    """Read a table that is written down with `|` between cells, its head in the first line.

    Args:
        paper: The paper that prints it, or its `name` and `source` where it is another one.
        name: Such as `table 2`.
        setting: What the paper says about how the figures were made.
        cells: The table; a cell is `12`, `~12`, `1.2±0.3` or `-`.
        runs: Of which each figure is the mean; 0 where it is counted, None where nobody says.
        unit: Unit of every figure that `units` does not name.
        units: Row or column -> its unit.
        remarks: Row -> column, or `*` for all of them -> what else has to be known of a cell.
    """
    paper = paper if isinstance(paper, Paper) else Paper(paper["name"], paper["source"])
    units, remarks = units or {}, remarks or {}
    (_, *columns), *lines = [
        [cell.strip() for cell in line.split("|")] for line in cells.strip("\n").splitlines()
    ]
    known: dict[str, dict[str, Figure]] = {row: {} for row, *_ in lines}
    for row, *texts in lines:
        for column, text in zip(columns, texts, strict=True):
            if text == EMPTY:
                continue
            found = CELL.fullmatch(text)
            assert found, f"{name}, {row}, {column}: {text!r}"
            known[row][column] = Figure(
                value=_number(found["value"]),
                unit=units.get(row, units.get(column, unit)),
                paper=paper.name,
                table=name,
                row=row,
                column=column,
                setting=setting,
                runs=runs,
                spread=float(found["spread"]) if found["spread"] else None,
                printed=text,
                remark=(of_row := remarks.get(row, {})).get(column, of_row.get("*", "")),
            )
    several = "; number of runs not said" if runs is None else f"; {runs} runs" if runs else ""
    return Printed(paper, name, f"{setting}{several}", tuple(columns), known)


def _number(text: str) -> float:
    plain = text.replace(",", "")
    return float(plain) if "." in plain else int(plain)

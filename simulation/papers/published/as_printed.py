"""A paper's table for people, as it prints it, with what has to be known of its cells."""

from edge_client.tables import Column, Table
from simulation.papers.published.figure import Figure
from simulation.papers.published.figure import Table as Printed

EMPTY = "-"  # the paper's cell is


def printed_table(table: Printed) -> Table:
    """A paper's table as it prints it."""
    columns = [Column("", "word"), *(Column(name) for name in table.columns)]
    rows = [
        [row, *(EMPTY if cell is None else str(cell) for cell in cells)]
        for row, cells in table.rows.items()
    ]
    title = f"published: {table.paper.name}, {table.name}"
    return Table(columns, rows, title, [table.source, *_remarks(table)])


def _remarks(table: Printed) -> list[str]:
    """Each remark once, behind the cells that it is of."""
    cells: dict[str, list[Figure]] = {}
    for figure in table.figures:
        if figure.remark:
            cells.setdefault(figure.remark, []).append(figure)
    return [f"{_named(table, whose)}: {remark}" for remark, whose in cells.items()]


def _named(table: Printed, whose: list[Figure]) -> str:
    """Rows, and columns where not every known cell of the rows is meant."""
    rows = list(dict.fromkeys(figure.row for figure in whose))
    known = sum(len(table.by_column(row)) for row in rows)
    told = ", ".join(rows)
    if len(whose) == known:
        return told
    return f"{told}, {', '.join(dict.fromkeys(figure.column for figure in whose))}"

"""Rows as hypothesis draws them, the files that others' writers make of them, and what is read."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import every_row
from smidgen.edge_client.texts.parts import ANY, Labels, Wanted

LABELS = Labels(("good", "bad"))
PIECES = (
    '"',
    '""',
    ",",
    ";",
    "\t",
    " ",
    "'",
    "\\",
    "a",
    "b,c",
    "é",
    "\u2028",
    "\x85",
    "\x0c",
    "\0",
)
ENDS = ("\n", "\r\n", "\r")


class Labelled(NamedTuple):
    """What a writer is given."""

    text: str
    label: str


Writer = Callable[[Sequence[Sequence[str]]], str]


def texts(*more: str, without: str = "") -> st.SearchStrategy[str]:
    """Texts of the pieces that break readers; never of space alone."""
    pieces = [one for one in (*PIECES, *more) if not set(one) & set(without)]
    some = st.lists(st.sampled_from(pieces) | st.text("xyz", max_size=3), max_size=8)
    return some.map("".join).filter(lambda text: bool(text.strip()) and not text.startswith("sep="))


def rows(one: st.SearchStrategy[str]) -> st.SearchStrategy[list[Labelled]]:
    labels = st.sampled_from(LABELS.labels)
    return st.lists(st.builds(Labelled, one, labels), min_size=1, max_size=6)


def csv_writer(quoting: int, delimiter: str, end: str) -> Writer:
    """Python's own, of which `excel`, `excel-tab` and `unix` are settings."""

    def row(cells: Sequence[str]) -> str:
        file = io.StringIO()  # with both of them as its end it quotes texts with either, always
        csv.writer(file, delimiter=delimiter, quoting=quoting).writerow(cells)  # type: ignore[arg-type]
        return file.getvalue().removesuffix("\r\n") + end

    return lambda table: "".join(map(row, table))


def naive(end: str) -> Writer:
    """Tabs between cells, and nothing else, as most shared tasks have it."""
    return lambda table: "".join("\t".join(row) + end for row in table)


def spreadsheet(end: str) -> Writer:
    """Quotes only where a cell holds a tab, a quote or a line's end."""

    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if set(text) & set('\t"\r\n') else text

    return lambda table: "".join("\t".join(map(cell, row)) + end for row in table)


class ReadBack(NamedTuple):
    """What became of a file: texts and labels, the lines of all rows, how many were left out."""

    found: list[Labelled]
    lines: list[int]
    left_out: int


def read_back(path: Path, body: str | bytes, wanted: Wanted = ANY) -> ReadBack:
    """Read a file with labels, and hold it to the law of accounting."""
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    return reading(path, wanted)


def reading(path: Path, wanted: Wanted = ANY, *, labelled: bool = True) -> ReadBack:
    accounting, every = Accounting(), list(every_row(path, wanted, labelled, []))
    for one in every:
        if one.example is None:
            accounting.leave_out(one.reason, one.fault)
            assert one.reason == "empty" or one.fault
    examples = [one.example for one in every if one.example is not None]
    lines = [one.line for one in every]
    assert len(examples) + accounting.left_out == len(every)
    assert lines == sorted(set(lines))
    found = [Labelled(one.text, one.label or "") for one in examples]
    return ReadBack(found, lines, accounting.left_out)

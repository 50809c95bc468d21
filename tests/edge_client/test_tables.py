import os
import pty
from io import StringIO
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from smidgen.edge_client.tables import (
    Column,
    Table,
    plain,
    render,
    seconds,
    share,
    show,
    size,
    sizes,
    span,
    terminal_width,
)
from tests.command_line import on_terminal

RUN_ID = "r44a8c1d20f"
TASKS = Table(
    [
        Column("run", "word"),
        Column("round"),
        Column("bytes up", optional=1),
        Column("what it says", "text"),
    ],
    [[RUN_ID, "1,204", "130.4 KiB", "the shed door has been open for an hour " * 3]],
    title="what was asked",
    notes=["round: 0 is before any training; " * 5],
)


def test_a_table_has_a_header_a_rule_and_aligned_columns() -> None:
    table = Table([Column("name", "word"), Column("texts")], [["hall", "9"], ["kitchen", "120"]])
    assert render(table).splitlines() == [
        "name     texts",
        "-------  -----",
        "hall         9",
        "kitchen    120",
    ]


def test_without_a_terminal_every_row_is_one_line() -> None:
    lines = render(TASKS).splitlines()
    assert lines[3].startswith(f"{RUN_ID}  1,204  130.4 KiB  the shed door")
    assert lines[3].endswith("hour")


def test_free_text_wraps_in_its_own_column_and_the_rest_stays_whole() -> None:
    lines = render(TASKS, 80).splitlines()
    assert max(map(len, lines)) <= 80
    text = lines[3].index("the shed")
    assert lines[4][:text].strip() == "" and lines[4][text:].split()[0] in TASKS.rows[0][3].split()


def test_an_optional_column_makes_way_and_is_named() -> None:
    said = render(TASKS, 45)
    assert "130.4 KiB" not in said and "bytes up is left out to fit; see --json" in said
    assert RUN_ID in said and "1,204" in said


def test_what_cannot_stand_beside_each_other_is_stacked() -> None:
    lines = render(TASKS, 30).splitlines()
    assert f"run           {RUN_ID}" in lines and "round         1,204" in lines


def test_headings_break_between_words_before_a_column_goes() -> None:
    table = Table([Column("layer forwards", optional=1), Column("bytes down")], [["1", "2"]])
    assert render(table, 19).splitlines()[:2] == ["   layer  bytes", "forwards   down"]


CELLS = st.text(st.characters(codec="utf-8"), max_size=30)
KINDS: st.SearchStrategy[Literal["number", "word", "text"]] = st.sampled_from(
    ("number", "word", "text")
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    names = draw(st.lists(st.text("abc ", min_size=1, max_size=12), min_size=1, max_size=6))
    columns = [Column(name, draw(KINDS), draw(st.integers(0, 2))) for name in names]
    row = st.lists(CELLS, min_size=len(names), max_size=len(names))
    return Table(columns, draw(st.lists(row, max_size=4)), notes=draw(st.lists(CELLS, max_size=2)))


@given(tables(), st.integers(10, 200))
def test_a_line_is_wider_than_the_terminal_only_where_a_cell_alone_is(
    table: Table, width: int
) -> None:
    widest = max(
        (cell_len(plain(cell)) for row in [*table.rows, table.notes] for cell in row), default=0
    )
    heading = max(cell_len(column.name) for column in table.columns)
    most = max(width, heading + 2 + max(widest, 20), len("column") * 14)
    assert all(cell_len(line) <= most for line in render(table, width).split("\n"))


@given(tables())
def test_nothing_is_lost_where_there_is_room(table: Table) -> None:
    said = render(table)
    assert all(plain(cell).rstrip() in said for row in table.rows for cell in row)


def test_control_characters_of_a_name_reach_no_terminal() -> None:
    said = render(Table([Column("name", "word")], [["\x1b]0;gone\x07\r\n"]]))
    assert "\x1b" not in said and "?]0;gone?" in said


def test_letters_of_double_width_keep_columns_aligned() -> None:
    table = Table([Column("name", "word"), Column("n")], [["台所", "1"], ["hall", "2"]])
    assert render(table).splitlines()[2:] == ["台所  1", "hall  2"]


def test_a_terminal_tells_its_width_and_a_pipe_has_none() -> None:
    assert terminal_width(StringIO()) is None
    said = on_terminal(lambda: show(TASKS), 60)
    assert max(map(len, said.splitlines())) <= 60 and RUN_ID in said


def test_columns_of_the_environment_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as file:
        assert terminal_width(file) == 80  # it does not say
        monkeypatch.setenv("COLUMNS", "133")
        assert terminal_width(file) == 133
    os.close(ours)


def test_bytes_are_counted_in_steps_of_1024_as_budgets_are() -> None:
    assert [size(value) for value in (0, 812, 1024, 512 << 20, None)] == [
        "0 B",
        "812 B",
        "1.00 KiB",
        "512 MiB",
        "-",
    ]


def test_bytes_of_a_column_share_a_unit() -> None:
    assert sizes([100, 40 << 10, 30 << 20]) == ["0.000 MiB", "0.039 MiB", "30.000 MiB"]
    assert sizes([900 << 10, None, 101 << 20]) == ["0.9 MiB", "-", "101.0 MiB"]


def test_seconds_and_shares_name_their_unit() -> None:
    assert [seconds(value) for value in (0.0042, 1.234, 12.34, 600.4, None)] == [
        "0.004 s",
        "1.23 s",
        "12.3 s",
        "600 s",
        "-",
    ]
    assert share(0.4123) == "41.2 %" and share(None) == "-"
    assert [span(value) for value in (3.2, 119, 600, 7200, 40 * 3600, 5 * 86400)] == [
        "3 s",
        "119 s",
        "10 min",
        "2 h",
        "40 h",
        "5 d",
    ]

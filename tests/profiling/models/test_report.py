from dataclasses import replace

import pytest

from smidgen.edge_client.tables import render
from smidgen.profiling.models.cell import GIB, Cell, Proof, placed
from smidgen.profiling.models.page import models_tables, twice_table, verdict

MIB = 1 << 20
CELL = Cell(
    "xlm-roberta-base",
    "torch",
    "512M",
    dtype="bfloat16",
    parameters=278_295_186,
    trained_parameters=294_912,
    round_bytes=1_179_648,
    peak_rss_bytes=1_234 * MIB,
    peak_anon_bytes=999 * MIB,
    steps_s=(12.3, 12.4, 12.5),
    texts_per_s=(1.23,),
    label_peak_rss_bytes=777 * MIB,
    board_bytes=2 * GIB,
    proofs=(Proof(2 * GIB, True, "done", limit_bytes=2 * GIB),),
)
REFUSED = Cell("xlm-roberta-base", "onnx", "256M", outcome="does not fit: needs 412 MiB at least")


def test_a_screen_of_80_columns_has_every_figure_that_is_asked_for() -> None:
    (table,) = models_tables([CELL, REFUSED])
    text = render(table, 80)
    assert max(map(len, text.splitlines())) <= 80
    for figure in ("bfloat16", "1234 MiB", "12.4 s", "1.23", "777 MiB", "2 GiB", "278.3 M"):
        assert figure in text
    assert "onnx 256M: does not fit: needs 412 MiB at least" in text


def test_each_base_has_a_table_and_the_notes_come_once() -> None:
    tables = models_tables([CELL, replace(CELL, base="bert-base")])
    assert [bool(table.notes) for table in tables] == [False, True]


def test_a_run_that_failed_on_a_board_is_told() -> None:
    broken = Proof(GIB, False, "failed with exit code 1: no luck", is_broken=True)
    (table,) = models_tables([replace(CELL, board_bytes=None, proofs=(*CELL.proofs, broken))])
    text = render(table)
    assert "not proved" in text and "torch 512M, 1 GiB: failed with exit code 1" in text


def test_without_a_cgroup_a_board_is_not_proved() -> None:
    (table,) = models_tables([placed(replace(CELL, proofs=()), None)])
    text = render(table, 80)
    assert "not proved: no memory cgroup here" in text and max(map(len, text.splitlines())) <= 80


def test_what_ended_on_no_board_fits_none() -> None:
    killed = Proof(8 * GIB, False, "killed by the memory cap")
    (table,) = models_tables([replace(CELL, board_bytes=None, proofs=(killed,))])
    assert "none" in render(table)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "ok"),
        ({"peak_rss_bytes": 1_300 * MIB}, "memory differs"),
        ({"steps_s": (15.0, 15.0)}, "unstable"),
        ({"is_unstable": True}, "unstable"),
        ({"outcome": "killed"}, "differs"),
    ],
)
def test_two_measurements_of_a_cell_agree_or_not(change: dict[str, object], expected: str) -> None:
    again = replace(CELL, **change)  # type: ignore[arg-type]
    assert verdict(CELL, again) == expected
    assert expected in render(twice_table([[CELL, again]]), 80)

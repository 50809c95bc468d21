from dataclasses import replace

import pytest

from smidgen.profiling.instruments.environment import conditions
from smidgen.profiling.models.cell import GIB, Cell, Proof, from_record, to_record
from smidgen.profiling.records.record import RecordError, from_line, to_line

CELL = Cell(
    "roberta-base",
    "torch",
    "512M",
    dtype="float32",
    peak_rss_bytes=400 << 20,
    steps_s=(1.0, 1.5),
    texts_per_s=(8.0,),
    board_bytes=GIB,
    proofs=(Proof(GIB, True, "done", 1 << 29, "capped"),),
    asked={"steps": 2, "threads": None},
)


def test_a_cell_comes_back_from_its_line() -> None:
    record = to_record(CELL, conditions(isa="avx2"), "a")
    assert from_record(from_line(to_line(record))) == CELL
    assert record.median("step_s") == 1.25 and not record.is_peer
    assert record.conditions.isa == "avx2" and "load_1m" not in record.conditions.machine


def test_what_is_not_there_has_no_figure() -> None:
    record = to_record(replace(CELL, texts_per_s=()), conditions(), "a")
    assert {"step_j", "texts_per_s"} & set(record.figures) == set()


def test_a_refused_budget_is_final_and_a_failure_is_not() -> None:
    assert replace(CELL, outcome="does not fit", needed_bytes=9).is_final
    assert not replace(CELL, outcome="failed with exit code 1: no luck").is_final


def test_threads_tell_cells_apart_where_a_number_was_asked_for() -> None:
    assert "threads" not in CELL.subject
    assert replace(CELL, asked={"threads": 1}).subject == CELL.subject | {"threads": 1}


def test_a_record_of_something_else_is_named() -> None:
    record = to_record(CELL, conditions(), "a")
    with pytest.raises(RecordError, match=r"roberta-base, .*not a cell of the models table"):
        from_record(replace(record, details={"base": 3}))

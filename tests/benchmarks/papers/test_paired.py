import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from benchmarks.papers.paired import apart_table, columns_apart, interval, rows_apart
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.record import Result, Row
from smidgen.simulation.experiments.scoring import Score, Tally
from smidgen.simulation.report.scenario import Cell, Measured, Name, Scenario

ASKED = Experiment("asked", "hub")
CELLS = tuple(
    Cell(row, column, ASKED)
    for row, column in (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("c", "y"))
)


def run_of(seed: int, right: int) -> Result:
    score = Score(Tally(right, 10), None, {}, {})
    row = Row(arm="", round_index=1, clients=1, adapter_sha256="", evaluated=1, score=score)
    return Result(Experiment("run", "hub", seed=seed), (row,))


def found(name: Name, rights: dict[int, int]) -> Measured:
    [cell] = [cell for cell in CELLS if cell.name == name]
    return Measured(cell, tuple(run_of(seed, right) for seed, right in rights.items()))


def scenario(*pairs: tuple[Name, Name]) -> Scenario:
    return Scenario("s", "title", CELLS, (), pairs=pairs)


def test_an_interval_of_three_is_that_of_students_t() -> None:
    low, high = interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((2.0 - 2.484, 2.0 + 2.484), abs=1e-3)
    assert interval([5.0] * 30) == (5.0, 5.0)


def test_one_value_has_no_interval() -> None:
    assert interval([1.0]) is None and interval([]) is None


def test_pairs_are_of_the_columns_and_rows_that_both_have() -> None:
    assert rows_apart(CELLS, ("c", "a"), ("a", "b"), ("a", "nobody")) == (
        (("c", "y"), ("a", "y")),
        (("a", "x"), ("b", "x")),
        (("a", "y"), ("b", "y")),
    )
    assert columns_apart(CELLS, ("y", "x")) == ((("a", "y"), ("a", "x")), (("b", "y"), ("b", "x")))


def test_differences_are_of_the_seeds_that_both_cells_have() -> None:
    pairs = ((("a", "x"), ("b", "x")), (("a", "y"), ("a", "x")), (("b", "x"), ("a", "y")))
    there = [
        found(("a", "x"), {0: 5, 1: 7, 2: 9}),
        found(("a", "y"), {2: 4, 0: 4}),  # in another order, and without seed 1
        found(("b", "x"), {0: 4, 1: 4, 2: 6}),
    ]
    table = apart_table(scenario(*pairs), there)
    assert table is not None
    assert [row[0] for row in table.rows] == ["a less b, x", "y less x, a", "b, x, less a, y"]
    assert table.rows[0][1:] == ["+23.3", "-5.4 to +52.0", "+10.0, +30.0, +30.0"]
    assert table.rows[1][3] == "-10.0, -50.0"
    assert table.rows[2][3] == "+0.0, +20.0"


def test_nothing_is_told_of_one_seed_or_of_cells_that_are_not_there() -> None:
    pair = (("a", "x"), ("b", "x"))
    one = [found(("a", "x"), {0: 5, 1: 6}), found(("b", "x"), {1: 5, 2: 5})]
    assert apart_table(scenario(pair), one) is None
    assert apart_table(scenario(pair), one[:1]) is None
    assert apart_table(scenario(), one) is None

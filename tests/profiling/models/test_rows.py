import pytest

from smidgen.edge_client.bases.base import BaseError
from smidgen.profiling.instruments.environment import BenchmarkError
from smidgen.profiling.models.cell import Cell
from smidgen.profiling.models.measure import BASES, draw, pick_bases, pick_cells

LIKE = Cell("", "")


def test_the_whole_table_has_eleven_ways_for_each_of_ten_bases() -> None:
    cells = pick_cells(LIKE, pick_bases([], []), [], [])
    assert len(cells) == 10 * 11 and len({str(cell.subject) for cell in cells}) == 110
    assert {cell.adapter for cell in cells if cell.method == "full"} == {"all weights"}


def test_rows_ways_and_budgets_can_be_picked() -> None:
    cells = pick_cells(LIKE, pick_bases(["embedded"], ["embedded"]), ["onnx", "nf4"], ["1G", "1G"])
    assert [cell.name for cell in cells] == ["embedded, nf4", "embedded, onnx 1G"]


def test_a_sample_is_drawn_by_the_seed() -> None:
    cells = pick_cells(LIKE, BASES, [], [])
    some = draw(cells, 6, seed=3)
    assert some == draw(cells, 6, seed=3) != draw(cells, 6, seed=4)
    assert len(some) == 6 and draw(cells, None, 3) == cells
    with pytest.raises(BenchmarkError, match="1 to 110 cells"):
        draw(cells, 111, 3)


def test_a_row_that_is_not_there_is_named() -> None:
    with pytest.raises(BenchmarkError, match="--only gpt-17 is not a row"):
        pick_bases([], ["gpt-17"])
    with pytest.raises(BaseError, match="/no/such/base"):
        pick_bases(["/no/such/base"], [])

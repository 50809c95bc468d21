from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from edge_client.bases.base import Base
from edge_client.tables import render
from simulation.experiments.experiment import Experiment, ExperimentError
from simulation.experiments.result import Result
from simulation.experiments.runner import Place, run
from simulation.papers.labelling.cost import EVERYTHING, PACED, TOGETHER, WAYS, cost
from simulation.papers.labelling.cost_table import UNPACED, cost_table
from simulation.papers.labelling.label_table import label_table
from simulation.papers.labelling.spent import spent, target_of, until
from simulation.papers.scenario import Cell, Measured
from tests.simulation.experiments.test_labelled_runs import EASY, labelled
from tests.simulation.experiments.test_runner import place  # noqa: F401 - a fixture


def measured(name: str, asked: Experiment, *results: Result) -> Measured:
    return Measured(Cell(name, "skewed", asked), results)


def test_the_tables_of_labels_and_of_their_cost(tiny_base: Base, place: Place) -> None:  # noqa: F811
    every = labelled(tiny_base, labelling=replace(EVERYTHING, keep_last=1.0, confidence=0.5))
    paced = labelled(tiny_base, labelling=replace(EASY, infer_every=2))
    plain = replace(every, labelling=None)
    found = [
        measured(UNPACED, every, run(every, place)),
        measured(TOGETHER, paced, run(paced, place)),
        measured("no pseudo-labels", plain, run(plain, place)),
    ]
    table, rows = cost_table(found)
    assert [row["row"] for row in rows] == [UNPACED, TOGETHER, "no pseudo-labels"]
    assert rows[0]["share_of_unpaced"] == 1.0 and rows[0]["reached"] == 1
    assert rows[0]["less_unpaced_by_seed"] == [0.0] and rows[0]["less_unpaced_95"] == []
    assert rows[2]["labelling_share"] == rows[2]["gate_share"] == 0.0
    assert UNPACED in render(table)
    _, held = label_table(found)
    assert [row["round"] for row in held] == [1, 2, 3, 1, 3]  # every 2nd round; none without labels


def test_shares_of_unpaced_are_of_the_same_seed(tiny_base: Base, place: Place) -> None:  # noqa: F811
    asked = [labelled(tiny_base, seed=seed) for seed in (1, 2)]
    results = [run(one, place) for one in asked]
    _, (row,) = cost_table([measured(UNPACED, asked[0], *results)])
    assert row["share_of_unpaced"] == 1.0 and row["share_of_unpaced_95"] == [1.0, 1.0]
    assert row["less_unpaced_95"] == [0.0, 0.0] and row["reached"] == row["seeds"] == 2


def test_what_was_spent_until_the_target_adds_up(tiny_base: Base, place: Place) -> None:  # noqa: F811
    result = run(labelled(tiny_base), place)
    whole = spent(result.rows)
    assert whole.total == sum(row.all_forwards for row in result.rows)
    assert until(result, 0.0) == whole and until(result, 1.1) is None
    assert 0.0 <= target_of(result) <= 1.0 and 0.0 < whole.labelling_share < 1.0


def test_a_row_of_all_but_one_changes_one_thing() -> None:
    rows = {row: way for row, way in WAYS.items() if row.startswith("all but")}
    assert len(rows) == 4
    for row, way in rows.items():
        assert way.labelling is not None and PACED.labelling is not None
        own, all_ = vars(way.labelling), vars(PACED.labelling)
        names = {name for name, value in own.items() if all_[name] != value}
        names |= {
            name for name in ("is_top", "samples", "batch") if vars(way)[name] != vars(PACED)[name]
        }
        assert len(names) == 1 or names == {"keep_first", "keep_last"}, row


@pytest.mark.parametrize("quick", [True, False])
def test_devices_are_of_the_papers_shape(quick: bool) -> None:
    chosen = cost("embedded", "ag_news", "lora:8", quick)
    assert [cell.row for cell in chosen.cells] == ([UNPACED, TOGETHER] if quick else [*WAYS])
    for cell in chosen.cells:
        deal = cell.experiment.deal
        assert deal.labelled / deal.clients < 10
        unlabelled = cell.experiment.train_texts - cell.experiment.gate_texts - deal.labelled
        assert unlabelled / deal.clients > 1000 or quick
    first, second = (cell.experiment for cell in chosen.cells if cell.row in (UNPACED, TOGETHER))
    assert "/top1" in second.adapter and first.cache_bytes == 0 < second.cache_bytes


def test_an_adapter_of_the_top_layers_or_of_none_is_refused() -> None:
    for adapter in ("prompt:8", "lora:8/top1", "head"):
        with pytest.raises(ExperimentError, match="lora:R or bias is expected"):
            cost("embedded", "ag_news", adapter, True)


def test_the_note_on_rounds_holds_with_other_rounds_and_with_fewer() -> None:
    for quick, told in ((False, "6 rounds, the others for 12"), (True, "3 rounds, the others for")):
        chosen = cost("embedded", "ag_news", "lora:8", quick)
        assert told in chosen.notes[-1] and "where --rounds is given" in chosen.notes[-1]
        assert {cell.experiment.rounds for cell in chosen.lasting(4).cells} == {4}

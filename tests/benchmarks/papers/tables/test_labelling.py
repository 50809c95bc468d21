from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from benchmarks.papers.tables.comparisons import FIGURES
from benchmarks.papers.tables.labelling import (
    FES_BATCH,
    UNPACED,
    Spent,
    cost_table,
    label_table,
    spent,
    target_of,
    until,
)
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tables import render
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from smidgen.simulation.experiments.record import Result
from smidgen.simulation.experiments.runner import Place, run
from smidgen.simulation.report.scenario import Cell, Measured
from tests.benchmarks.papers.asked import by_cell, scenario_of
from tests.simulation.experiments.test_labelled_runs import EASY, labelled
from tests.simulation.experiments.test_runner import place  # noqa: F401 - a fixture

COST, TOGETHER = "aug-fedprompt:cost", "all together"


def measured(name: str, asked: Experiment, *results: Result) -> Measured:
    return Measured(Cell(name, "skewed", asked), results)


def test_the_tables_of_labels_and_of_their_cost(tiny_base: Base, place: Place) -> None:  # noqa: F811
    everything = by_cell(scenario_of(COST))[UNPACED, "even labels"].labelling
    assert everything is not None
    every = labelled(tiny_base, labelling=replace(everything, keep_last=1.0, confidence=0.5))
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
    item = measured(UNPACED, result.experiment, result)
    assert FIGURES["layer_forwards"](item, item) == whole.total


def test_a_row_of_all_but_one_changes_one_thing() -> None:
    rows = {row: one for (row, _), one in by_cell(scenario_of(COST)).items()}
    paced = rows[TOGETHER]
    for row, one in rows.items():
        if not row.startswith("all but"):
            continue
        flat, whole = ({**vars(x), **vars(x.labelling), **vars(x.training)} for x in (one, paced))
        names = {name for name in flat if flat[name] != whole[name]} - {"labelling", "training"}
        pairs = ({"keep_first", "keep_last"}, {"adapter", "cache_bytes", "batch", "least_samples"})
        assert len(names) == 1 or names in pairs or names == {"adapter", "cache_bytes"}, row


@pytest.mark.parametrize("words", [("quick",), ()])
def test_devices_are_of_the_papers_shape(words: tuple[str, ...]) -> None:
    chosen = scenario_of(COST, *words)
    assert [cell.row for cell in chosen.cells][:3:2] == [UNPACED, TOGETHER][: 3 - len(words)] or (
        [cell.row for cell in chosen.cells] == [UNPACED, TOGETHER]
    )
    for cell in chosen.cells:
        deal = cell.experiment.deal
        assert deal.labelled / deal.clients <= 8
        unlabelled = cell.experiment.train_texts - cell.experiment.gate_texts - deal.labelled
        assert unlabelled / deal.clients > 1000 or words
    first, second = (cell.experiment for cell in chosen.cells if cell.row in (UNPACED, TOGETHER))
    assert "/top1" in second.adapter and first.cache_bytes == 0 < second.cache_bytes


def test_an_adapter_of_the_top_layers_or_of_none_is_refused() -> None:
    for adapter in ("prompt:8", "lora:8/top1"):
        with pytest.raises(ExperimentError, match="lora:R or bias is expected"):
            scenario_of(COST, adapter=adapter)


def test_the_note_on_rounds_holds_with_other_rounds_and_with_fewer() -> None:
    for words, told in (((), "6 rounds, the others for 12"), (("quick",), "3 rounds, the others ")):
        chosen = scenario_of(COST, *words)
        assert told in chosen.notes[-1] and "where --rounds is given" in chosen.notes[-1]
        assert {cell.experiment.rounds for cell in chosen.lasting(4).cells} == {4}


def test_fes_model_gives_what_its_notebooks_give() -> None:
    layers = 24
    batch = layers * FES_BATCH
    assert Spent(0, 0, 3 * batch, 1, 0).fes_seconds(layers, "full") == 2.0
    assert Spent(batch, batch, 0, 1, 0).fes_seconds(layers, "bias") == 1.0
    assert Spent(0, 0, 0, 1, 5_000_000).fes_kilojoules(10.0) == pytest.approx(
        (12 * 10 + 4 * 5) / 1e3
    )

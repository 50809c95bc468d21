"""The healthcare paper's experiments on a tiny base: put together, run small, told and drawn."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from edge_client.bases.base import Base
from edge_client.personal.interpolation import ALPHAS
from edge_client.wire.training import SGD
from simulation.datasets.silos import NEWS
from simulation.experiments.experiment import Experiment
from simulation.experiments.personal.parts import parts
from simulation.experiments.runner import Place, run_all
from simulation.experiments.stage import stage
from simulation.papers.healthcare.curve import PICTURE, curve, curve_table, draw_curve
from simulation.papers.healthcare.ner import SETS, ner, ner_tables, teachers
from simulation.papers.healthcare.perplexity import ALONE, MEAN, perplexity, perplexity_tables
from simulation.papers.healthcare.personalize import personal_tables, personalize
from simulation.papers.healthcare.search import search, search_table
from simulation.papers.healthcare.setting import (
    CENTRAL_LRS,
    QUICK,
    SERVER_LRS,
    WHOLE,
    Scale,
    central,
    drawn_per_round,
    equal,
    federated,
    sizes_of,
)
from simulation.papers.scenario import Measured, Scenario, measured
from tests.conftest import shared

FEW = Scale(("de", "he"), 2, 1, 2, 0.1, 20, 3)
SEEDS = (0, 1)
SIZES = {"de": 375, "en": 9098, "he": 60}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(shared("data", NEWS).parent, tmp_path / "experiments")


def ran(plan: Scenario, place: Place) -> list[Measured]:
    return measured(plan, SEEDS, run_all(plan.experiments(SEEDS), place))


def together(scale: Scale = WHOLE) -> Experiment:
    return federated("embedded", "full", scale)


def samples(asked: Experiment, sizes: Mapping[str, int]) -> int:
    """Samples that central training sees."""
    return asked.rounds * asked.training.samples_of(sum(sizes.values()))


@pytest.mark.parametrize("scale", [WHOLE, QUICK], ids=["whole", "quick"])
def test_central_training_sees_as_many_samples_as_all_rounds(scale: Scale) -> None:
    silos = together(scale)
    pooled = central(silos, SIZES)
    seen = silos.rounds * drawn_per_round(silos, SIZES)
    assert samples(pooled, SIZES) == pytest.approx(seen, abs=scale.looks)
    assert silos.rounds % scale.looks == 0 and pooled.rounds == scale.looks


def test_only_the_largest_silo_is_throttled_and_draws_far_less_than_it_holds() -> None:
    training = together().training
    assert training.optimizer == SGD and training.epochs == 1
    assert training.samples_of(SIZES["he"]) == training.samples_of(375) == WHOLE.least
    assert 5 * WHOLE.least < training.samples_of(SIZES["en"]) < SIZES["en"] / 20


def test_equal_silos_hold_as_many_texts_as_the_smallest_and_draw_as_many_in_all() -> None:
    level = equal(together(), SIZES)
    drawn = drawn_per_round(level, dict.fromkeys(SIZES, level.train_texts))
    assert level.train_texts == 60
    assert drawn == pytest.approx(drawn_per_round(together(), SIZES), abs=len(SIZES))


def test_every_way_is_told_by_language_and_silos_alone_on_all(
    tiny_base: Base, place: Place
) -> None:
    plan = perplexity(str(tiny_base.folder), "full", FEW, place.data)
    sizes = sizes_of(plan.cells[0].experiment, place.data)
    tables, told = perplexity_tables(ran(plan, place), sizes)
    ways, alone, level, held, printed = tables
    assert [row[0] for row in ways.rows] == ["de", "he", MEAN] and "±" in ways.rows[0][1]
    assert [column.name for column in alone.columns] == ["language", "of de", "of he"]
    assert [row[0] for row in level.rows] == ["de", "he", MEAN] and len(printed.rows) == 9
    assert held.rows[1][:4] == ["he", "20", "1.0", "2"]
    own = told["alone_on_every_language"]["de"]["de"]["by_seed"]
    assert told["perplexity"][f"{ALONE}, skewed sizes"]["de"]["by_seed"] == own
    means = told["perplexity"]["base, skewed sizes"]
    both = math.sqrt(means["de"]["mean"] * means["he"]["mean"])
    assert means[MEAN]["mean"] == pytest.approx(both)


def test_a_curve_goes_by_samples_and_both_ways_begin_alike(tiny_base: Base, place: Place) -> None:
    plan = curve(str(tiny_base.folder), "full", FEW, place.data)
    sizes = sizes_of(plan.cells[0].experiment, place.data)
    found = ran(plan, place)
    table, told = curve_table(found, sizes)
    assert [row[0] for row in table.rows] == ["0", "8"]
    assert told["FL"]["0"] == told["central"]["0"] and told["FL"]["8"] != told["central"]["8"]
    folder = place.out.parent / "told"
    folder.mkdir()
    assert PICTURE in {path.name for path in draw_curve(found, folder, plan.title, sizes)}


def test_rates_are_judged_by_dev_sentences(tiny_base: Base, place: Place) -> None:
    plan = search(str(tiny_base.folder), "full", FEW, place.data)
    tried = {cell.experiment.dataset for cell in plan.cells}
    assert tried == {"silo_texts_dev"} and len(plan.cells) == len(SERVER_LRS) + len(CENTRAL_LRS)
    few = replace(plan, cells=(plan.cells[0], plan.cells[-1]))
    table, told = search_table(ran(few, place))
    first_and_last = [["FL", f"{SERVER_LRS[0]:g}"], ["central", f"{CENTRAL_LRS[-1]:g}"]]
    assert [row[:2] for row in table.rows] == first_and_last
    assert len(told[0]["mean"]) == len(SEEDS)


@pytest.mark.parametrize("adapter", ["full", pytest.param("lora:2", marks=pytest.mark.slow)])
def test_silos_go_on_alone_from_two_beginnings_and_choose_between(
    tiny_base: Base, place: Place, adapter: str
) -> None:
    plan = personalize(str(tiny_base.folder), adapter, FEW, place.data)
    early, late = (cell.experiment for cell in plan.cells)
    assert [part.rounds for part in parts(early).every] == [2, 0]
    assert [part.rounds for part in parts(late).every] == [2]
    found = ran(replace(plan, cells=plan.cells[1:]), place)
    for row in found[0].results[0].rows:
        assert row.between is not None and len(row.between.right) == len(ALPHAS) == 21
        assert row.score is not None and row.score.total.asked >= max(row.between.right)
    (table, printed), told = personal_tables(found)
    assert [row[0] for row in table.rows[:3]] == [row[0] for row in printed.rows]
    assert set(told["begun"]["own after all rounds"]) == {"de", "he"}


def test_taggers_begin_from_what_perplexity_trains_with_seed_0(
    tiny_base: Base, place: Place
) -> None:
    base = str(tiny_base.folder)
    together, pooled, *_ = perplexity(base, "full", FEW, place.data).cells
    asked = [stage(cell.experiment, place.data).key for cell in (together, pooled)]
    after = teachers(base, "full", FEW, place.data)
    assert [stage(one, place.data).key for one in after.values()] == asked


def test_taggers_begin_from_what_silos_trained(tiny_base: Base, place: Place) -> None:
    base = str(tiny_base.folder)
    after = teachers(base, "full", FEW, place.data)
    plan = ner(base, after, "full+head", quick=True)
    assert len(plan.cells) == 4 * len(SETS)
    few = [cell for cell in plan.cells if cell.column == "ner_e3c_clinical"]
    tables, told = ner_tables(ran(replace(plan, cells=tuple(few)), place))
    assert [row[1] for row in tables[0].rows] == [cell.row for cell in few]
    assert [column.name for column in tables[1].columns[2:]] == ["en", "fr"]
    strict = [one["f1_by_seed"][0]["all"]["strict"] for one in told["cells"]]
    assert all(one is None or 0.0 <= one <= 1.0 for one in strict)

"""The healthcare paper's experiments on a tiny base: put together, run small, told and drawn."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from benchmarks.papers.tables.silos import ALONE, MEAN, PICTURE
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.personal.interpolation import ALPHAS
from smidgen.edge_client.wire.training import SGD
from smidgen.simulation.datasets.catalogue import NEWS
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.personalization import parts
from smidgen.simulation.experiments.runner import Place, run_all
from smidgen.simulation.experiments.stage import stage
from smidgen.simulation.report.report import Piece
from smidgen.simulation.report.scenario import Measured, Scenario, measured
from tests.benchmarks.papers.asked import asked, by_cell
from tests.conftest import shared

FEW = {
    "languages": ["de", "he"],
    "rounds": 2,
    "looks": 1,
    "every": 2,
    "least": 2,
    "share": 0.1,
    "train_texts": 20,
    "test_texts": 3,
}
SEEDS = (0, 1)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(shared("data", NEWS).parent, tmp_path / "experiments")


def ran(plan: Scenario, place: Place) -> list[Measured]:
    return measured(plan, SEEDS, run_all(plan.experiments(SEEDS), place))


def few(name: str, base: Base, place: Place, adapter: str = "full", **given: Any) -> Piece:
    """A scenario of two small silos."""
    asked_of = {"base": str(base.folder), "adapter": adapter, **FEW, **given}
    return asked(f"healthcare:{name}", place=place, **asked_of)


def told(piece: Piece, found: list[Measured]) -> tuple[Any, Any]:
    assert piece.more is not None
    return piece.more(found)


@pytest.mark.parametrize("words", [("quick",), ()])
def test_all_ways_see_as_many_samples_and_english_alone_is_throttled(
    words: tuple[str, ...], place: Place
) -> None:
    found = by_cell(asked("healthcare:perplexity", *words, place=place, adapter="full").scenario)
    silos, pooled, level = (
        found[way, sizes]
        for way, sizes in (
            ("FL", "skewed sizes"),
            ("central", "skewed sizes"),
            ("FL", "equal sizes"),
        )
    )
    sizes = {client.name: len(client.labelled) for client in stage(silos, place.data).population}
    drawn = sum(map(silos.training.samples_of, sizes.values()))
    looks = pooled.rounds
    seen = looks * pooled.training.samples_of(sum(sizes.values()))
    assert seen == pytest.approx(silos.rounds * drawn, abs=looks)
    assert silos.rounds % looks == 0 and silos.training.optimizer == SGD
    assert level.train_texts == min(sizes.values()) == sizes["he"]
    level_drawn = len(sizes) * level.training.samples_of(level.train_texts)
    assert level_drawn == pytest.approx(drawn, abs=len(sizes))
    if not words:
        draws = silos.training.samples_of
        assert draws(sizes["he"]) == draws(375) == 4
        assert 20 < draws(sizes["en"]) < sizes["en"] / 20


def test_every_way_is_told_by_language_and_silos_alone_on_all(
    tiny_base: Base, place: Place
) -> None:
    piece = few("perplexity", tiny_base, place)
    tables, plain = told(piece, ran(piece.scenario, place))
    ways, alone, level, held, printed = tables
    assert [row[0] for row in ways.rows] == ["de", "he", MEAN] and "±" in ways.rows[0][1]
    assert [column.name for column in alone.columns] == ["language", "of de", "of he"]
    assert [row[0] for row in level.rows] == ["de", "he", MEAN] and len(printed.rows) == 9
    assert held.rows[1][:4] == ["he", "20", "1.0", "2"]
    own = plain["alone_on_every_language"]["de"]["de"]["by_seed"]
    assert plain["perplexity"][f"{ALONE}, skewed sizes"]["de"]["by_seed"] == own
    means = plain["perplexity"]["base, skewed sizes"]
    both = math.sqrt(means["de"]["mean"] * means["he"]["mean"])
    assert means[MEAN]["mean"] == pytest.approx(both)


def test_a_curve_goes_by_samples_and_both_ways_begin_alike(tiny_base: Base, place: Place) -> None:
    piece = few("curve", tiny_base, place)
    found = ran(piece.scenario, place)
    table, plain = told(piece, found)
    assert [row[0] for row in table.rows] == ["0", "8"]
    assert plain["FL"]["0"] == plain["central"]["0"]
    assert plain["FL"]["8"] != plain["central"]["8"]
    folder = place.out.parent / "told"
    folder.mkdir()
    assert PICTURE in {path.name for path in piece.drawn(found, folder, piece.scenario.title)}


def test_rates_are_judged_by_dev_sentences(tiny_base: Base, place: Place) -> None:
    piece = few("search", tiny_base, place)
    plan = piece.scenario
    tried = {cell.experiment.dataset for cell in plan.cells}
    assert tried == {"silo_texts_dev"} and len(plan.cells) == 4 + 5
    table, plain = told(piece, ran(replace(plan, cells=(plan.cells[0], plan.cells[-1])), place))
    assert [row[:2] for row in table.rows] == [["FL", "0.0001"], ["central", "0.001"]]
    assert len(plain[0]["mean"]) == len(SEEDS)


@pytest.mark.parametrize("adapter", ["full", pytest.param("lora:2", marks=pytest.mark.slow)])
def test_silos_go_on_alone_from_two_beginnings_and_choose_between(
    tiny_base: Base, place: Place, adapter: str
) -> None:
    piece = few("personalize", tiny_base, place, adapter, every=0, epochs=1)
    plan = piece.scenario
    early, late = (cell.experiment for cell in plan.cells)
    assert [part.rounds for part in parts(early).every] == [2, 0]
    assert [part.rounds for part in parts(late).every] == [2]
    found = ran(replace(plan, cells=plan.cells[1:]), place)
    for row in found[0].results[0].rows:
        assert row.between is not None and len(row.between.right) == len(ALPHAS) == 21
        assert row.score is not None and row.score.total.asked >= max(row.between.right)
    (table, printed), plain = told(piece, found)
    assert [row[0] for row in table.rows[:3]] == [row[0] for row in printed.rows]
    assert set(plain["begun"]["own after all rounds"]) == {"de", "he"}


def test_taggers_begin_from_what_perplexity_trains_with_seed_0(
    tiny_base: Base, place: Place
) -> None:
    together, pooled, *_ = few("perplexity", tiny_base, place).scenario.cells
    keys = [stage(cell.experiment, place.data).key for cell in (together, pooled)]
    cells = few("ner", tiny_base, place, draws=2, samples=8).scenario.cells
    teachers = dict.fromkeys(one for cell in cells if (one := cell.experiment.taught))
    assert [stage(one, place.data).key for one in teachers] == keys


def test_taggers_begin_from_what_silos_trained(tiny_base: Base, place: Place) -> None:
    piece = asked(
        "healthcare:ner", "quick", place=place, base=str(tiny_base.folder), adapter="full"
    )
    assert len(piece.scenario.cells) == 4 * 4
    small = [cell for cell in piece.scenario.cells if cell.column == "ner_e3c_clinical"]
    begun = [replace(cell, experiment=_of_few(cell.experiment)) for cell in small]
    tables, plain = told(piece, ran(replace(piece.scenario, cells=tuple(begun)), place))
    assert [row[1] for row in tables[0].rows] == [cell.row for cell in small]
    assert [column.name for column in tables[1].columns[2:]] == ["en", "fr"]
    strict = [one["f1_by_seed"][0]["all"]["strict"] for one in plain["cells"]]
    assert all(one is None or 0.0 <= one <= 1.0 for one in strict)


def _of_few(asked_of: Experiment) -> Experiment:
    """An experiment whose teacher has few silos and rounds."""
    teacher = asked_of.taught
    if teacher is None:
        return asked_of
    short = replace(teacher.training, least_samples=2, sample_share=0.0)
    rounds = min(2, teacher.rounds)
    cut = replace(teacher, languages=("de", "he"), training=short, rounds=rounds)
    return replace(asked_of, taught=replace(cut, train_texts=20, test_texts=3))

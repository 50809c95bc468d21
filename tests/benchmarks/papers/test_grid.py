"""Scenarios of files: a grid of overrides, and each scenario what it was when results were kept."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from benchmarks.papers.grid import Names, filled, grid_of, laid_over
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.edge_client.updates.settings import Updates
from smidgen.simulation.datasets.catalogue import NEWS
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from smidgen.simulation.experiments.runner import Place
from tests.benchmarks.papers.asked import (
    AUG_NAMES,
    MFPT_NAMES,
    SETS,
    asked,
    by_cell,
    digest,
    scenario_of,
)
from tests.conftest import shared

KNOWN = Path(__file__).parent / "scenarios.json"
SIZES = ("quick", "whole", "listed")
SILOS = ("perplexity", "curve", "personalize", "ner", "search")
OWN = ("masakhanews", "unseen", "budgets", "xnli")
COMPARED = (
    *("mixed-ranks", "server-learning", "selections", "traffic-accuracy", "adapter-forms"),
    *("interpolate", "instructions", "few-labels", "one-place"),
)
ASKED = [
    *(f"aug-fedprompt:{n} {of} {size}" for n in AUG_NAMES for of in SETS for size in SIZES),
    *(
        f"aug-fedprompt:{n} {of} {size}"
        for n in ("cost", "cloze-gap")
        for of in SETS
        for size in SIZES[:2]
    ),
    *(f"mfpt:{name} {size}" for name in MFPT_NAMES for size in SIZES[:2]),
    *(f"fedp2eft:{name} {size}" for name in OWN for size in SIZES[:2]),
    *(f"healthcare:{name} {size}" for name in SILOS for size in SIZES[:2]),
    *(f"comparisons:{name} {size}" for name in COMPARED for size in SIZES[:2]),
]


@pytest.mark.parametrize("line", ASKED)
def test_a_scenario_asks_what_it_did_when_its_results_were_kept(line: str, tmp_path: Path) -> None:
    name, *words = line.split()
    given = {"dataset": words[0]} if len(words) > 1 else {}
    place = Place(None, tmp_path / "experiments")
    if name.startswith("healthcare"):
        place = replace(place, data=shared("data", NEWS).parent)
        given = {"adapter": "full"}
    found = scenario_of(name, *words, place=place, **given)
    assert digest(found) == json.loads(KNOWN.read_text())[line]


def test_a_text_that_is_a_variable_becomes_its_value_and_others_are_filled() -> None:
    names = Names(count=1000, told="{count:,} texts", many=["{count}"])
    assert filled("{count}", names) == 1000 and filled("{many}", names) == [1000]
    assert filled({"a": "{told}, {{text}}"}, names) == {"a": "1,000 texts, {text}"}


def test_tables_are_laid_over_key_by_key_and_lists_as_a_whole() -> None:
    under = {"a": {"b": 1, "c": [1, 2]}, "d": 3}
    assert laid_over(under, {"a": {"c": [3]}}) == {"a": {"b": 1, "c": [3]}, "d": 3}


def test_an_experiment_that_makes_no_sense_is_told_in_one_line() -> None:
    with pytest.raises(ExperimentError, match=r"adapter .lora:0"):
        asked("aug-fedprompt:table2", adapter="lora:0")
    with pytest.raises(ExperimentError, match="give it without a head"):
        asked("aug-fedprompt:fig2", adapter="lora:8+head")


def test_later_words_go_before_earlier_ones() -> None:
    _, names = grid_of("aug-fedprompt", "fig4", {}, ("quick", "mnli"))
    assert names["shots"] == [64] and names["tokens"] == 96 and names["test_texts"] == 100


def test_every_cell_of_a_scenario_is_an_experiment_of_its_own() -> None:
    for line in ASKED:
        name, *words = line.split()
        if name.startswith("healthcare") or name.endswith("cloze-gap"):  # heads are asked by none
            continue
        given = {"dataset": words[0]} if len(words) > 1 else {}
        cells = scenario_of(name, *words, **given).cells
        assert len({cell.experiment for cell in cells}) == len(cells) > 1, line


def test_codecs_differ_in_what_travels_alone() -> None:
    cells = scenario_of("comparisons:traffic-accuracy", "down").cells
    assert len({str(replace(cell.experiment, updates=Updates())) for cell in cells}) == 1
    assert [cell.experiment.updates.up for cell in cells if cell.column == "up"] == [
        *("float32", "int8", "int4", "topk:0.01")
    ]
    both = [cell for cell in cells if cell.column == "both"]
    assert [cell.experiment.updates for cell in both] == [
        Updates(cell.row, cell.row) for cell in both
    ]


def test_forms_of_lora_differ_in_adapter_rate_and_codec_alone() -> None:
    found = scenario_of("comparisons:adapter-forms")
    assert len(found.cells) == 2 * 2 * 4 and found.cells[0].row == "lora:8, float32"
    alike = set()
    for one in (cell.experiment for cell in found.cells):
        training = replace(one.training, lr=1.0)
        alike.add(str(replace(one, adapter="lora:8", updates=Updates(), training=training)))
    assert len(alike) == 2  # data sets


def test_policies_differ_in_whom_they_ask_and_stand_where_they_can_differ() -> None:
    found = scenario_of("comparisons:selections")
    columns = {row: [c.column for c in found.cells if c.row == row] for row, _ in by_cell(found)}
    assert columns["random"] == columns["utility"] and len(columns["random"]) == 5
    assert columns["coverage"] == [one for one in columns["random"] if "pseudo-labels" in one]
    for column in columns["random"]:
        here = [cell.experiment for cell in found.cells if cell.column == column]
        assert len({str(replace(one, learning=Learning())) for one in here}) == 1


def test_every_mean_meets_every_forged_update_and_nobody_else_resists(tmp_path: Path) -> None:
    place = Place(None, tmp_path / "experiments")
    cells = scenario_of("comparisons:attacks-by-mean", place=place).cells
    assert len(cells) == 6 * 4
    for cell in cells:
        one = cell.experiment
        assert one.learning.mean == cell.column and one.hostile and one.hostile.attack == cell.row
        assert not one.is_guarded and one.norm_bound == one.max_examples == 0


def test_ranks_need_a_mean_that_knows_them() -> None:
    with pytest.raises(ExperimentError, match="lora_mean `product`"):
        Experiment("e", "ag_news", ranks=(4, 8))
    cells = scenario_of("comparisons:mixed-ranks", "quick").cells
    assert {cell.experiment.deal.alpha for cell in cells} == {math.inf, 0.5}
    with pytest.raises(ExperimentError, match="ranks: 1 to 16"):
        replace(cells[4].experiment, ranks=(4, 32))

"""Scenarios as commands ask for them, without a command."""

import hashlib
import json
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from benchmarks.papers.pieces import piece_of
from smidgen.edge_client.tasks.ready_tasks import NEWS
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.runner import Place
from smidgen.simulation.report.report import Piece
from smidgen.simulation.report.scenario import Scenario

NOWHERE = Place(None, Path(mkdtemp()) / "experiments")  # a scenario may write texts beside it
SETS = ("ag_news", "mnli", "yahoo_answers", "yelp_review_full")
AUG_NAMES = ("table2", "fig2", "fig4", "fig5", "rates")
MFPT_NAMES = (*("masakhanews", "nc", "xnli", "data-efficiency", "distance", "lengths", "stopping"),)


def asked(name: str, *words: str, place: Place = NOWHERE, **given: Any) -> Piece:
    """A scenario by `PAPER:NAME`, of the embedded base where nothing else is given."""
    paper, _, scenario = name.partition(":")
    usual: dict[str, Any] = {"base": "embedded"}
    if paper == "aug-fedprompt":
        usual |= {"adapter": "lora:8", "dataset": "ag_news", "factor": (), "beside": ()}
    if scenario == "few-labels":
        usual |= {"dataset": "ag_news", "labels": 64}
    if paper == "fedp2eft":
        usual |= {"rank": 2, "lr": 5e-3}
    usual |= given
    words = (*words, usual.get("dataset", ""))
    return piece_of(paper, scenario, place, words, **usual)


def scenario_of(name: str, *words: str, **given: Any) -> Scenario:
    return asked(name, *words, **given).scenario


def by_cell(scenario: Scenario) -> dict[tuple[str, str], Experiment]:
    return {cell.name: cell.experiment for cell in scenario.cells}


def digest(scenario: Scenario) -> str:
    """Names a scenario by all that it says, and by all that its results hang on."""
    cells = [
        [
            *(*cell.name, *_keys(cell.experiment), cell.is_fixed, cell.of_languages, cell.language),
            *(str(cell.published), sorted(map(str, cell.published_by_language.values()))),
        ]
        for cell in scenario.cells
    ]
    said = [scenario.name, scenario.title, scenario.notes, scenario.source, scenario.pairs, cells]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _keys(one: Experiment) -> list[str]:
    """What its results hang on, and those of its teacher."""
    every = [one, *([one.taught] if one.taught else [])]
    keys = [each.key("base", "texts", NEWS, "onnx") for each in every]
    return [Path(one.base).name, one.name, str(one.seed), *keys]

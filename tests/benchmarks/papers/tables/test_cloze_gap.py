"""Cloze and a head in settings that differ in one thing each: what is asked, and what is told."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from benchmarks.papers.pieces import factors_of, printed_gaps
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tables import Table, render
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.runner import run_all
from smidgen.simulation.report.scenario import Cell, Scenario, measured
from tests.benchmarks.papers.asked import SETS, asked, by_cell
from tests.conftest import shared
from tests.simulation.experiments.test_runner import news, place_in

SEEDS = (0, 1)
REFERENCE, HEAD, CLOZE = "reference", "FedCLS (head)", "FedPrompt (cloze)"


def cloze_gap(
    dataset: str, quick: bool = False, factors: Sequence[str] = (), others: Sequence[str] = ()
) -> Scenario:
    words = ("quick",) if quick else ()
    return asked(
        "aug-fedprompt:cloze-gap", *words, dataset=dataset, factor=factors, beside=others
    ).scenario


def differences(one: Experiment, other: Experiment) -> set[str]:
    """Where two experiments differ; of the parts of a deal and of training each counts."""

    def flat(said: Experiment) -> dict[str, Any]:
        return vars(said) | vars(said.training) | vars(said.deal)

    parts = {"training", "deal"}
    return {name for name, value in flat(one).items() if flat(other)[name] != value} - parts


@pytest.mark.parametrize("factor", factors_of())
def test_every_setting_differs_from_the_reference_in_one_thing(factor: str) -> None:
    found = by_cell(cloze_gap("ag_news", False, [factor]))
    for row in dict.fromkeys(row for row, _ in found if row != REFERENCE):
        name = row.removeprefix(f"{factor}: ")
        changed = [differences(found[row, kind], found[REFERENCE, kind]) for kind in (CLOZE, HEAD)]
        names = set.union(*changed)
        rates = {"lr"} if "weights" in factor else set()  # the same rate for both is its subject
        bare = {"rounds"} if name == "head alone" else set()  # cloze is not trained then
        assert len(names - rates - bare) == 1, names


def test_cloze_and_head_of_a_setting_share_all_but_what_is_trained() -> None:
    found = by_cell(cloze_gap("yahoo_answers", False, ["labels"], ["folder/other"]))
    assert (f"base: {'other'}", HEAD) in found
    for (setting, kind), one in found.items():
        if kind == HEAD:
            assert differences(one, found[setting, CLOZE]) == {"adapter", "lr"}


def test_quick_asks_less() -> None:
    few, all_ = cloze_gap("ag_news", True), cloze_gap("ag_news", False)
    assert len(few.cells) < len(all_.cells) / 2
    assert few.cells[0].experiment.rounds < all_.cells[0].experiment.rounds


def test_patterns_of_one_text_are_left_out_of_sets_of_two() -> None:
    rows = {row for row, _ in by_cell(cloze_gap("mnli", False))}
    all_rows = {row for row, _ in by_cell(cloze_gap("ag_news", False))}
    assert {row.partition(":")[0] for row in all_rows - rows} == {"pattern"} and rows < all_rows
    with pytest.raises(WrongInput, match="factor=pattern: its patterns ask one text, and mnli h"):
        cloze_gap("mnli", False, ["pattern"])


def test_rows_of_rounds_keep_their_own() -> None:
    found = by_cell(cloze_gap("ag_news", False, ["rounds", "epochs"]).lasting(3))
    by_row = {row: asked.rounds for (row, _), asked in found.items()}
    assert by_row == {REFERENCE: 3, "rounds: 5": 5, "rounds: 10": 10, "epochs: 1": 3}


def test_gaps_are_paired_by_seed_above_the_published_ones(tiny_base: Base, tmp_path: Path) -> None:
    cloze = replace(news(tiny_base, rounds=1), evaluate_every=0)
    head = replace(cloze, adapter="lora:2+head")
    cells = [
        Cell(setting, kind, replace(one, dataset="masakhanews", training=training))
        for setting, training in (
            (REFERENCE, cloze.training),
            ("rate: /10", replace(cloze.training, lr=cloze.training.lr / 10)),
        )
        for kind, one in ((HEAD, head), (CLOZE, cloze))
    ]
    chosen = Scenario("small", "title", tuple(cells), ())
    found = measured(chosen, SEEDS, run_all(chosen.experiments(SEEDS), place_in(tmp_path)))
    more = asked("aug-fedprompt:cloze-gap").more
    assert more is not None
    table, told = more(found)
    assert isinstance(table, Table)
    assert [one["setting"] for one in told] == [REFERENCE, "rate: /10"]
    pairs = zip(found[1].results, found[0].results, strict=True)
    assert told[0]["gap_by_seed"] == [one.accuracy - two.accuracy for one, two in pairs]
    shown = render(table)
    assert "87.0±0.8" in shown and "+20.9" in shown and "/10" in shown


@pytest.mark.parametrize("dataset", SETS)
def test_every_data_set_has_published_gaps(dataset: str) -> None:
    lines = printed_gaps(dataset)
    assert len(lines) == 5 and all(len(cells) == 10 for cells in lines)


@pytest.mark.slow
def test_the_command_ends_in_one_object(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "benchmarks", "paper", "aug-fedprompt:cloze-gap", "--quick"]
    more = [
        "factor=epochs",
        "--json",
        "--rounds",
        "1",
        "--data",
        str(shared("data", "ag_news").parent),
    ]
    done = subprocess.run(
        [*line, *more, "--out", str(tmp_path)], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert [one["setting"] for one in told["more"]] == [REFERENCE, "epochs: 1"]

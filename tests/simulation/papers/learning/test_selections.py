"""Policies beside random on the same texts: what is asked, and what differs from random's."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from coordinator.rounds.learning.settings import Learning
from edge_client.bases.base import Base
from edge_client.tables import render
from simulation.experiments.runner import run_all
from simulation.papers.learning.selections import (
    COVERAGE,
    POLICIES,
    PSEUDO,
    RANDOM,
    SPLITS,
    UTILITY,
    early,
    early_table,
    selections,
)
from simulation.papers.scenario import Cell, Scenario, measured
from simulation.population.deal import Deal
from tests.conftest import shared
from tests.simulation.experiments.test_runner import news, place_in

SEEDS = (0, 1)


def test_every_policy_is_asked_wherever_it_can_differ_from_random() -> None:
    cells = selections("embedded", quick=False).cells
    rows = {row: {cell.column for cell in cells if cell.row == row} for row in POLICIES}
    assert rows[RANDOM] == rows[UTILITY] == set(SPLITS)
    assert rows[COVERAGE] == {split for split in SPLITS if split.endswith(PSEUDO)}
    assert all(cell.experiment.learning.selection == cell.row for cell in cells)
    for split in SPLITS:
        asked = [cell.experiment for cell in cells if cell.column == split]
        assert len({str(replace(one, learning=Learning())) for one in asked}) == 1
    fewer = selections("embedded", True, [COVERAGE]).cells
    assert list(dict.fromkeys(cell.row for cell in fewer)) == [RANDOM, COVERAGE]


def test_coverage_draws_as_random_does_where_all_hold_labels(
    tiny_base: Base, tmp_path: Path
) -> None:
    plain = replace(news(tiny_base, deal=Deal(clients=4), rounds=2), cohort=2)
    plain = replace(plain, evaluate_every=0, test_texts=1)
    names = (RANDOM, COVERAGE, UTILITY)
    asked = [replace(plain, name=one, learning=Learning(selection=one)) for one in names]
    ends = [found.rows[-1].adapter_sha256 for found in run_all(asked, place_in(tmp_path))]
    assert len(set(ends[:-1])) == 1 and ends[-1] != ends[0]


def test_differences_from_random_are_paired_by_seed_early_and_in_the_end(
    tiny_base: Base, tmp_path: Path
) -> None:
    plain = replace(news(tiny_base, deal=Deal(clients=4), rounds=2), cohort=2)
    cells = [
        Cell(row, "even", replace(plain, learning=Learning(selection=row)))
        for row in (RANDOM, UTILITY)
    ]
    chosen = Scenario("small", "title", tuple(cells), ())
    found = measured(chosen, SEEDS, run_all(chosen.experiments(SEEDS), place_in(tmp_path)))
    table, told = early_table(found)
    assert [one["policy"] for one in told] == [RANDOM, UTILITY]
    assert told[0]["difference_by_seed"] == told[0]["early_difference_by_seed"] == [0.0, 0.0]
    pairs = zip(found[1].results, found[0].results, strict=True)
    assert told[1]["difference_by_seed"] == [a.accuracy - b.accuracy for a, b in pairs]
    assert told[1]["early"] == told[1]["accuracy"]  # the last of fewer rounds than five
    assert UTILITY in render(table)


def test_the_early_round_is_the_fifth(tiny_base: Base, tmp_path: Path) -> None:
    [result] = run_all([news(tiny_base, rounds=6)], place_in(tmp_path))
    assert early(result) == dict(result.curve())[5].accuracy


@pytest.mark.slow
def test_the_command_plays_it_quickly(tiny_base: Base, tmp_path: Path) -> None:
    data = shared("data", "ag_news").parent
    line = [sys.executable, "-m", "smidgen", "simulate", "selections", "--quick", "--rounds", "1"]
    more = ["--selection", COVERAGE, "--base", str(tiny_base.folder), "--data", str(data)]
    more += ["--out", str(tmp_path), "--json"]
    done = subprocess.run([*line, *more], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert {cell["row"] for cell in told["cells"]} == {RANDOM, COVERAGE}
    assert len(told["more"]) == len(told["cells"]) == len(SPLITS) + 2

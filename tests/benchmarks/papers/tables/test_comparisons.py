"""Methods beside one of them on the same texts: differences by seed, and what tables say."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from benchmarks.papers.grid import asked_of, read_file
from benchmarks.papers.tables.comparisons import BEHIND, best_kept, early, losses, reached, within
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tables import Table, render
from smidgen.edge_client.updates.settings import Updates
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.hostile import ATTACKS
from smidgen.simulation.experiments.record import Result, Row
from smidgen.simulation.experiments.runner import Place, run_all
from smidgen.simulation.experiments.scoring import Score, Tally
from smidgen.simulation.population.deal import Deal
from smidgen.simulation.report.scenario import Cell, Measured, Scenario, measured
from tests.benchmarks.papers.asked import asked, by_cell
from tests.conftest import shared
from tests.simulation.experiments.test_runner import news, place_in

SEEDS = (0, 1)


def ran(folder: Path, rows: dict[tuple[str, str], Experiment]) -> list[Measured]:
    cells = tuple(Cell(*name, one) for name, one in rows.items())
    chosen = Scenario("small", "title", cells, ())
    return measured(chosen, SEEDS, run_all(chosen.experiments(SEEDS), place_in(folder)))


def told(name: str, found: list[Measured]) -> tuple[Table, list[dict[str, Any]]]:
    more = asked(f"comparisons:{name}").more
    assert more is not None
    table, plain = more(found)
    assert isinstance(table, Table)
    return table, plain


def test_rounds_to_fedavgs_accuracy_are_told_beside_differences_by_seed(
    tiny_base: Base, tmp_path: Path
) -> None:
    plain = news(tiny_base, rounds=2)
    scaffold = replace(plain.training, optimizer="sgd", scaffold=True)
    adam = Learning(optimizer="fedadam", lr=3e-3)
    rows = {
        ("FedAvg", "even"): plain,
        ("FedAdam", "even"): replace(plain, learning=adam),
        ("SCAFFOLD", "even"): replace(plain, training=scaffold),
    }
    found = ran(tmp_path, rows)
    table, lines = told("server-learning", found)
    assert [one["method"] for one in lines] == ["FedAvg", "FedAdam", "SCAFFOLD"]
    target = found[0].accuracy()[0] - BEHIND
    assert all(one["target"] == target for one in lines)
    assert lines[0]["difference_by_seed"] == [0.0, 0.0]
    for one, item in zip(lines, found, strict=True):
        assert one["rounds_by_seed"] == [reached(result, target) for result in item.results]
    assert "FedAdam" in render(table)
    # SCAFFOLD's devices send no more than others and receive the control variate too.
    assert lines[2]["bytes_down"] > lines[0]["bytes_down"]


def test_the_best_round_is_chosen_by_some_clients_and_told_by_the_others() -> None:
    def row(index: int, first: int, second: int) -> Row:
        own = {"a": Tally(first, 9), "b": Tally(second, 9)}
        scored = Score(Tally(first + second, 18), None, {}, own, Tally(index, 4))
        return Row(
            arm="",
            round_index=index,
            clients=1,
            adapter_sha256="sha",
            evaluated=index,
            score=scored,
        )

    result = Result(Experiment("small", "ag_news"), (row(0, 3, 8), row(1, 7, 5), row(2, 6, 9)))
    assert best_kept(result) == 5 / 9  # and not the 9 of 9 that "a" does not know of
    assert result.balanced == 2 / 4
    unknown = replace(result.rows[0], score=Score(Tally(1, 2), None, {}, {}))
    old = replace(result, rows=(unknown,))
    assert best_kept(old) is None and old.balanced is None


def test_each_homes_loss_is_that_of_the_one_adapter_or_of_its_own() -> None:
    def row(arm: str, index: int, loss: float, **own: float) -> Row:
        scored = Score(Tally(1, 2), loss, {}, {}, losses_by_client=own)
        return Row(
            arm=arm,
            round_index=index,
            clients=1,
            adapter_sha256="sha",
            evaluated=index,
            score=scored,
        )

    experiment = Experiment("small", "ag_news")
    together = Result(experiment, (row("", 0, 3.0, a=4.0, b=2.0), row("", 2, 1.5, a=2.0, b=1.0)))
    each = [row(name, at, 4.0 - at, **{name: 4.0 - at}) for name in "ab" for at in (0, 2)]
    alone = Result(experiment, tuple(each))
    assert losses(together, is_first=True) == {"a": 4.0, "b": 2.0}
    assert losses(together) == {"a": 2.0, "b": 1.0}
    assert losses(alone, is_first=True) == {"a": 4.0, "b": 4.0}
    assert losses(alone) == {"a": 2.0, "b": 2.0}


def test_a_target_that_no_round_reaches_is_none(tiny_base: Base, tmp_path: Path) -> None:
    [result] = run_all([news(tiny_base, rounds=6)], place_in(tmp_path))
    assert reached(result, 2.0) is None and reached(result, 0.0) == 0
    assert early(result) == dict(result.curve())[5].accuracy


def test_differences_are_paired_by_seed_beside_the_bytes_that_were_sent(
    tiny_base: Base, tmp_path: Path
) -> None:
    plain = news(tiny_base, rounds=2)
    codecs = ("float32", "int8", "int4", "topk:0.01")
    rows = {(codec, "up"): replace(plain, updates=Updates(codec)) for codec in codecs}
    rows["int4", "both"] = replace(plain, updates=Updates("int4", "int4"))
    found = ran(tmp_path, rows)
    table, lines = told("traffic-accuracy", found)
    assert lines[0]["difference_by_seed"] == [0.0, 0.0] and lines[0]["is_within"] == "yes"
    assert lines[0]["share_up"] == lines[0]["share_down"] == 1.0
    shares = [one["share_up"] for one in lines]
    assert shares[:4] == sorted(shares[:4], reverse=True) and shares[1] < 0.35  # tiny adapter
    assert shares[4] == shares[2]
    assert [one["share_down"] for one in lines[:4]] == [1.0] * 4 and lines[4]["share_down"] < 1.0
    for one, item in zip(lines, found, strict=True):
        pairs = zip(item.results, found[0].results, strict=True)
        assert one["difference_by_seed"] == [a.accuracy - b.accuracy for a, b in pairs]
    assert "topk:0.01" in render(table)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((-0.004, 0.02), "yes"),
        ((-0.006, 0.02), "not shown"),
        ((-0.02, -0.006), "no"),
        ((-math.inf, math.inf), "not shown"),
    ],
)
def test_half_a_point_counts_as_shown_only_where_the_interval_allows(
    ends: tuple[float, float], said: str
) -> None:
    assert within(*ends) == said


def test_a_point_is_twice_half_a_point() -> None:
    assert [within(low, 0.0, BEHIND) for low in (-0.009, -0.011)] == ["yes", "not shown"]
    assert within(-0.03, -0.011, BEHIND) == "no"


def test_coverage_draws_as_random_does_where_all_hold_labels(
    tiny_base: Base, tmp_path: Path
) -> None:
    plain = replace(news(tiny_base, deal=Deal(clients=4), rounds=2), cohort=2)
    plain = replace(plain, evaluate_every=0, test_texts=1)
    names = ("random", "coverage", "utility")
    every = [replace(plain, name=one, learning=Learning(selection=one)) for one in names]
    ends = [found.rows[-1].adapter_sha256 for found in run_all(every, place_in(tmp_path))]
    assert len(set(ends[:-1])) == 1 and ends[-1] != ends[0]


def test_differences_from_random_are_paired_by_seed_early_and_in_the_end(
    tiny_base: Base, tmp_path: Path
) -> None:
    plain = replace(news(tiny_base, deal=Deal(clients=4), rounds=2), cohort=2)
    rows = {
        (name, "even"): replace(plain, learning=Learning(selection=name))
        for name in ("random", "utility")
    }
    found = ran(tmp_path, rows)
    table, lines = told("selections", found)
    assert [one["policy"] for one in lines] == ["random", "utility"]
    assert lines[0]["difference_by_seed"] == lines[0]["early_difference_by_seed"] == [0.0, 0.0]
    pairs = zip(found[1].results, found[0].results, strict=True)
    assert lines[1]["difference_by_seed"] == [a.accuracy - b.accuracy for a, b in pairs]
    assert lines[1]["early"] == lines[1]["accuracy"]  # the last of fewer rounds than five
    assert "utility" in render(table)


@pytest.mark.slow
def test_the_command_plays_it_quickly(tiny_base: Base, tmp_path: Path) -> None:
    data = shared("data", "ag_news").parent
    line = [sys.executable, "-m", "benchmarks", "paper", "comparisons:selections", "--quick"]
    more = [
        "policy=coverage",
        "--rounds",
        "1",
        "--base",
        str(tiny_base.folder),
        "--data",
        str(data),
    ]
    more += ["--out", str(tmp_path), "--json"]
    done = subprocess.run([*line, *more], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert {cell["row"] for cell in said["cells"]} == {"random", "coverage"}
    assert len(said["more"]) == len(said["cells"]) == 5 + 2


def test_what_others_are_held_against_stays_whatever_is_chosen() -> None:
    _, only = asked_of("comparisons", "attacks", ["attack=noise", "attack=huge"])
    assert only == {"attack": ["absent", "noise", "huge"]}
    with pytest.raises(
        WrongInput, match="'attack=noise': NAME=VALUE is expected, NAME one of: non"
    ):
        asked_of("comparisons", "attacks-by-mean", ["attack=noise"])
    rows = {cell.row for cell in asked("comparisons:attacks", only=only).scenario.cells}
    assert rows == set(only["attack"])


def test_every_attack_is_in_a_table() -> None:
    attacks = read_file("comparisons")[0]["scenarios"]["attacks"]["vars"]["attacks"]
    assert {*attacks, "labels"} == {*ATTACKS}  # that one has a table of its own


@pytest.mark.slow
def test_a_median_of_real_updates_outlives_two_that_are_scaled(tmp_path: Path) -> None:
    place = Place(None, tmp_path / "out" / "experiments")
    chosen = by_cell(asked("comparisons:attacks-by-mean", place=place).scenario)
    few = [
        replace(chosen["scaled", mean], rounds=1, test_texts=60) for mean in ("fedavg", "median")
    ]
    spoilt, sound = run_all(few, place)
    assert sound.accuracy >= spoilt.accuracy
    assert all(not row.trouble for row in sound.rows)

"""Rounds beside a slow device on a virtual clock: `python -m benchmarks waiting`, small."""

import json

import pytest

pytest.importorskip("torch")

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.comparisons.clocked import clocked, replayed
from benchmarks.comparisons.waiting import WAYS, Asked, homes, run
from smidgen.simulation.demo.messages import TASK
from smidgen.simulation.experiments.federation.devices import Rounds
from smidgen.simulation.experiments.hostile import Attack, Hostile
from smidgen.simulation.experiments.stage import Stage
from smidgen.simulation.experiments.virtual.devices import InProcess
from tests import command_line
from tests.breadth import first_fast

ASKED = Asked(clients=3, slower=6.0, rounds=1, labelled=4, tests=2, seeds=1)


@pytest.fixture(scope="module")
def stage() -> Stage:
    return homes(ASKED, 0)


@pytest.fixture(scope="module")
def devices(stage: Stage) -> Iterator[InProcess]:
    opened = InProcess(stage)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", first_fast(list(WAYS)))
def test_a_run_is_the_same_again_and_so_is_its_replay(
    stage: Stage, devices: InProcess, name: str
) -> None:
    first, again = (run(name, stage, devices, ASKED, 6.0) for _ in range(2))
    assert first.is_replayed
    assert first.told.journal == again.told.journal
    assert first.told.adapter == again.told.adapter


@pytest.mark.parametrize("attack", ["absent", "together", "huge"])
def test_liars_that_answer_at_once_are_replayed_too(
    stage: Stage, devices: InProcess, attack: Attack
) -> None:
    hostile = Hostile(1, attack)
    liars, names = hostile.names(stage.population), [one.name for one in stage.population]
    rounds = Rounds(rounds=9, seed=0, training=stage.experiment.training, hostile=hostile)
    rounds = replace(rounds, labels=TASK.labels, is_guarded=True, norm_bound="adaptive")
    rounds = replace(rounds, fraction=2 / 3, over_selection=1.5, max_examples="adaptive")
    takes_s = dict.fromkeys(names, 1.0) | dict.fromkeys(liars, 0.01)
    told = clocked(
        *(rounds, stage.template(), devices, names, takes_s, 3.0, lambda _: (0.0, 0.0)),
        forgers=liars,
    )
    assert told.made >= 2 and replayed(rounds, told) == told.adapter


@pytest.mark.slow
def test_only_synchronous_rounds_are_as_slow_as_the_slowest(
    stage: Stage, devices: InProcess
) -> None:
    made = {name: run(name, stage, devices, ASKED, 6.0).told.made for name in WAYS}
    assert made["synchronous"] == 1
    assert made["over-selected"] >= 4 and made["asynchronous"] >= 4


@pytest.mark.slow
def test_the_command_says_how_long_each_takes() -> None:
    line = ("waiting", "--clients", "3", "--rounds", "1", "--slower", "4")
    done = command_line.benchmarks(*line, "--seeds", "1", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert [one["rounds"] for one in told["ways"]] == list(WAYS)
    assert all(one["is_replayed"] for one in told["ways"])

"""`python -m benchmarks hostile`: liars that answer at once, where rounds go by who is first."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, stdev
from typing import Annotated

import typer

from benchmarks.comparisons.clocked import clocked
from benchmarks.comparisons.waiting import ANY, Asked, homes, pace
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.tables import Column, Table, show, tell
from smidgen.simulation.demo.messages import TASK
from smidgen.simulation.experiments.federation.devices import Rounds
from smidgen.simulation.experiments.hostile import Attack, Hostile
from smidgen.simulation.experiments.scoring import Score
from smidgen.simulation.experiments.virtual.devices import InProcess

CLIENTS, LIARS, TEXTS, TESTS = 9, 3, 18, 90  # tests: of each language
UNTIL_S, AT_ONCE_S = 6.0, 0.01  # virtual
ATTACKS: tuple[Attack, ...] = ("absent", "flipped", "claims", "evaluations", "together")
PLACES = (
    *((way, how) for way in ("over-selected", "asynchronous") for how in ("undefended", "default")),
    *(("synchronous", how) for how in ("undefended", "default", "geometric")),
)


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        way: How its rounds wait.
        defence: `undefended`; `default`, bounds, checks and roll-back; `geometric`, that mean too.
        attack: What the liars do.
        seed: By which all is dealt and drawn.
        accuracy: On the honest devices' test texts.
        rounds: Adapters that it made.
    """

    way: str
    defence: str
    attack: Attack
    seed: int
    accuracy: float
    rounds: int


def hostile_command(
    seeds: Annotated[int, typer.Option(min=1, max=100, help="From 0 on.")] = 3,
    json_output: JsonOption = False,
) -> None:
    """3 liars of 9 devices that answer at once: rounds that wait, ask more, or wait for nobody."""
    runs = [one for seed in range(seeds) for one in _runs(seed)]
    head = Column("attack", "word")
    table = Table(
        [head, *(Column(f"{way}, {defence}", "text") for way, defence in PLACES)],
        [[attack, *(_cell(runs, attack, place) for place in PLACES)] for attack in ATTACKS],
        f"{LIARS} hostile of {CLIENTS} devices, {UNTIL_S:g} virtual seconds; accuracy in %",
        [
            "on the honest devices' test texts, mean and sample standard deviation over "
            f"{seeds} seeds; after it, minus the run of the same seed without the hostile ones",
            f"honest devices take 0.8 to 1.0 s for {TEXTS} texts, hostile ones {AT_ONCE_S:g} s",
        ],
    )
    show(table, file=sys.stderr if json_output else sys.stdout)
    if json_output:
        print(json.dumps({"runs": [asdict(one) for one in runs]}))


def _runs(seed: int) -> Sequence[Run]:
    asked = Asked(clients=CLIENTS, labelled=TEXTS, tests=TESTS)
    on, runs = homes(asked, seed), list[Run]()
    devices = InProcess(on)
    try:
        for way, defence in PLACES:
            for attack in ATTACKS:
                hostile = Hostile(LIARS, attack)
                liars = hostile.names(on.population)
                names = [one.name for one in on.population]
                takes_s = pace(names, 1.0, seed) | dict.fromkeys(liars, AT_ONCE_S)
                there = [name for name in names if attack != "absent" or name not in liars]

                def judge(adapter: bytes, liars: frozenset[str] = liars) -> tuple[float, float]:
                    return _honest(devices.judge(adapter, ""), liars), 0.0

                schedule = replace(
                    _schedule(way, defence, seed), hostile=hostile, training=on.experiment.training
                )
                told = clocked(
                    *(schedule, on.template(), devices, there, takes_s, UNTIL_S, judge),
                    every_s=2 * UNTIL_S,
                    forgers=liars,
                )
                found = Run(way, defence, attack, seed, judge(told.adapter)[0], told.made)
                tell([f"seed {seed}, {way}, {defence}, {attack}: {found.accuracy:.1%}"], sys.stderr)
                runs.append(found)
    finally:
        devices.close()
    return runs


def _schedule(way: str, defence: str, seed: int) -> Rounds:
    rounds = Rounds(rounds=ANY, evaluate_every=1, seed=seed, labels=TASK.labels, score_every=0)
    if way == "over-selected":
        rounds = replace(rounds, fraction=2 / 3, over_selection=1.5)
    elif way == "asynchronous":
        rounds = replace(rounds, asynchronous=Asynchronous(buffer=4), evaluate_every=5)
    if defence == "geometric":
        rounds = replace(rounds, learning=Learning(mean="geometric"))
    if defence == "undefended":
        return rounds
    return replace(rounds, norm_bound="adaptive", max_examples="adaptive", is_guarded=True)


def _honest(score: Score, liars: frozenset[str]) -> float:
    told = [one for name, one in score.by_client.items() if name not in liars]
    return sum(one.right for one in told) / sum(one.asked for one in told)


def _cell(runs: Sequence[Run], attack: Attack, place: tuple[str, str]) -> str:
    here = [one for one in runs if (one.way, one.defence) == place]
    without = {one.seed: one.accuracy for one in here if one.attack == "absent"}
    own = [one for one in here if one.attack == attack]
    said = _spread([100 * one.accuracy for one in own], "")
    if attack == "absent":
        return said
    return f"{said}, {_spread([100 * (one.accuracy - without[one.seed]) for one in own], '+')}"


def _spread(values: Sequence[float], sign: str) -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):{sign}.1f}{spread}"

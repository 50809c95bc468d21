"""Cost of one straggler: synchronous, over-selected and asynchronous rounds compared.

Small homes with their own messages train the embedded base for real; only the clock is virtual
(`benchmarks.comparisons.clocked`). One home is a given number of times slower than the rest. The
target is the mean final score of synchronous rounds, minus one point.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from statistics import mean

from benchmarks.comparisons.clocked import Clocked, clocked, replayed
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import derive_seed
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.datasets.dataset import DataSet
from smidgen.simulation.demo.messages import DATA, TASK, load_messages
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.federation.devices import Rounds
from smidgen.simulation.experiments.stage import Stage
from smidgen.simulation.experiments.texts import drawn
from smidgen.simulation.experiments.virtual.devices import InProcess
from smidgen.simulation.population.deal import Deal, population_of

WAYS = ("synchronous", "over-selected", "asynchronous")
OVER = 1.3
POINT = 0.01
ANY = 1_000_000  # rounds: time ends a run


@dataclass(frozen=True)
class Asked:
    """What is compared.

    Attributes:
        clients: Homes.
        slower: How many times slower one of them is.
        rounds: Synchronous rounds; as long as they take all others train too.
        labelled: Texts with a label of a home.
        tests: Texts of each language that adapters are judged by, once in a virtual second.
        seeds: How often all is dealt anew.
    """

    clients: int = 8
    slower: float = 10.0
    rounds: int = 5
    labelled: int = 16
    tests: int = 60
    seeds: int = 3


@dataclass(frozen=True)
class Way:
    """One way to run rounds, with one seed.

    Attributes:
        name: One of `WAYS`.
        seed: The seed.
        told: Its run.
        is_replayed: Whether its journal gave the same bytes again.
    """

    name: str
    seed: int
    told: Clocked
    is_replayed: bool

    @property
    def accuracy(self) -> float:
        return self.told.versions[-1].accuracy

    @property
    def of_slowest(self) -> float:
        """At the end, on the slow home's own texts."""
        return self.told.versions[-1].of_slowest

    def time_to(self, target: float) -> float | None:
        """Virtual seconds until an accuracy was reached first; None where it never was."""
        reached = (one.at_s for one in self.told.versions if one.accuracy >= target)
        return next(reached, None)


@dataclass(frozen=True)
class Compared:
    """All ways and seeds.

    Attributes:
        ways: Every run.
        target: Accuracy that is to be reached.
        until_s: Virtual seconds that each run had.
    """

    ways: tuple[Way, ...]
    target: float
    until_s: float

    def of(self, name: str) -> list[Way]:
        """The runs of one way, by seed."""
        return [way for way in self.ways if way.name == name]


Tell = Callable[[str, int], None]
"""Told which way and seed is at hand, and how many of its adapters were judged."""


def compare(asked: Asked, tell: Tell = lambda said, judged: None) -> Compared:
    """Run every way with every seed.

    Args:
        asked: What is compared.
        tell: Told what begins, and how it goes on.
    """
    until_s = asked.rounds * asked.slower
    ways: list[Way] = []
    for seed in range(asked.seeds):
        on = homes(asked, seed)
        devices = InProcess(on)
        try:
            for name in WAYS:
                at_hand = partial(tell, f"seed {seed}: {name}")
                ways.append(run(name, on, devices, asked, until_s, at_hand))
        finally:
            devices.close()
    synchronous = [way.accuracy for way in ways if way.name == WAYS[0]]
    return Compared(tuple(ways), mean(synchronous) - POINT, until_s)


def run(
    name: str,
    on: Stage,
    devices: InProcess,
    asked: Asked,
    until_s: float,
    tell: Callable[[int], None] = lambda judged: None,
) -> Way:
    """One way to run rounds.

    Args:
        name: One of `WAYS`.
        on: Base, texts and homes.
        devices: The homes; reused, since training leaves nothing in them.
        asked: What is compared.
        until_s: Virtual seconds that it has.
        tell: Told before each adapter is judged how many were.
    """
    names = [client.name for client in on.population]
    slow, seed = names[0], on.experiment.seed
    schedule = schedule_of(name, len(names), seed, on.experiment.training)

    judged = count()

    def judge(adapter: bytes) -> tuple[float, float]:
        tell(next(judged))
        score = devices.judge(adapter, "")
        return score.accuracy, score.by_client[slow].share

    told = clocked(
        schedule,
        on.template(),
        devices,
        names,
        pace(names, asked.slower, seed),
        until_s,
        judge,
        1.0,
    )
    return Way(name, seed, told, replayed(schedule, told) == told.adapter)


def schedule_of(name: str, clients: int, seed: int, training: Training) -> Rounds:
    """The settings of one way; each asks all homes, as many as it may at a time."""
    rounds = Rounds(rounds=ANY, evaluate_every=0, seed=seed, training=training)
    if name == "over-selected":
        return replace(rounds, fraction=1 / OVER, over_selection=OVER)
    if name == "asynchronous":
        return replace(rounds, asynchronous=Asynchronous(buffer=max(1, clients // 2)))
    return rounds


def pace(names: list[str], slower: float, seed: int) -> dict[str, float]:
    """Virtual seconds for a piece of training: 0.8 to 1.0, and of the first so many."""
    quick = {name: 0.8 + 0.2 * derive_seed(seed, "pace", name) / 2**63 for name in names}
    return quick | {names[0]: slower}


def homes(asked: Asked, seed: int) -> Stage:
    """The demo's messages, dealt to as many homes as are asked for."""
    messages = load_messages(DATA)
    texts = [(m.split, Example(m.text, label=m.label, language=m.language)) for m in messages]
    train = tuple(one for split, one in texts if split != "test")
    test = tuple(one for split, one in texts if split == "test")
    test = tuple(test[row] for row in drawn(test, asked.tests))
    deal = Deal(clients=asked.clients, labelled=asked.clients * asked.labelled)
    experiment = Experiment("waiting", "hub", adapter="lora:4", deal=deal, seed=seed)
    experiment = replace(experiment, training=Training(epochs=1, batch=8, lr=0.003, tokens=32))
    dataset = DataSet("hub", TASK, train, test, "embedded", "Apache-2.0", "", ())
    population = population_of(deal, train, test, seed)
    return Stage(experiment, open_base(EMBEDDED), dataset, population)

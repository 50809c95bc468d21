"""Hostile virtual devices, which send forged answers in valid wire messages.

Admission, bounds, checks and rollback treat them as any device. They hold texts as others do, so
that a forged update looks no worse than an honest one, and they know the bounds of a run, as
everybody does who reads its source.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from smidgen.coordinator.rounds.admission import Refusal, check_report
from smidgen.coordinator.rounds.events import Answered
from smidgen.coordinator.rounds.scoring import judged
from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.reports import BINS, Confidences
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    decode_adapter,
    decode_update,
    derive_seed,
    encode_update,
    shapes_of,
)
from smidgen.simulation.experiments.scoring import Score, report_of
from smidgen.simulation.population.clients import Population

HUGE = 3e38  # in every cell
TIMES = 1000.0
CLAIMED = 10**9  # the most that an update's header may say
CLAIMED_TESTS = 2**53 - 1  # the most that a report may say

Attack = Literal[
    "absent",
    "huge",
    "scaled",
    "noise",
    "flipped",
    "claims",
    "losses",
    "evaluations",
    "labels",
    "together",
]
ATTACKS: tuple[Attack, ...] = get_args(Attack)


@dataclass(frozen=True)
class Hostile:
    """Which devices of an experiment are hostile, and how.

    Nobody is judged by their test texts, whatever the attack, so that experiments that differ in
    `attack` alone are judged by the same texts.

    Attributes:
        devices: How many: the last ones by name.
        attack: `absent`, they take no part; `huge`, 3e38 in every cell; `scaled`, what they trained
            times 1,000; `noise`, noise 1,000 times as long; `flipped`, minus what they trained;
            `claims`, noise as long as an honest update that is said to be of 10^9 texts; `losses`,
            minus what they trained, with a training loss of 3e38, by which `utility` asks;
            `evaluations`, honest updates, and all of 2^53 - 1 texts right and wrong by turns;
            `labels`, honest updates, of labelling 2^53 - 1 texts that are surely the first label,
            and log-probabilities of 3e38 for it and -3e38 for the others; `together`, flipped times
            1,000 with 10^9 texts and all that is false of the last two.
    """

    devices: int
    attack: Attack

    def __post_init__(self) -> None:
        demand(self.devices >= 1, "hostile.devices: 1 or more", WrongInput)

    def names(self, population: Population) -> frozenset[str]:
        """Who they are.

        Raises:
            WrongInput: Nobody would be left.
        """
        demand(
            self.devices < len(population),
            f"hostile.devices: fewer than the {len(population)} clients",
            WrongInput,
        )
        return frozenset(sorted(client.name for client in population)[-self.devices :])


def without_tests(
    population: Population, tests: Sequence[Example], names: frozenset[str]
) -> tuple[Population, tuple[Example, ...]]:
    """Clients and test texts without those that some clients hold."""
    kept = sorted(row for one in population if one.name not in names for row in one.test)
    number = {row: index for index, row in enumerate(kept)}
    clients = tuple(
        replace(one, test=np.array([number[row] for row in one.test if row in number], np.int32))
        for one in population
    )
    return clients, tuple(tests[row] for row in kept)


def forged(update: Update, attack: Attack, seed: int) -> Update:
    """What a hostile device sends in place of an honest update."""
    delta, claimed = update.delta, update.num_examples
    if attack == "huge":
        delta = {name: np.full_like(tensor, HUGE) for name, tensor in delta.items()}
    elif attack == "scaled":
        delta = _times(delta, TIMES)
    elif attack == "noise":
        delta = _times(_noise(delta, seed), TIMES)
    elif attack in ("flipped", "losses"):
        delta = _times(delta, -1.0)
    elif attack == "claims":
        delta, claimed = _noise(delta, seed), CLAIMED
    elif attack == "together":
        delta, claimed = _times(delta, -TIMES), CLAIMED
    return Update(update.work_id, claimed, delta, update.steps)


def _times(delta: AdapterState, factor: float) -> AdapterState:
    return {name: tensor * np.float32(factor) for name, tensor in delta.items()}


def _noise(delta: AdapterState, seed: int) -> AdapterState:
    draws = np.random.Generator(np.random.PCG64(seed))
    drawn = {name: draws.standard_normal(delta[name].shape, np.float32) for name in sorted(delta)}
    return {
        name: tensor * np.float32(np.linalg.norm(delta[name]) / np.linalg.norm(tensor))
        for name, tensor in drawn.items()
    }


def forged_answer(
    answer: FinishedWork, adapter: bytes, work: Work, attack: Attack, name: str
) -> FinishedWork:
    """An answer to training as a hostile device sends it; one that failed is forged from nothing.

    A device that cannot compute with a ruined adapter goes on sending: it needs no training.
    """
    state = decode_adapter(adapter)
    if answer.update is None:
        nothing = {key: np.zeros_like(one) for key, one in state.items()}
        honest = Update(work.work_id, 1, nothing)
    else:
        honest = decode_update(answer.update, shapes_of(state))
    seed = derive_seed(work.seed, "hostile", name, str(work.round_index))
    sent = forged(honest, attack, seed)
    report = replace(answer.report, outcome="done", failure=None, num_examples=sent.num_examples)
    report = replace(report, loss=HUGE) if attack == "losses" else report
    return FinishedWork(report, encode_update(sent))


def train_answers(
    answers: Iterator[FinishedWork],
    adapter: bytes,
    asked: Sequence[tuple[str, Work]],
    hostile: Hostile | None,
    names: frozenset[str],
) -> Iterator[FinishedWork]:
    """Answers to training, those of hostile devices forged on their way."""
    for (name, work), answer in zip(asked, answers, strict=True):
        if hostile is None or name not in names or hostile.attack in ("evaluations", "labels"):
            yield answer
        else:
            yield forged_answer(answer, adapter, work, hostile.attack, name)


def label_report(report: Report, task: Task, hostile: Hostile) -> Report:
    """What a hostile device tells of its texts and their labels."""
    if hostile.attack not in ("labels", "together"):
        return report
    one, none = (0,) * (BINS - 1) + (CLAIMED_TESTS,), (0,) * BINS
    sure = Confidences(CLAIMED_TESTS, (one, *(none for _ in task.labels[1:])))
    return replace(report, labelled=CLAIMED_TESTS, confidences=sure)


def evaluations(
    score: Score | None,
    members: Sequence[tuple[str, str]],
    round_index: int,
    task: Task,
    hostile: Hostile,
    names: frozenset[str],
    gate: Report | None = None,
) -> list[Answered]:
    """What the members of an evaluation tell, as the coordinator notes it down.

    Honest devices tell the truth about their own test texts; without a score, and of what the
    adapter makes of any text, what the gate's texts say.
    """
    told = []
    for work_id, name in members:
        if score is not None:
            report = report_of(work_id, score, name)
        else:
            assert gate is not None
            report = replace(gate, work_id=work_id)
        means = gate.mean_log_probabilities if gate else ()
        is_lying = name in names
        if is_lying and hostile.attack in ("evaluations", "together"):
            share = 1.0 if round_index % 2 == 0 else 0.0
            report = _false_report(work_id, share, task)
        if is_lying and means and hostile.attack in ("labels", "together"):
            means = (HUGE, *(-HUGE for _ in means[1:]))
        report = replace(report, mean_log_probabilities=means)
        try:
            check_report(report, task)
        except Refusal:
            if name not in names:
                raise
            continue
        told.append(judged(Answered(work_id, "done", None, report.num_examples), report, task))
    return told


def _false_report(work_id: str, share: float, task: Task) -> Report:
    """All of the most texts that may be told of, right or wrong; of tagging the most entities."""
    entities = None
    if kind_of(task).measure.is_counted:
        rest = (0,) * (len(task.labels) - 1)
        claimed = CLAIMED_TESTS, *rest
        entities = Entities(claimed, claimed, claimed if share else (0, *rest))
    told = Report(work_id, "done", num_examples=CLAIMED_TESTS, accuracy=share)
    return replace(told, entities=entities)


def told_texts(
    texts: Mapping[str, int], hostile: Hostile | None, names: frozenset[str]
) -> dict[str, int]:
    is_lying = hostile is not None and hostile.attack in ("claims", "together")
    return {name: CLAIMED if is_lying and name in names else n for name, n in texts.items()}

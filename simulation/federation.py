"""A federated run in one process: the coordinator's rounds and aggregation, without a socket.

What is due next is decided by `coordinator.rounds`, who is asked by `coordinator.selection`;
updates are encoded, checked and folded as the server does it, one at a time and in order of client
names. So a run here ends in the same bytes as the same run over HTTP.

    devices = ...  # answers work with an engine, on this machine or on a Ray cluster
    last = federate(schedule, template, Standing(adapter), names, devices, on_round)
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coordinator.admission import Refusal, check_update
from coordinator.aggregation import apply_delta, weighted_mean
from coordinator.journal import Answered, Event, Finished, StepClosed, StepOpened
from coordinator.rounds import Schedule, State, decide, evolve
from edge_client import state as device
from edge_client.wire import (
    AdapterState,
    Report,
    Update,
    Work,
    decode_adapter,
    encode_adapter,
    sha256,
)
from simulation.scoring import Score


class SimulationError(RuntimeError):
    """An experiment that cannot go on; says why."""


class Devices(Protocol):
    """Virtual devices: the texts of all clients, and engines that take turns at them."""

    def start(self) -> "Standing":
        """The adapter before the first round."""

    def train(self, adapter: bytes, asked: Sequence[tuple[str, Work]]) -> Iterator[device.Finished]:
        """Answer training work, in the order asked; a client that fails says so in its report."""

    def judge(self, adapter: bytes, arm: str) -> Score:
        """Score an adapter on a client's own test texts; for nobody, on all."""

    def close(self) -> None:
        """Free the engines."""


@dataclass(frozen=True)
class Standing:
    """Where a run stands between two rounds.

    Attributes:
        adapter: Encoded adapter of the last closed round.
        round_index: That round; 0 before any training.
        evaluated: The last round whose adapter was scored, -1 for none.
    """

    adapter: bytes
    round_index: int = 0
    evaluated: int = -1


@dataclass(frozen=True)
class Round:
    """What a closed round gave and cost; round 0 is the evaluation before any training.

    Attributes:
        round_index: 1-based server step.
        cohort: Names of the clients asked.
        errors: What went wrong, by client.
        num_examples: Texts trained on, all clients together.
        loss: Mean training loss over clients weighted by their texts, nats; None in round 0.
        bytes_down: Adapters handed out, encoded (measured; headers of HTTP not included).
        bytes_up: Updates handed in, encoded (measured).
        train_s: Seconds from the first piece of work to the new adapter (measured).
        standing: Where the run stands afterwards.
        score: Of the new adapter, where it was evaluated.
    """

    round_index: int
    cohort: tuple[str, ...]
    errors: dict[str, str]
    num_examples: int
    loss: float | None
    bytes_down: int
    bytes_up: int
    train_s: float
    standing: Standing
    score: Score | None = None


def federate(
    schedule: Schedule,
    template: Work,
    start: Standing,
    names: Collection[str],
    devices: Devices,
    on_round: Callable[[Round], None] = lambda closed: None,
    arm: str = "",
) -> Standing:
    """Run all rounds that are left.

    Going on from any standing that `on_round` was given ends in the same adapter as running
    through.

    Args:
        schedule: Rounds, cohort, evaluation.
        template: Work as every client gets it; round, adapter and ids are filled in.
        start: Where to begin.
        names: Clients that have work to do.
        devices: Who answer.
        on_round: Told each round after its evaluation, if it has one.
        arm: The client that trains for itself and is judged by its own texts; empty for nobody.

    Raises:
        SimulationError: Fewer clients than the schedule needs, or a round in which too few could
            train; quotes the first error.
    """
    run = _Run(template, devices, start, arm)
    open_round: Round | None = None
    while (event := run.next_event(schedule, names)) is not None:
        if isinstance(event, StepOpened) and event.kind == "train":
            if open_round is not None:
                on_round(open_round)
            open_round = run.train(event, schedule)
        elif isinstance(event, StepOpened):
            open_round = run.evaluate(event, open_round)
        elif isinstance(event, Finished):
            break
    if open_round is not None:
        on_round(open_round)
    return run.standing


class _Run:
    """The state machine of one run and the adapter that goes with it."""

    def __init__(self, template: Work, devices: Devices, start: Standing, arm: str) -> None:
        self._template, self._devices, self._arm = template, devices, arm
        self.standing = start
        name = sha256(start.adapter)
        self._state = State(name, start.round_index, start.evaluated)

    def next_event(self, schedule: Schedule, names: Collection[str]) -> Event | None:
        """What is due, folded into the state."""
        event = decide(schedule, self._state, names, "", 0.0)
        if event is None:
            raise SimulationError(
                f"round {self._state.round_index + 1} needs {schedule.min_updates} or more clients "
                f"that can train; there are {len(names)}"
            )
        self._state = evolve(self._state, event)
        return event

    def train(self, opened: StepOpened, schedule: Schedule) -> Round:
        """One training step, up to the adapter after it."""
        start_s = time.perf_counter()
        before = self.standing.adapter
        reference = decode_adapter(before)
        reports: dict[str, Report] = {}
        sizes: list[int] = []

        def updates() -> Iterator[tuple[AdapterState, float]]:
            asked = [(name, self._work(opened, work_id)) for work_id, name in opened.members]
            answers = self._devices.train(before, asked)
            for (name, work), finished in zip(asked, answers, strict=True):
                report, update = _admitted(finished, work, reference)
                reports[name] = report
                self._state = evolve(self._state, Answered(work.work_id, report.outcome, None, 0))
                if update is not None:
                    sizes.append(len(finished.update or b""))
                    yield update.delta, float(update.num_examples)
            if len(sizes) < max(1, schedule.min_updates):
                reason = next((report.error for report in reports.values()), "nobody was asked")
                raise SimulationError(
                    f"round {opened.round_index}: {len(sizes)} of {len(asked)} clients could "
                    f"train, {schedule.min_updates} needed: {reason}"
                )

        adapter = encode_adapter(apply_delta(reference, weighted_mean(updates())))
        self._state = evolve(self._state, StepClosed(sha256(adapter), 0.0))
        self.standing = Standing(adapter, opened.round_index, self.standing.evaluated)
        errors = {name: report.error for name, report in reports.items() if report.error}
        done = [report for report in reports.values() if report.outcome == "done"]
        num_examples = sum(report.num_examples for report in done)
        losses = sum(report.num_examples * (report.loss or 0.0) for report in done)
        return Round(
            round_index=opened.round_index,
            cohort=tuple(reports),
            errors=errors,
            num_examples=num_examples,
            loss=losses / num_examples,
            bytes_down=len(before) * len(reports),
            bytes_up=sum(sizes),
            train_s=time.perf_counter() - start_s,
            standing=self.standing,
        )

    def evaluate(self, opened: StepOpened, trained: Round | None) -> Round:
        """One evaluation step; the round it belongs to, with its score."""
        self._state = evolve(self._state, StepClosed(self._state.adapter_sha256, 0.0))
        self.standing = replace(self.standing, evaluated=opened.round_index)
        scored = self._devices.judge(self.standing.adapter, self._arm)
        if trained is None:
            before = Round(opened.round_index, (), {}, 0, None, 0, 0, 0.0, self.standing)
            return replace(before, score=scored)
        return replace(trained, standing=self.standing, score=scored)

    def _work(self, opened: StepOpened, work_id: str) -> Work:
        return replace(
            self._template,
            work_id=work_id,
            kind=opened.kind,
            round_index=opened.round_index,
            adapter_sha256=opened.adapter_sha256,
            adapter_bytes=len(self.standing.adapter),
        )


def _admitted(
    finished: device.Finished, work: Work, reference: AdapterState
) -> tuple[Report, Update | None]:
    """An answer as the coordinator takes it: an update that cannot be used is a failure."""
    if finished.update is None:
        return finished.report, None
    try:
        return finished.report, check_update(finished.update, work.work_id, reference)
    except Refusal as refusal:
        return Report(work.work_id, "failed", error=refusal.detail), None

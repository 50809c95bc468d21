"""A federated run on a virtual clock: real training, simulated durations of devices.

The coordinator's own `decide` and `evolve` say what happens next, in synchronous, over-selected or
asynchronous rounds. The clock jumps to the next answer that is due; ties go by device. So equal
arguments give equal journals and equal bytes, and a run of hours takes as long as its computing.

    told = clocked(schedule, template, devices, names, takes_s, until_s=80.0, judge=judge)
    assert replayed(schedule, told) == told.adapter
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from smidgen.coordinator.rounds.admission import Refusal, check_update
from smidgen.coordinator.rounds.bounds import norm_of
from smidgen.coordinator.rounds.events import (
    AlsoAsked,
    Answered,
    Event,
    RolledBack,
    StepClosed,
    StepOpened,
)
from smidgen.coordinator.rounds.guidance import step_orders
from smidgen.coordinator.rounds.learning.memory import decode_memory, encode_memory
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate as Admitted
from smidgen.coordinator.rounds.learning.server_update import learn
from smidgen.coordinator.rounds.machine import MOST_ROLLBACKS, bounded, decide, kept_of, narrowed
from smidgen.coordinator.rounds.scheduling.asking import is_asked
from smidgen.coordinator.rounds.scheduling.step import Step
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.wire.messages import Work
from smidgen.edge_client.wire.tensors import decode_adapter, decode_update, encode_adapter, sha256
from smidgen.simulation.experiments.federation.devices import Devices, Rounds, SimulationError
from smidgen.simulation.experiments.hostile import evaluations, train_answers


@dataclass(frozen=True)
class Version:
    """An adapter that a run made.

    Attributes:
        at_s: Virtual seconds since the run began.
        round_index: The round that made it; 0: what the run starts from.
        updates: Updates in it.
        oldest: Staleness of the oldest of them.
        accuracy: On all test texts.
        of_slowest: On those of the slowest device.
    """

    at_s: float
    round_index: int
    updates: int
    oldest: int
    accuracy: float
    of_slowest: float


@dataclass
class Clocked:
    """What a run gave.

    Attributes:
        first: The adapter that it began with, encoded.
        journal: Its events.
        blobs: Adapters, updates and memories by their SHA-256.
        versions: The adapters that were judged, the first included.
        made: How many it made.
        trained: How often a device trained.
        adapter: The last adapter, encoded.
    """

    first: bytes
    journal: list[Event] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    made: int = 0
    trained: int = 0
    adapter: bytes = b""

    def put(self, body: bytes) -> str:
        name = sha256(body)
        self.blobs[name] = body
        return name


def clocked(
    schedule: Rounds,
    template: Work,
    devices: Devices,
    names: Collection[str],
    takes_s: Mapping[str, float],
    until_s: float,
    judge: Callable[[bytes], tuple[float, float]],
    every_s: float = 0.0,
    forgers: frozenset[str] = frozenset(),
) -> Clocked:
    """Run until a time, or to the end of all rounds.

    Args:
        schedule: Rounds, without labelling.
        template: Work as every device gets it; round, adapter and ids are filled in.
        devices: Who train.
        names: The devices.
        takes_s: Virtual seconds that each takes for a piece of training.
        until_s: Virtual seconds after which nothing more begins.
        judge: Accuracy of an encoded adapter on all test texts, and on the slowest device's.
        every_s: Virtual seconds between two adapters that are judged, at least.
        forgers: Devices that answer as `schedule.hostile` says.

    Raises:
        SimulationError: Nothing is due and nobody is at work.
    """
    start = devices.start().adapter
    told = Clocked(start, adapter=start)
    state = first_state(schedule, told.put(start))
    told.versions.append(Version(0.0, 0, 0, 0, *judge(start)))
    homes = _Homes(takes_s)
    now_s = 0.0
    while not state.is_finished and now_s <= until_s:
        event = decide(schedule, state, names, str(schedule.seed), now_s)
        if event is None:
            if not homes.coming and schedule.hostile is not None:
                break  # it stands still: what it has is judged
            if not homes.coming:
                raise SimulationError(f"round {state.round_index + 1}: nobody is at work")
            now_s, name, work = homes.done()
            if now_s > until_s:
                break
            event = _answer(schedule, forgers, told, devices, state, name, work, takes_s[name])
            homes.take_up(name, state, now_s)
        elif isinstance(event, StepOpened):
            adapter = told.blobs[event.adapter_sha256]
            event = bounded(event, schedule, state, lambda body=adapter: decode_adapter(body))  # type: ignore[misc]
        elif isinstance(event, StepClosed) and event.adapter_sha256 is None:
            assert state.step is not None
            event = closed(schedule, state, state.step, told.blobs, now_s)
        if event is None:
            continue  # it came too late
        before, state = state, evolve(state, event)
        told.journal.append(event)
        for name, work in _asked(event, state, template):
            homes.ask(name, work, now_s)
        if isinstance(event, StepOpened) and event.kind == "evaluate":
            if schedule.hostile is not None:
                score = devices.judge(told.blobs[event.adapter_sha256], "")
                said = event.members, event.round_index, template.task
                for answer in evaluations(score, *said, schedule.hostile, forgers):
                    state = evolve(state, answer)
                    told.journal.append(answer)
            event = StepClosed(state.adapter_sha256, now_s)  # at once: it takes no virtual time
            state = evolve(state, event)
            told.journal.append(event)
        elif isinstance(event, RolledBack):
            told.adapter = told.blobs[event.adapter_sha256]
        elif isinstance(event, StepClosed) and before.step is not None:
            told.adapter = told.blobs[state.adapter_sha256]
            counted = before.step.counted()
            oldest = max(map(before.step.staleness, counted), default=0)
            made = now_s, state.round_index, len(counted), oldest
            told.made += 1
            if now_s >= told.versions[-1].at_s + every_s:
                told.versions.append(Version(*made, *judge(told.adapter)))
    if schedule.is_guarded:
        told.adapter = told.blobs[kept_of(schedule, state)[1]]
    return told


class _Homes:
    """Who is at what: each device does one thing at a time, then what it is asked by then."""

    def __init__(self, takes_s: Mapping[str, float]) -> None:
        self._takes_s, self._asked = takes_s, dict[str, Work]()
        self._busy: set[str] = set()
        self.coming: list[tuple[float, str, Work]] = []

    def ask(self, name: str, work: Work, now_s: float) -> None:
        """Something is asked of a device; the newest is what it finds when it is free."""
        if name in self._busy:
            self._asked[name] = work
            return
        self._busy.add(name)
        heapq.heappush(self.coming, (now_s + self._takes_s[name], name, work))

    def done(self) -> tuple[float, str, Work]:
        """When the next device is done, which, and with what."""
        at_s, name, work = heapq.heappop(self.coming)
        self._busy.discard(name)
        return at_s, name, work

    def take_up(self, name: str, state: State, now_s: float) -> None:
        """A device that is free does what it finds, if that is still open."""
        work = self._asked.pop(name, None)
        if work is not None and _is_open(state, work):
            self.ask(name, work, now_s)


def first_state(schedule: Rounds, adapter_sha256: str) -> State:
    """Of a run that begins; where nothing guards it, it never goes back by itself."""
    rollbacks = 0 if schedule.is_guarded else MOST_ROLLBACKS
    return State(adapter_sha256, first_sha256=adapter_sha256, rollbacks=rollbacks)


def replayed(schedule: Rounds, told: Clocked) -> bytes:
    """The last adapter, folded once more from the journal and the updates that it names.

    Raises:
        SimulationError: An adapter on the way is another one than the journal says.
    """
    blobs = dict(told.blobs)
    state = first_state(schedule, sha256(told.first))
    for event in told.journal:
        step = state.step
        if isinstance(event, StepClosed) and step is not None and step.opened.kind == "train":
            again = closed(schedule, state, step, blobs, event.closed_at_s)
            if again != event:
                raise SimulationError(f"round {step.opened.round_index} is replayed differently")
        state = evolve(state, event)
    return blobs[kept_of(schedule, state)[1] if schedule.is_guarded else state.adapter_sha256]


def closed(
    schedule: Rounds, state: State, step: Step, blobs: dict[str, bytes], now_s: float
) -> StepClosed:
    """A training step with the adapter after it, which is kept, as the coordinator makes it."""
    rule, opened = schedule.asynchronous, step.opened
    answers = (
        Admitted(
            device_id,
            decode_update(blobs[answer.update_sha256 or ""]),
            answer.norm,
            rule.share(step.staleness(answer.work_id)) if rule else 1.0,
        )
        for device_id, answer in step.updates()
    )
    memory = decode_memory(blobs[state.memory_sha256] if state.memory_sha256 else b"")
    before = decode_adapter(blobs[opened.adapter_sha256])
    opened = narrowed(schedule, state, step)
    found = learn(
        schedule.learning,
        opened,
        schedule.rounds,
        answers,
        before,
        memory,
        state.medians.norms,
        schedule.is_guarded,
    )
    if found.lack:
        return StepClosed(opened.adapter_sha256, now_s, found.lack, state.memory_sha256)
    adapter = encode_adapter(found.adapter)
    blobs[name := sha256(adapter)] = adapter
    kept = encode_memory(found.memory) if found.memory else b""
    remembered = sha256(kept) if kept else ""
    if kept:
        blobs[remembered] = kept
    return StepClosed(name, now_s, memory_sha256=remembered)


def _asked(event: Event, state: State, template: Work) -> Iterator[tuple[str, Work]]:
    step = state.step
    if step is None or step.opened.kind != "train" or not isinstance(event, StepOpened | AlsoAsked):
        return
    members: Iterable[tuple[str, str]] = event.members
    for work_id, name in members:
        sha = step.opened.adapter_sha256
        index = step.opened.round_index
        updates = step_orders(state, step.opened, name, lambda _: 0)
        work = replace(template, work_id=work_id, round_index=index, adapter_sha256=sha)
        yield name, replace(work, updates=updates)


def _is_open(state: State, work: Work) -> bool:
    """Whether an answer to some work may still count."""
    is_turned_away = state.step is not None and state.step.turns_away
    return is_asked(state, work.work_id) and not is_turned_away


def _answer(
    schedule: Rounds,
    forgers: frozenset[str],
    told: Clocked,
    devices: Devices,
    state: State,
    name: str,
    work: Work,
    took_s: float,
) -> Answered | None:
    """A device's answer, which is kept; None where it is too late for that."""
    told.trained += 1
    if not _is_open(state, work):
        return None  # trained in vain: nobody looks at it, so it need not be computed
    adapter = told.blobs[work.adapter_sha256]
    asked = [(name, work)]
    honest = iter(devices.do(adapter, asked))
    (finished,) = train_answers(honest, adapter, asked, schedule.hostile, forgers)
    if finished.update is None:
        return Answered(work.work_id, "failed", None, 0, failure=finished.report.failure)
    try:
        update = check_update(finished.update, work.work_id, decode_adapter(adapter))
    except Refusal:
        if schedule.hostile is None:
            raise  # else an honest one may have begun with a ruined adapter
        return Answered(work.work_id, "failed", None, 0, failure="internal")
    kept, norm = told.put(finished.update), norm_of(update.delta)
    examples = update.num_examples
    return Answered(work.work_id, "done", kept, examples, norm=norm, took_s=took_s)

"""Events of a run; each is one line of JSON in its journal."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import msgspec

from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.updates.forms import measured_in
from smidgen.edge_client.wire.reports import Confidences, Failure

Kind = Literal["train", "label", "evaluate", "unmask"]


@dataclass(frozen=True)
class Passed:
    """Devices that were there and are not asked to train.

    Attributes:
        reason: Why.
        count: How many.
        device_ids: Some of them, the first by their ids.
    """

    reason: str
    count: int
    device_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepOpened:
    """Devices are asked to train from an adapter, to label with it or to evaluate it.

    Attributes:
        kind: `train`, `label` or `evaluate`; `unmask` of a training step's sum.
        round_index: 1-based server step; a label step's is that of the training it comes before; 0
            is the evaluation before any training.
        attempt: 1-based; a training round with too few updates is tried again.
        adapter_sha256: What the members start from.
        members: (work_id, device_id) of everyone asked, by device id.
        opened_at_s: Unix time; the deadline counts from here.
        population: Devices that its members stand for, of an evaluation, and of training with
            update steps; 0 where not said.
        norm_bound: Longest update that counts unshortened, by its Euclidean norm; None: any.
        most_examples: Largest weight of a member in a mean; 0: whatever it says.
        most_pull: Largest product of a member's weight and its update's norm; None: any.
        deadline_s: Seconds after which the step stops waiting; 0: as the run's configuration says.
        enough: Updates with which it closes at once, the first that come; 0: it waits for all.
        is_asynchronous: Whether work of steps before it goes on in it, and its own after it.
        given_up: Work ids of those steps that count no more from here on.
        ranks: (device_id, rank) of the members that take a lower rank than the run's.
        lower: (rank, SHA-256) of the adapter in each of those ranks.
        passed: Why others that were there are not asked.
        updates: What its members' updates go through, step by step
            (`smidgen.edge_client.updates.step`).
        test_share: Share of its test texts that each member of an evaluation draws.
        masks: (device_id, SHA-256) of what each member of a secure aggregation is handed, the ring
            of a training step or what is to be unmasked; an empty id: all.
    """

    kind: Kind
    round_index: int
    attempt: int
    adapter_sha256: str
    members: tuple[tuple[str, str], ...]
    opened_at_s: float
    population: int = 0
    norm_bound: float | None = None
    most_examples: int = 0
    most_pull: float | None = None
    deadline_s: float = 0.0
    enough: int = 0
    is_asynchronous: bool = False
    given_up: tuple[str, ...] = ()
    ranks: tuple[tuple[str, int], ...] = ()
    lower: tuple[tuple[int, str], ...] = ()

    def given(self, device_id: str) -> tuple[int, str]:
        """What a member starts from: its rank, 0 for the run's, and the adapter's SHA-256."""
        rank = dict(self.ranks).get(device_id, 0)
        return rank, dict(self.lower).get(rank, self.adapter_sha256)

    passed: tuple[Passed, ...] = ()
    updates: tuple[str, ...] = ()
    test_share: float = 1.0
    masks: tuple[tuple[str, str], ...] = ()

    @property
    def brings_files(self) -> bool:
        """Whether it is answered by an upload, and not by a report alone."""
        return self.kind in ("train", "unmask")

    @property
    def measures(self) -> str:
        """The step by which its updates move no tensor (`updates.ridge`); empty: they do."""
        return measured_in(self.updates)

    def handed(self, device_id: str) -> str:
        """SHA-256 of what a member of a secure aggregation is handed; empty: nothing."""
        known = dict(self.masks)
        return known.get(device_id, known.get("", ""))


@dataclass(frozen=True)
class AlsoAsked:
    """More devices are asked in the open step, which is asynchronous.

    Attributes:
        members: (work_id, device_id) of each, by device id.
        asked_at_s: Unix time.
    """

    members: tuple[tuple[str, str], ...]
    asked_at_s: float


@dataclass(frozen=True)
class LossTold:
    """A device told the loss of training that counts; noted where the choice goes by it.

    Attributes:
        device_id: The device.
        loss: Mean over its texts.
    """

    device_id: str
    loss: float


@dataclass(frozen=True)
class Answered:
    """A member's answer, already on disk.

    Attributes:
        work_id: The work it answers.
        outcome: `done`, or `failed`, which counts as answered too.
        update_sha256: Blob of the update, for training that is done.
        num_examples: The update's weight in the mean; answers asked for in an evaluation, or texts
            read for their labels.
        labelled: Texts with a gold label that the device said it holds, if it did.
        right: Answers of an evaluation that were right; None where none were asked.
        confidences: How sure the device is of its unlabelled texts; of label work.
        mean_log_probabilities: One per label, over the texts evaluated.
        failure: Why it failed.
        norm: Euclidean norm of the update as it came; of training that is done.
        counted: Update steps whose state on the device counts with this update.
        took_s: Seconds since its step opened, or the coordinator came back; None where nobody
            measured. Two answers that differ in it alone are equal.
        entities: What was found of the entities in the texts evaluated; of tagging.
        loss: Mean cross-entropy over the answers of an evaluation, where the run hears it.
    """

    work_id: str
    outcome: Literal["done", "failed"]
    update_sha256: str | None
    num_examples: int
    labelled: int | None = None
    right: int | None = None
    confidences: Confidences | None = None
    mean_log_probabilities: tuple[float, ...] = ()
    failure: Failure | None = None
    norm: float | None = None
    counted: tuple[str, ...] = ()
    took_s: float | None = field(default=None, compare=False)
    entities: Entities | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Left:
    """A device takes no part until it asks for work again; work that it has open has failed.

    Attributes:
        device_id: The device.
        failure: Why.
        left_at_s: Unix time.
    """

    device_id: str
    failure: Failure
    left_at_s: float


@dataclass(frozen=True)
class Returned:
    """A device that had left asks for work again.

    Attributes:
        device_id: The device.
        returned_at_s: Unix time.
    """

    device_id: str
    returned_at_s: float


@dataclass(frozen=True)
class StepClosed:
    """A step is over.

    Attributes:
        adapter_sha256: The adapter after it. `decide` leaves None when a training step has to be
            aggregated first; whoever does that fills it in before the event is written.
        closed_at_s: Unix time.
        refused: Why the new adapter of a training step was not taken: the one before stays; empty
            where it was.
        memory_sha256: What the coordinator remembers for the next round, a blob; empty: nothing.
        shared: What update steps hand out to devices of the next round, a blob each, by step.
        lost: Share of the mean's squared norm that the run's rank leaves out; None where nothing is
            left out by the way that its mean is taken.
        step_sha256: What leads from the adapter before to this one in fewer bytes, a blob; empty
            where steps are not coded.
        step_bytes: Its size.
        blamed: Devices that dealt inconsistent shares in a secure aggregation; they are asked no
            more.
    """

    adapter_sha256: str | None
    closed_at_s: float
    refused: str = ""
    memory_sha256: str = ""
    shared: Mapping[str, str] = field(default_factory=dict)
    lost: float | None = None
    step_sha256: str = ""
    step_bytes: int = 0
    blamed: tuple[str, ...] = ()


@dataclass(frozen=True)
class RolledBack:
    """The run goes on from an earlier adapter; its rounds are counted on.

    Attributes:
        round_index: The round that it goes back to; 0: its first adapter.
        adapter_sha256: The adapter after that round.
        reason: Why.
        rolled_back_at_s: Unix time.
        is_ordered: Whether an operator ordered it.
    """

    round_index: int
    adapter_sha256: str
    reason: str
    rolled_back_at_s: float
    is_ordered: bool = False


@dataclass(frozen=True)
class Resumed:
    """The coordinator is back; the open step's deadline counts from here, so that a crash of the
    coordinator costs no device its place.
    """

    resumed_at_s: float


@dataclass(frozen=True)
class Paused:
    """The run stands still; answers to work that is open still count.

    Attributes:
        paused_at_s: Unix time.
        reason: Why it stopped asking by itself; empty where its operator paused it.
    """

    paused_at_s: float
    reason: str = ""


@dataclass(frozen=True)
class Unpaused:
    """The run goes on; its times move by as long as it stood still."""

    unpaused_at_s: float


@dataclass(frozen=True)
class Extended:
    """The run gets more rounds; one that was finished goes on.

    Attributes:
        rounds: Server steps until the run is finished, all in all.
        extended_at_s: Unix time.
    """

    rounds: int
    extended_at_s: float


@dataclass(frozen=True)
class Finished:
    """All rounds are done and the last adapter is evaluated, or it ended before.

    Attributes:
        finished_at_s: Unix time.
        is_stopped: Whether its operator ended it before, in the middle of a step or between two.
        reason: Why it ended by itself before its rounds were over; empty where it did not.
    """

    finished_at_s: float
    is_stopped: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Folded:
    """All events before it, which are gone: what they gave, in the first line of a journal.

    Attributes:
        events: How many they were; its own place in the journal.
        state: The run's state, `rounds.state.State`, as plain JSON.
        past: What is still known of its rounds, `rounds.history.Past`, as plain JSON.
        shelf: Its adapters that somebody may still want, `upkeep.retention.Shelf`.
        steps: The newest steps, whose answers may still come.
        counted: Work ids of those steps whose answers counted, each with `:` and the SHA-256 of its
            update, if it had one.
        run_link: What the journal's chain begins with; the store fills it in.
        link: The link of the event before it; the store fills it in.
    """

    events: int
    state: dict[str, Any]
    past: dict[str, Any]
    shelf: dict[str, Any]
    steps: tuple[StepOpened, ...] = ()
    counted: tuple[str, ...] = ()
    run_link: str = ""
    link: str = ""


Event = (
    StepOpened
    | AlsoAsked
    | Answered
    | LossTold
    | Left
    | Returned
    | StepClosed
    | RolledBack
    | Resumed
    | Paused
    | Unpaused
    | Extended
    | Finished
    | Folded
)


KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


def encode_event(event: Event) -> str:
    return json.dumps({"event": type(event).__name__, **asdict(event)}, sort_keys=True)


def decode_event(line: str) -> Event:
    """The event that `encode_event` wrote; the inverse for every event.

    Raises:
        ValueError: Written by another version, or damaged.
    """
    try:
        fields = json.loads(line)
        event: Event = msgspec.convert(fields, KINDS[fields.pop("event")], strict=True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the journal holds a line that is not an event: {line[:80]!r}") from error
    return event

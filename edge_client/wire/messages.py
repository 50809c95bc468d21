"""The contract between a device and its coordinator, protocol 14, and its JSON messages.

Messages are frozen dataclasses that check themselves on both sides; adapters and updates travel as
safetensors files, never as pickle (`smidgen.edge_client.wire.tensors`). The device opens every
connection:

    POST /v1/enrol                     Enrol -> Enrolled     at each start; the first with a token
    GET  /v1/work?wait_s=25&life=LIFE  Next                  long poll: work, an invitation, an end
    POST /v1/runs/{run_id}/membership  Membership -> Receipt joined, declined, or over and at home
    GET  /v1/adapters/{sha256}         safetensors           by range; skipped if the device has it
    GET  /v1/packs/{base_id}/{file}    a file                a run's base, by range, where served
    HEAD /v1/work/{work_id}/update     Upload-Offset         how much of a cut upload arrived
    PUT  /v1/work/{work_id}/update     safetensors -> Receipt  whole or from that offset; once
    POST /v1/work/{work_id}/report     Report -> Receipt     figures, or a code of why it failed;
                                                             with a poll's query also its answer

All carry `Authorization: Bearer DEVICE_KEY`, which the device drew itself; a body that holds
tensors carries the SHA-256 of the whole file as `Repr-Digest` (RFC 9530). A 503 or 429 says in
`Retry-After` when to come again. Every answer carries `Smidgen-Protocol: 13`: one without it is not
the coordinator's, whatever its status says, but that of something in between. What of this leaves a
device, and what it reveals, is in docs/privacy.md.
"""

import json
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from math import isfinite
from typing import Any, Literal, TypeVar

from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.files import from_json
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.fleet import (
    LONGEST_GIVEN,
    Outdated,
    Terms,
    check_by_labels,
    check_id,
    check_shown,
)
from smidgen.edge_client.wire.reports import Confidences, Cost, Failure
from smidgen.edge_client.wire.training import Labelling, Training

PROTOCOL = 14
OWN = "Smidgen-Protocol"  # a header of every answer that is a coordinator's own
MAX_JSON_BYTES = 256 * 1024
LONGEST_STEP = 600  # of an update step's name with its arguments

Message = TypeVar("Message")
DOING = {  # work, for people
    "train": "training",
    "label": "labelling",
    "evaluate": "evaluation",
    "unmask": "unmasking",
}
Ended = Literal["rounds", "patience", "stopped"]
ENDED: dict[Ended, str] = {  # why a run is finished, for people
    "rounds": "all its rounds are done",
    "patience": "its evaluations got no better",
    "stopped": "its operator stopped it",
}


class WireError(Failed):
    """Bytes from outside that are not what the contract says."""


@dataclass(frozen=True)
class CodedStep:
    """A file that leads from one adapter of a run to the next, see `wire.tensors.encode_step`.

    Attributes:
        start_sha256: The adapter that it is added to.
        step_sha256: SHA-256 of the file, which is fetched as adapters are.
        step_bytes: Size of the file.
    """

    start_sha256: str
    step_sha256: str
    step_bytes: int

    def __post_init__(self) -> None:
        check_id("start_sha256", self.start_sha256)
        check_id("step_sha256", self.step_sha256)
        demand(self.step_bytes >= 0, "step_bytes: 0 or more")


@dataclass(frozen=True)
class StepOrder:
    """One update step of a training.

    Attributes:
        step: Its name and arguments, such as `scaffold` or `codec:int8`.
        round_index: The last round in which this device's update counted for it, 0 for none: the
            step goes on from the state that it had after that one.
        shared_sha256: SHA-256 of what its server half hands out, fetched as adapters are; empty:
            nothing, or all zero.
        shared_bytes: Size of that file.
    """

    step: str
    round_index: int = 0
    shared_sha256: str = ""
    shared_bytes: int = 0

    def __post_init__(self) -> None:
        demand(0 < len(self.step) <= LONGEST_STEP, f"step: 1 to {LONGEST_STEP} characters")
        demand(self.round_index >= 0, "round_index: 0 or more")
        demand(self.shared_bytes >= 0, "shared_bytes: 0 or more")
        if self.shared_sha256:
            check_id("shared_sha256", self.shared_sha256)

    @property
    def name(self) -> str:
        return self.step.partition(":")[0]


@dataclass(frozen=True)
class Work:
    """One piece of work for one device.

    Attributes:
        protocol: Version of this contract.
        work_id: Names this work in the answer; unguessable and unique.
        kind: `train` answers with an update and a report, `label` (look for pseudo-labels) and
            `evaluate` with a report alone; `unmask`, after a `train` of secure aggregation, with
            shares in an update's place and a report.
        run_id: The run it belongs to.
        round_index: 1-based server step; of a label work the one it comes before; 0 is the
            evaluation before any training.
        base_id: SHA-256 of the frozen base.
        adapter_spec: The adapter's name, such as `lora:8@q,v`.
        adapter_sha256: SHA-256 of the adapter file to start from.
        adapter_bytes: Size of that file.
        task: Labels, patterns and verbalizer.
        training: How to train.
        seed: Root seed of the run; the device derives its own from it.
        labelling: How devices find and weigh pseudo-labels; null in a run without.
        keep: k of this round, as a share of the device's unlabelled texts; 0 without labelling.
        prior: Mean log-probability of each label over the population's evaluation texts by the
            adapter to label with, in label order; empty where nobody knows. Of label work.
        thresholds: Least confidence of a pseudo-label, in label order; empty: as `labelling` says.
        most: Texts of one class that a device trains on, drawn anew in every round; 0 for no cap.
        test_share: Share of its test texts that a device evaluates on, drawn anew in every round.
        updates: The run's update steps in order, see `smidgen.edge_client.updates.step`. Of
            training, and of unmasking.
        steps: The newest steps up to the adapter, the oldest first: who holds what one of them is
            added to fetches it and those after it, and not the adapter; none: it is fetched whole.
    """

    protocol: int
    work_id: str
    kind: Literal["train", "label", "evaluate", "unmask"]
    run_id: str
    round_index: int
    base_id: str
    adapter_spec: str
    adapter_sha256: str
    adapter_bytes: int
    task: Task
    training: Training
    seed: int
    labelling: Labelling | None = None
    keep: float = 0.0
    prior: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = ()
    most: int = 0
    test_share: float = 1.0
    updates: tuple[StepOrder, ...] = ()
    steps: tuple[CodedStep, ...] = ()

    def __post_init__(self) -> None:
        for name in ("work_id", "run_id", "adapter_sha256"):
            check_id(name, getattr(self, name))
        is_whole = self.kind != "label" or self.labelling is not None
        demand(is_whole, "labelling: expected with label work")
        check_by_labels(self.task, self.labelling, self.training)
        demand(0.0 <= self.keep <= 1.0, "keep: 0 to 1")
        demand(self.most >= 0, "most: 0 or more")
        is_capped = not self.most or kind_of(self.task).is_one_label
        demand(is_capped, f"most: 0 with a task of kind {self.task.kind}")
        is_drawn_once = not self.most or not self.training.least_samples
        demand(is_drawn_once, "most: 0 where training draws its texts (least_samples)")
        demand(0.0 < self.test_share <= 1.0, "test_share: above 0 to 1")
        labels = len(self.task.labels)
        for name in ("prior", "thresholds"):
            found = len(getattr(self, name))
            demand(found in (0, labels), f"{name}: one number per label, {labels}, or none")


@dataclass(frozen=True)
class Waiting:
    """There is no work for this device now: what the run waits for that it is in.

    Attributes:
        phase: `idle`: no run wants this device; `waiting` for devices; `paused` by the operator;
            `full`: the coordinator's disk; or what others are asked to do.
        run_name: The run that this is about; empty where there is none.
        round_index: Round that comes next or is open; 0 is the evaluation before any training.
        rounds: Rounds of the run.
        missing: Devices still needed to begin, or asked and without an answer so far.
        asked: Devices needed to begin, or asked.
        closes_in_s: Seconds until the open step stops waiting; null where none is open.
        names: The missing devices' names, where the run's owner lets devices know them.
    """

    phase: Literal["idle", "waiting", "paused", "full", "train", "label", "evaluate", "unmask"]
    run_name: str = ""
    round_index: int = 0
    rounds: int = 0
    missing: int = 0
    asked: int = 0
    closes_in_s: float | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_shown("run_name", self.run_name)
        for name in self.names:
            check_shown("names", name, LONGEST_GIVEN)


@dataclass(frozen=True)
class Over:
    """A run is finished, and this is what came of it.

    Attributes:
        run_id: The run.
        run_name: What its owner calls it.
        adapter_sha256: The finished adapter; any device that joined the run may fetch it.
        rounds: Rounds that were trained.
        devices: Devices that joined.
        accuracies: Share of right answers over the devices' test texts by round, where evaluated;
            of tagging the F1 of entities.
        ended: Why: all `rounds` are done, `patience` with its evaluations ran out, or it was
            `stopped` by its operator.
        kept_round: The round whose adapter this is, in a run that keeps its best one; null: the
            last.
        losses: Mean cross-entropy at masked words over the devices' test texts in nats, by round;
            of a task that masks some, else empty.
    """

    run_id: str
    run_name: str
    adapter_sha256: str
    rounds: int
    devices: int
    accuracies: dict[int, float] = field(default_factory=dict)
    ended: Ended = "rounds"
    kept_round: int | None = None
    losses: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_id("run_id", self.run_id)
        check_id("adapter_sha256", self.adapter_sha256)
        check_shown("run_name", self.run_name)
        are_told = all(index >= 0 and isfinite(loss) for index, loss in self.losses.items())
        demand(are_told, "losses: finite numbers by round, 0 or more")
        is_trained = self.kept_round is None or 0 <= self.kept_round <= self.rounds
        demand(is_trained, "kept_round: 0 to rounds, or null")


@dataclass(frozen=True)
class Next:
    """What a device does next: exactly one of these.

    Attributes:
        work: A piece of work; the same until it is answered.
        terms: A run wants this device: can it take part? Said once in each life of a client.
        over: A run that this device was in is finished; said until its adapter is at home.
        waiting: Nothing now.
        outdated: Nothing until a newer client is installed.
    """

    work: Work | None = None
    terms: Terms | None = None
    over: Over | None = None
    waiting: Waiting | None = None
    outdated: Outdated | None = None

    def __post_init__(self) -> None:
        told = (self.work, self.terms, self.over, self.waiting, self.outdated)
        is_one = sum(part is not None for part in told) == 1
        demand(is_one, "one of work, terms, over, waiting, outdated")


@dataclass(frozen=True)
class Report:
    """What a piece of work cost and gave, or why it failed: numbers and codes, never words.

    Attributes:
        work_id: The work it answers.
        outcome: `done`, or `failed` with `failure` set.
        num_examples: Texts trained on, or read for their labels; of an evaluation the answers
            asked for: one of each text, or its masked tokens, or its words' tags.
        loss: Mean cross-entropy in nats; of the last epoch when training.
        accuracy: Share of right answers over `num_examples` (evaluation), else null.
        cost: What it cost the device, this report not included.
        failure: Code of what went wrong; the device's own log has the words.
        is_leaving: Whether the device ends and takes no part until it asks for work again.
        labelled: Texts with a gold label that the device holds; null if it does not say.
        pseudo_labels: Pseudo-labels that the device holds now.
        confidences: How sure the device is of its unlabelled texts; of label work.
        mean_log_probabilities: Mean over the texts evaluated, in label order; of evaluation.
        layer_forwards: Passes of one text through one layer that this work took, counted by the
            engine.
        refused_bytes: Size of the update that something between device and coordinator refused as
            too large; 0 where nothing did.
        entities: What was found of the entities in the texts evaluated; of tagging.
    """

    work_id: str
    outcome: Literal["done", "failed"]
    num_examples: int = 0
    loss: float | None = None
    accuracy: float | None = None
    cost: Cost = field(default_factory=Cost)
    failure: Failure | None = None
    is_leaving: bool = False
    labelled: int | None = None
    pseudo_labels: int = 0
    confidences: Confidences | None = None
    mean_log_probabilities: tuple[float, ...] = ()
    layer_forwards: int = 0
    refused_bytes: int = 0
    entities: Entities | None = None

    def __post_init__(self) -> None:
        demand(self.num_examples >= 0, "num_examples: 0 or more")
        demand(0 <= self.refused_bytes < 2**53, "refused_bytes: 0 to 2^53")
        is_told = (self.outcome == "failed") == (self.failure is not None)
        demand(is_told, "failure: a code where the outcome is `failed`, and only there")


@dataclass(frozen=True)
class Receipt:
    """The coordinator has it, on disk.

    Attributes:
        accepted: Whether it counts for the round; false for work that is closed by now.
        reason: Why it does not count, for the client's log.
        next: What `GET /v1/work` would answer, where a report's query asks for that.
    """

    accepted: bool
    reason: str = ""
    next: Next | None = None


def encode(message: Any) -> bytes:
    """Encode a message as JSON with sorted keys, so equal messages are equal bytes."""
    return json.dumps(asdict(message), sort_keys=True, separators=(",", ":")).encode()


def encode_brief(message: Any) -> bytes:
    """Encode a message without what has its default; decoding gives an equal message.

    So the defaults of what is sent like this are part of the protocol.
    """
    return json.dumps(_brief(message), sort_keys=True, separators=(",", ":")).encode()


def _brief(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _brief(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_brief(one) for one in value]
    if not is_dataclass(value):
        return value
    told = ((part, getattr(value, part.name)) for part in fields(value))
    return {part.name: _brief(found) for part, found in told if found != _default(part)}


def _default(part: Field[Any]) -> Any:
    if part.default_factory is not MISSING:
        return part.default_factory()
    return part.default  # MISSING equals nothing


def decode(body: bytes, kind: type[Message]) -> Message:
    """Decode and check one JSON message.

    Raises:
        WireError: The bytes are not such a message.
    """
    if len(body) > MAX_JSON_BYTES:
        raise WireError(f"{kind.__name__}: {len(body)} bytes, at most {MAX_JSON_BYTES} expected")
    try:
        return from_json(body, kind)
    except (ValueError, TypeError) as error:
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise WireError(f"not {article} {kind.__name__} of protocol {PROTOCOL}: {error}") from error

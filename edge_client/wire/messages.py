"""The contract between a device and its coordinator, protocol 4, and its JSON messages.

Messages are frozen dataclasses that check themselves on both sides; adapters and updates travel as
safetensors files, never as pickle (`edge_client.wire.tensors`). The device opens every connection:

    POST /v1/terms                    Asking -> Terms         what the run asks, before joining it
    POST /v1/enrol                    Enrol -> Enrolled       token for a device key
    GET  /v1/work?wait_s=25&have=SHA  200 Work, 202 Waiting   long poll; 410 Over at the run's end
    GET  /v1/adapters/{sha256}        safetensors             skipped if the device has it
    PUT  /v1/work/{work_id}/update    safetensors -> Receipt  the same body twice counts once
    POST /v1/work/{work_id}/report    Report -> Receipt       figures, or a code of why it failed

All but the first two carry `Authorization: Bearer DEVICE_KEY`; a body that holds tensors carries
its SHA-256 as `Content-Digest` (RFC 9530). What of this leaves a device, and what it reveals, is in
docs/privacy.md.
"""

import json
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar

import msgspec

from edge_client.errors import Failed, demand
from edge_client.texts.tasks import Task
from edge_client.wire.confidences import Confidences
from edge_client.wire.cost import Cost
from edge_client.wire.failures import Failure
from edge_client.wire.labelling import Labelling

PROTOCOL = 4
LONGEST_NAME = 64  # characters of a device's name
MAX_JSON_BYTES = 256 * 1024

Message = TypeVar("Message")
DOING = {"train": "training", "label": "labelling", "evaluate": "evaluation"}  # work, for people


class WireError(Failed):
    """Bytes from outside that are not what the contract says."""


@dataclass(frozen=True)
class DeviceFacts:
    """What a device says of itself at enrolment; nothing here is checked or trusted.

    Attributes:
        machine: Processor architecture, such as `aarch64`.
        cores: Logical processors the client may use.
        memory_bytes: Physical memory.
        python: Version of the interpreter.
        smidgen: Version of the client.
    """

    machine: str
    cores: int
    memory_bytes: int
    python: str
    smidgen: str


@dataclass(frozen=True)
class Enrol:
    """A device asks to join a run.

    Attributes:
        protocol: Version of this contract the client speaks.
        token: The run's enrolment token, given to the device by its owner.
        name: The device's own name, 1 to 64 characters; unique within the run.
        facts: What the coordinator's list of devices shows.
    """

    protocol: int
    token: str
    name: str
    facts: DeviceFacts

    def __post_init__(self) -> None:
        is_name = 0 < len(self.name) <= LONGEST_NAME and self.name.isprintable()
        demand(is_name, f"name: 1 to {LONGEST_NAME} characters")
        demand(0 < len(self.token) <= 200, "token: 1 to 200 characters")


@dataclass(frozen=True)
class Training:
    """How a device trains in one round.

    Attributes:
        epochs: Passes over the labelled texts.
        batch: Texts in one optimizer step.
        lr: AdamW's learning rate.
        weight_decay: AdamW's decoupled weight decay.
        tokens: Longest input in tokens, pattern included; longer texts are cut, patterns never.
    """

    epochs: int = 4
    batch: int = 8
    lr: float = 5e-3
    weight_decay: float = 0.0
    tokens: int = 128

    def __post_init__(self) -> None:
        demand(1 <= self.epochs <= 10_000, "epochs: 1 to 10000")
        demand(1 <= self.batch <= 4096, "batch: 1 to 4096")
        demand(0.0 < self.lr < 100.0, "lr: above 0 and below 100")
        demand(0.0 <= self.weight_decay < 1.0, "weight_decay: 0 to below 1")
        demand(8 <= self.tokens <= 8192, "tokens: 8 to 8192")


@dataclass(frozen=True)
class Asking:
    """A device asks what a run wants of it, before it joins.

    Attributes:
        protocol: Version of this contract the client speaks.
        token: The run's enrolment token.
    """

    protocol: int
    token: str

    def __post_init__(self) -> None:
        demand(0 < len(self.token) <= 200, "token: 1 to 200 characters")


@dataclass(frozen=True)
class Terms:
    """What a run asks of its devices, so that one that cannot take part never joins.

    Attributes:
        protocol: Version of this contract the coordinator speaks.
        run_id: The run that the token is for.
        run_name: What its owner calls it.
        base_id: SHA-256 of the frozen base the run trains on; the device must hold the same.
        base_name: What the run's owner calls that base, for messages to people.
        adapter_spec: The adapter's name, such as `lora:8@q,v`.
        task: Labels, patterns and verbalizer.
        training: How to train.
        rounds: Server steps until the run is finished.
        min_clients: Devices that the first round waits for.
        labelling: How devices find and weigh pseudo-labels; null in a run without.
    """

    protocol: int
    run_id: str
    run_name: str
    base_id: str
    base_name: str
    adapter_spec: str
    task: Task
    training: Training
    rounds: int
    min_clients: int
    labelling: Labelling | None = None


@dataclass(frozen=True)
class Enrolled:
    """The coordinator's answer to `Enrol`.

    Attributes:
        device_id: The name under which the coordinator knows the device in this run.
        device_key: Secret of the device for every later request; said once, only here.
        terms: What the run asks.
    """

    device_id: str
    device_key: str
    terms: Terms


@dataclass(frozen=True)
class Work:
    """One piece of work for one device.

    Attributes:
        protocol: Version of this contract.
        work_id: Names this work in the answer; unguessable and unique.
        kind: `train` answers with an update and a report, `label` (look for pseudo-labels) and
            `evaluate` with a report alone.
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
    """

    protocol: int
    work_id: str
    kind: Literal["train", "label", "evaluate"]
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

    def __post_init__(self) -> None:
        is_whole = self.kind != "label" or self.labelling is not None
        demand(is_whole, "labelling: expected with label work")
        demand(0.0 <= self.keep <= 1.0, "keep: 0 to 1")
        demand(self.most >= 0, "most: 0 or more")
        labels = len(self.task.labels)
        for name in ("prior", "thresholds"):
            found = len(getattr(self, name))
            demand(found in (0, labels), f"{name}: one number per label, {labels}, or none")


@dataclass(frozen=True)
class Waiting:
    """There is no work for this device now: what the run waits for.

    Attributes:
        phase: `waiting` for devices, or what others are asked to do.
        round_index: Round that comes next or is open; 0 is the evaluation before any training.
        rounds: Rounds of the run.
        missing: Devices still needed to begin, or asked and without an answer so far.
        asked: Devices needed to begin, or asked.
        closes_in_s: Seconds until the open step stops waiting; null where none is open.
        names: The missing devices' names, where the run's owner lets devices know them.
    """

    phase: Literal["waiting", "train", "label", "evaluate"]
    round_index: int
    rounds: int
    missing: int
    asked: int
    closes_in_s: float | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Over:
    """The run is finished, and this is what came of it.

    Attributes:
        adapter_sha256: The finished adapter; any device of the run may fetch it.
        rounds: Rounds that were trained.
        devices: Devices that were enrolled.
        accuracies: Share of right labels over the devices' test texts by round, where evaluated.
    """

    adapter_sha256: str
    rounds: int
    devices: int
    accuracies: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What a piece of work cost and gave, or why it failed: numbers and codes, never words.

    Attributes:
        work_id: The work it answers.
        outcome: `done`, or `failed` with `failure` set.
        num_examples: Texts trained on, evaluated, or read for their labels.
        loss: Mean cross-entropy in nats; of the last epoch when training.
        accuracy: Share of right labels over `num_examples` (evaluation), else null.
        cost: What it cost the device, this report not included.
        failure: Code of what went wrong; the device's own log has the words.
        is_leaving: Whether the device ends and takes no part until it asks for work again.
        labelled: Texts with a gold label that the device holds; null if it does not say.
        pseudo_labels: Pseudo-labels that the device holds now.
        confidences: How sure the device is of its unlabelled texts; of label work.
        mean_log_probabilities: Mean over the texts evaluated, in label order; of evaluation.
        layer_forwards: Passes of one text through one layer that this work took, counted by the
            engine.
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

    def __post_init__(self) -> None:
        demand(self.num_examples >= 0, "num_examples: 0 or more")
        is_told = (self.outcome == "failed") == (self.failure is not None)
        demand(is_told, "failure: a code where the outcome is `failed`, and only there")


@dataclass(frozen=True)
class Receipt:
    """The coordinator has it, on disk.

    Attributes:
        accepted: Whether it counts for the round; false for work that is closed by now.
        reason: Why it does not count, for the client's log.
    """

    accepted: bool
    reason: str = ""


def encode(message: Any) -> bytes:
    """Encode a message as JSON with sorted keys, so equal messages are equal bytes."""
    return json.dumps(asdict(message), sort_keys=True, separators=(",", ":")).encode()


def encode_brief(message: Any) -> bytes:
    """Encode a message without what has its default; decoding gives an equal message.

    So the defaults of what is sent like this are part of the protocol.
    """
    return json.dumps(_brief(message), sort_keys=True, separators=(",", ":")).encode()


def _brief(value: Any) -> Any:
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
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"not a {kind.__name__} of protocol {PROTOCOL}: {error}") from error

"""Runs in the operator's API, what creates one, and orders to those that are there."""

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import Field, create_model

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.operator.schemas import Answer, Asked, Model, Round, page_of
from smidgen.coordinator.rounds.accounting import PrivacySpent
from smidgen.coordinator.rounds.events import Kind
from smidgen.coordinator.rounds.schedule import RunSpec, Schedule
from smidgen.coordinator.rounds.selection import DeviceFilter
from smidgen.coordinator.storage.runs import Order
from smidgen.edge_client.wire.messages import Ended
from smidgen.edge_client.wire.reports import Failure

Phase = Literal["waiting", "paused", "train", "label", "evaluate", "unmask", "finished"]


class Passed(Model):
    """Devices that were there and are not asked to train.

    Attributes:
        reason: Why.
        devices: How many.
    """

    reason: str
    devices: int


class Step(Model):
    """The open step of a run.

    Attributes:
        kind: What its devices do.
        round_index: Of a label step the training round that follows; 0 is the evaluation before
            any training.
        attempt: 1-based; a training round with too few updates is tried again.
        opened_at_s: When it was asked, or the coordinator last came back.
        closes_at_s: When it stops waiting; stands still while the run is paused.
        asked: Devices that were asked.
        answers: Those that have answered, failures too.
        failed: Those among them that failed.
        passed: Why others that were there were not asked to train.
    """

    kind: Kind
    round_index: int
    attempt: int
    opened_at_s: float
    closes_at_s: float
    asked: int
    answers: int
    failed: int
    passed: list[Passed]


class Run(Model):
    """Where a run stands.

    Attributes:
        run_id: Its id.
        name: Its name; no other run of the coordinator has it.
        created_at_s: When it was created.
        phase: `waiting` for devices, `paused`, `finished`, or what its open step does.
        is_stopped: Whether it was ended before its last round; `phase` is `finished` then.
        ended: Why it is finished: all `rounds` are done, `patience` with its evaluations ran out,
            or it was `stopped`; null while it goes on.
        trouble: What last went wrong with it as a whole, in words; empty of nothing.
        paused_at_s: Since when it stands still; null while it does not.
        round_index: The last round of training that was closed.
        rounds: Rounds until it is finished.
        devices: Devices that joined it.
        here: Those among them that were heard of within two minutes and have not left.
        needed: Devices that its next step waits for.
        step: The open step; null between two, and in a run that is finished.
        kind: What its task asks, by the name of its kind: such as `labels` of texts, `tagging` of
            words, or masked words (`mlm`).
        accuracy: Of the newest evaluation, over all devices' test texts: share of right labels, or
            of right masked words; null before one, and of tagging.
        accuracy_error: Its standard error where a cohort evaluated for all; 0 where all were asked,
            null where one device answered for several, which tells none, and before an evaluation.
        accuracy_median: The median device's then; null where not known.
        accuracy_round: The round that was evaluated then, whatever the kind of task.
        f1: Of tagging, F1 of entities then, words and type right; else null.
        f1_error: Its standard error, as that of an accuracy.
        f1_median: The median device's.
        perplexity: Of masked words then; null of other tasks.
        loss: Of the newest round of training.
    """

    run_id: str
    name: str
    created_at_s: float
    phase: Phase
    is_stopped: bool
    ended: Ended | None
    trouble: str
    paused_at_s: float | None
    round_index: int
    rounds: int
    devices: int
    here: int
    needed: int
    step: Step | None
    kind: str
    accuracy: float | None
    accuracy_error: float | None
    accuracy_median: float | None
    accuracy_round: int | None
    f1: float | None
    f1_error: float | None
    f1_median: float | None
    perplexity: float | None
    loss: float | None


class Failing(Model):
    """The newest task that nobody could do: everyone who was asked has failed at it.

    Attributes:
        kind: What was asked.
        round_index: In which round.
        attempts: How often.
        devices: Names of those that failed.
        failures: Why.
    """

    kind: Kind
    round_index: int
    attempts: int
    devices: list[str]
    failures: list[Failure]


class RunDetail(Run):
    """A run with what it is.

    Attributes:
        base: The frozen base, as its owner named it.
        base_id: SHA-256 of the base.
        adapter: What is trained.
        adapter_sha256: The adapter of the last closed round.
        kept_round: The round whose adapter is the run's as it stands: of the last, or where it
            keeps its best one of that.
        kept_sha256: That adapter.
        labels: Of its task; the types of entities of tagging, none of masked words.
        deadline_s: Seconds after which a step goes on without late devices.
        fraction: Share of the devices asked to train in a round.
        min_clients: Devices that the first round waits for.
        is_labelling: Whether devices label texts of their own.
        privacy: Where its differential privacy stands; None without.
        secure_aggregation: Bits of each number under secure aggregation, such as `int8`; empty:
            the coordinator sees each update.
        choice: Which devices it wants.
        failing: Set while nobody can do what is asked.
        totals: Of all rounds; its `round_index` is the newest, its accuracy and loss the newest
            that are known.
    """

    base: str
    base_id: str
    adapter: str
    adapter_sha256: str
    kept_round: int
    kept_sha256: str
    labels: list[str]
    deadline_s: float
    fraction: float
    min_clients: int
    is_labelling: bool
    privacy: PrivacySpent | None
    secure_aggregation: str
    choice: DeviceFilter
    failing: Failing | None
    totals: Round | None


class Member(Model):
    """A device as it stands to a run.

    Attributes:
        device_id: Its id.
        name: Its name.
        membership: `joined`, `declined`, or `home`: the run is over and it has the adapter.
        declined: Why it declined.
        peak_bytes: Memory that its plan for this run predicts.
        last_seen_s: When it was last heard of, to within half a minute.
        is_here: Whether that was within two minutes.
        is_revoked: Whether its key no longer counts.
        now: What it owes the open step: `asked`; `late`, where half of those asked have answered
            and it has not; `done`; `failed`; null where it was not asked.
        left: Why it takes no part for now.
        misses: Steps in a row that closed without it; it is asked less often for that.
        last: Its newest answer in this run.
        scored: Its newest evaluation in this run, told as a round in which it answered alone.
    """

    device_id: str
    name: str
    membership: Literal["joined", "declined", "home"]
    declined: Failure | None
    peak_bytes: int | None
    last_seen_s: float | None
    is_here: bool
    is_revoked: bool
    now: Literal["asked", "late", "done", "failed"] | None
    left: Failure | None
    misses: int
    last: Answer | None
    scored: Round | None


Runs = page_of("Runs", "Runs, the newest first.", Run)
Members = page_of(
    "Members", "Devices that answered a run's invitation, by name.", Member, "devices"
)
Answers = page_of("Answers", "Answers of devices, the newest first.", Answer)


def _asked(hint: Any) -> Any:
    """A key's type in JSON; tables are checked key by key as those of a run file are."""
    if any(map(is_dataclass, get_args(hint) or (hint,))):
        return dict[str, Any] | None
    return (list[str] if get_origin(hint) is tuple else hint) | None


def _attributes(record: type) -> str:
    """What a docstring says of a record's fields."""
    return (record.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0] + "\n"


if TYPE_CHECKING:
    NewRun = Asked
else:
    NewRun = create_model(
        "NewRun",
        __base__=Asked,
        __doc__="A run to create, as a run file says it: see docs/examples/run.toml. `task` may be "
        "a ready-made one's name, `preset` names values for what is not said.\n"
        + "\n    Attributes:\n"
        + "".join(map(_attributes, (RunConfig, Schedule, RunSpec))),
        task=(str | dict[str, Any], ...),
        preset=(str | None, None),
        **{
            one.name: (_asked(get_type_hints(RunConfig)[one.name]), None)
            for one in fields(RunConfig)
            if one.name != "task"
        },
    )


class CreatedRun(Model):
    """A run that was just created, with a token for its devices that is not shown again.

    Attributes:
        run_id: Its id.
        name: Its name.
        token: Lets devices in.
        privacy: What its differential privacy comes to, in words; empty without.
    """

    run_id: str
    name: str
    token: str
    privacy: str


class Extend(Asked):
    """More rounds for a run.

    Attributes:
        rounds: Rounds until it is finished, all in all; more than it has.
    """

    rounds: int = Field(ge=1, le=1_000_000)


class Rollback(Asked):
    """An earlier round to go on from.

    Attributes:
        round_index: The round whose adapter the run goes on from; 0 is its first adapter.
    """

    round_index: int = Field(ge=0, le=1_000_000)


Orders = page_of("Orders", "Orders, the newest first.", Order)

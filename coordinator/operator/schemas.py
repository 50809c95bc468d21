"""What the operator's API says and hears of devices, tokens, operators and everything they share.

Times are Unix seconds, sizes bytes, shares 0 to 1. Every request carries an operator's token, as
`Authorization: Bearer TOKEN` or as the cookie of the log-in page; a viewer may GET, an operator
may also change. Refusals are `{"detail": "one line"}`: 401 nobody, 403 not with this role, 404 no
such thing, 409 not as it stands, 422 no such value.

    GET  /v1/operator/runs                          Runs, the newest first
    POST /v1/operator/runs                          NewRun -> CreatedRun (201)
    GET  /v1/operator/runs/{run_id}                 RunDetail
    GET  /v1/operator/runs/{run_id}/rounds          Rounds, the newest first
    GET  /v1/operator/runs/{run_id}/devices         Members, by name
    GET  /v1/operator/runs/{run_id}/answers?outcome=failed  Answers, the newest first
    GET  /v1/operator/runs/{run_id}/orders          Orders, the newest first
    POST /v1/operator/runs/{run_id}/pause           -> Order (202); so resume and stop
    POST /v1/operator/runs/{run_id}/extend          Extend -> Order (202)
    GET  /v1/operator/devices?tag=site=kitchen      Devices, by name
    GET  /v1/operator/devices/{device_id}           DeviceDetail
    PUT  /v1/operator/devices/{device_id}/tags      Tags -> Device: the operator's tags, all of them
    POST /v1/operator/devices/{device_id}/revoke    -> Device
    POST /v1/operator/devices/{device_id}/forget    -> Orders (202), one for each of its runs
    GET  /v1/operator/tokens                        Tokens, the newest first
    POST /v1/operator/tokens                        NewToken -> CreatedToken (201)
    POST /v1/operator/tokens/{token_id}/revoke      -> Token
    GET  /v1/operator/operators                     Operators; operators alone may read it
    POST /v1/operator/operators                     NewOperator -> CreatedOperator (201)
    POST /v1/operator/operators/{operator_id}/revoke  -> Operator

Lists take `?limit=50&after=NEXT`; `next` of an answer is the `after` of the following page, null
on the last. An order is carried out by the next tick of the server, within a second: its
`done_at_s` says when, and the run's `phase` shows it.
"""

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any, Literal, TypeAlias, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.config import JsonDict

from smidgen.coordinator.operator.examples import EXAMPLES
from smidgen.coordinator.rounds.events import Kind
from smidgen.coordinator.storage import credentials
from smidgen.coordinator.storage.credentials import Role
from smidgen.edge_client.wire.fleet import LONGEST_TAG, MOST_TAGS, DeviceFacts
from smidgen.edge_client.wire.reports import Failure

Shape: TypeAlias = type[BaseModel]


def _add_example(schema: JsonDict, model: type[Any]) -> None:
    schema["examples"] = [EXAMPLES[model.__name__]]


class Model(BaseModel):
    """A closed model, which OpenAPI shows with the example of its name."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_add_example)


class Asked(Model):
    """A request; its values have exactly the types of the fields."""

    model_config = ConfigDict(strict=True)


def shape(
    name: str, doc: str, fields: Mapping[str, Any], base: Shape = Model, **more: Any
) -> Shape:
    """A model with the fields of a record that is defined elsewhere.

    Args:
        name: Of the model, in the OpenAPI document.
        doc: Its description.
        fields: Their types, in the order of an answer.
        base: The model that it extends.
        more: Settings of the model, such as another example.
    """
    told: dict[str, Any] = {key: (hint, ...) for key, hint in fields.items()}
    return create_model(name, __base__=base, __doc__=doc, __cls_kwargs__=more, **told)


def page_of(name: str, doc: str, item: Any, key: str = "", following: str | None = None) -> Shape:
    """A page of a list, such as `Runs`: `{"runs": [...], "next": null}`.

    Args:
        name: Of the model.
        doc: Its description.
        item: The model of one item.
        key: Of the list; by default the name in lower case.
        following: `next` in the example.
    """
    key = key or name.lower()
    extra = {"examples": [{key: [EXAMPLES[item.__name__]], "next": following}]}
    fields = {key: list[item], "next": str | None}
    return shape(name, doc, fields, json_schema_extra=extra)


def attributes_of(record: type) -> str:
    """The part of a record's docstring on its fields."""
    return "\n" + cleandoc(record.__doc__ or "").partition("\n\n")[2]


class Answer(Model):
    """A device's answer to a piece of work.

    Attributes:
        device_id: The device.
        device: Its name.
        run_id: The run.
        run_name: Its name.
        kind: What was asked.
        round_index: In which round.
        attempt: Of which attempt.
        outcome: `done` or `failed`.
        failure: Why it failed.
        is_late: Whether it came after its step had closed.
        seconds: Of all its phases on the device but waiting.
        up_bytes: Sent for it.
        down_bytes: Received for it.
        peak_rss_bytes: Highest resident memory; null where the device cannot tell.
    """

    device_id: str
    device: str
    run_id: str
    run_name: str
    kind: Kind
    round_index: int
    attempt: int
    outcome: Literal["done", "failed"]
    failure: Failure | None
    is_late: bool
    seconds: float
    up_bytes: int
    down_bytes: int
    peak_rss_bytes: int | None


class EntityF1(Model):
    """F1 of entities over all devices' test texts; null where none is there and none was found.

    Attributes:
        strict: Right words and right type, all types together (micro).
        typed: Right type and a word in common.
        partial: Right words, whatever the type; half of it for some of them.
        macro: Plain mean of the types' strict F1, of types that are there.
        weighted: Their mean weighted by how many are there.
        by_type: Strict F1 by type.
    """

    strict: float | None
    typed: float | None
    partial: float | None
    macro: float | None
    weighted: float | None
    by_type: dict[str, float | None]


class Round(Model):
    """What a round gave and cost, over all answers of its devices.

    Attributes:
        round_index: 0 is the evaluation before any training.
        accuracy: Share of right labels, or masked words, over all devices' test texts; null of
            tagging.
        accuracy_error: Its standard error where a cohort evaluated for all; 0 where all were asked,
            null where nobody can tell it.
        accuracy_median: The median device's; null before its evaluation is closed.
        f1: Of tagging, F1 of entities, words and type right; else null.
        f1_error: Its standard error, as that of an accuracy.
        f1_median: The median device's; null before its evaluation is closed.
        entities: Of tagging, F1 in each way and by type; else null.
        perplexity: Of masked words; null of other tasks.
        loss: Mean training loss.
        pseudo_labels: Texts that devices labelled themselves, before its training.
        answers: Reports of devices: to train, label and evaluate.
        failed: Those among them that say so.
        late: Those that came after their step had closed.
        failures: How many failed for which reason.
        up_bytes: Sent by the devices.
        down_bytes: Received by the devices.
        is_by_kernel: Whether bytes are TCP's, headers and TLS in them, or bodies alone.
        phases_s: Seconds by phase, summed over the devices.
        lost: With `lora_mean = "product"`, the share of the mean's squared norm that the run's rank
            leaves out; else null.
    """

    round_index: int
    accuracy: float | None
    accuracy_error: float | None
    accuracy_median: float | None
    f1: float | None
    f1_error: float | None
    f1_median: float | None
    entities: EntityF1 | None
    perplexity: float | None
    loss: float | None
    pseudo_labels: int | None
    answers: int
    failed: int
    late: int
    failures: dict[str, int]
    up_bytes: int
    down_bytes: int
    is_by_kernel: bool
    phases_s: dict[str, float]
    lost: float | None = None


Rounds = page_of(
    "Rounds", "Rounds that somebody has answered in, the newest first.", Round, following="2"
)


class NewToken(Asked):
    """An enrolment token to make.

    Attributes:
        uses: Devices that may enrol with it; null: any number.
        expires_in_s: Seconds that it counts; null: for ever.
        tags: Tags of the devices that enrol with it.
    """

    uses: int | None = Field(None, ge=1, le=1_000_000)
    expires_in_s: float | None = Field(None, gt=0, le=3.2e9)
    tags: dict[str, str] = Field(default_factory=dict, max_length=MOST_TAGS)


Token = shape(
    "Token",
    "An enrolment token; the secret itself is shown once and stored as a hash.\n"
    + attributes_of(credentials.Token)
    + "\n    is_valid: Whether another device can enrol with it now.",
    get_type_hints(credentials.Token) | {"is_valid": bool},
)
CreatedToken = shape(
    "CreatedToken",
    "A token that was just made, with its secret, which is not shown again.",
    {"token": str},
    Token,
)
Tokens = page_of("Tokens", "Enrolment tokens, the newest first.", Token)


class NewOperator(Asked):
    """Somebody to let in.

    Attributes:
        role: `viewer` may look, `operator` may also change.
    """

    role: Role


Operator = shape(
    "Operator",
    "Who may look at the coordinator (viewer) or change it (operator).\n"
    + attributes_of(credentials.Operator),
    get_type_hints(credentials.Operator),
)
CreatedOperator = shape(
    "CreatedOperator",
    "Somebody who was just let in, with their token, which is not shown again.",
    {"token": str},
    Operator,
)
Operators = page_of("Operators", "Operators and viewers, the newest first.", Operator)


class LogIn(Model):
    """Somebody's token, once; the page forgets it and goes on by a cookie."""

    token: str = Field(min_length=1, max_length=200)


class Session(Model):
    """Who is logged in on the page.

    Attributes:
        role: What they may do; null where nobody is logged in.
        version: Of smidgen on the server; null where nobody is logged in.
    """

    role: Role | None
    version: str | None


class Membership(Model):
    """How a device stands to a run, by its own word.

    Attributes:
        run_id: The run.
        run_name: Its name.
        state: `joined`, `declined`, or `home`: the run is over and it has the adapter.
        failure: Why it declined.
        peak_bytes: Memory that its plan predicts.
        most_rank: The largest rank of LoRA that it takes; 0: the run's.
        at_s: When it said so.
        misses: Steps of the run in a row that closed without it; it is asked less often for that.
    """

    run_id: str
    run_name: str
    state: Literal["joined", "declined", "home"]
    failure: Failure | None
    peak_bytes: int | None
    most_rank: int
    at_s: float
    misses: int


class Device(Model):
    """A device that enrolled with this coordinator.

    Attributes:
        device_id: Its identity, which follows from its key.
        name: Its name, one of its kind at this coordinator.
        tags: What runs choose by: its own, overruled by the operator's.
        own_tags: What its owner said of it when it started.
        operator_tags: What operators said of it.
        facts: What it says of itself.
        token_id: The token it enrolled with; null where it came with an old store.
        enrolled_at_s: When it first came.
        last_seen_s: When it was last heard of, to within half a minute; null if never.
        is_here: Whether that was within two minutes.
        revoked_at_s: Since when its key no longer counts; null while it does.
        cloned_at_s: When two clients were last found to run with its key, which a copied state
            folder holds; null if not in the last day.
        runs: How it stands to the runs that it was invited to.
    """

    device_id: str
    name: str
    tags: dict[str, str]
    own_tags: dict[str, str]
    operator_tags: dict[str, str]
    facts: DeviceFacts
    token_id: str | None
    enrolled_at_s: float
    last_seen_s: float | None
    is_here: bool
    revoked_at_s: float | None
    cloned_at_s: float | None
    runs: list[Membership]


Devices = page_of("Devices", "Devices, by name.", Device)


class DeviceDetail(Device):
    """A device with its last answers, the newest first."""

    answers: list[Answer]


class Tags(Asked):
    """The operator's tags of a device, all of them; they go before its own."""

    tags: dict[str, str] = Field(
        max_length=MOST_TAGS,
        description=f"Keys and values of at most {LONGEST_TAG} printable characters.",
    )

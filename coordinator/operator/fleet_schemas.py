"""Enrolment tokens, operators and devices in the operator's API."""

from typing import Literal, get_type_hints

from pydantic import Field

from coordinator.operator.schemas import Answer, Asked, Model, attributes_of, page_of, shape
from coordinator.storage import operators as people
from coordinator.storage.operators import Role
from coordinator.storage.rows import tokens
from edge_client.wire.fleet import LONGEST_TAG, MOST_TAGS, DeviceFacts
from edge_client.wire.reports import Failure


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
    + attributes_of(tokens.Token)
    + "\n    is_valid: Whether another device can enrol with it now.",
    get_type_hints(tokens.Token) | {"is_valid": bool},
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
    + attributes_of(people.Operator),
    get_type_hints(people.Operator),
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

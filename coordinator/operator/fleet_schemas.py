"""Enrolment tokens and operators, as the operator's API says them.

Devices, as the operator's API says them.
"""

from typing import Any, Literal

from pydantic import Field

from coordinator.operator.schemas import ANSWER, Answer, Asked, Model, example
from coordinator.storage.operators import Role
from edge_client.wire.fleet import LONGEST_TAG, MOST_TAGS, DeviceFacts
from edge_client.wire.reports import Failure

TOKEN = {
    "token_id": "t0a1b2c3d4e",
    "created_at_s": 1789990000.0,
    "expires_at_s": 1790600000.0,
    "uses": 10,
    "used": 3,
    "tags": {"site": "kitchen"},
    "revoked_at_s": None,
    "is_valid": True,
}


class NewToken(Asked):
    """An enrolment token to make.

    Attributes:
        uses: Devices that may enrol with it; null: any number.
        expires_in_s: Seconds that it counts; null: for ever.
        tags: Tags of the devices that enrol with it.
    """

    model_config = example({"uses": 10, "expires_in_s": 604800.0, "tags": {"site": "kitchen"}})

    uses: int | None = Field(None, ge=1, le=1_000_000)
    expires_in_s: float | None = Field(None, gt=0, le=3.2e9)
    tags: dict[str, str] = Field(default_factory=dict, max_length=MOST_TAGS)


class Token(Model):
    """An enrolment token; the secret itself is shown once and stored as a hash.

    Attributes:
        token_id: Names it.
        created_at_s: When it was made.
        expires_at_s: When it ends; null: never.
        uses: Devices that may enrol with it; null: any number.
        used: Devices that did.
        tags: Tags of the devices that enrol with it.
        revoked_at_s: When it was revoked; null if it was not.
        is_valid: Whether another device can enrol with it now.
    """

    model_config = example(TOKEN)

    token_id: str
    created_at_s: float
    expires_at_s: float | None
    uses: int | None
    used: int
    tags: dict[str, str]
    revoked_at_s: float | None
    is_valid: bool


class CreatedToken(Token):
    """A token that was just made, with its secret, which is not shown again."""

    model_config = example({**TOKEN, "token": "sEcReT"})

    token: str


class Tokens(Model):
    """Enrolment tokens, the newest first."""

    model_config = example({"tokens": [TOKEN], "next": None})

    tokens: list[Token]
    next: str | None


OPERATOR = {
    "operator_id": "o0a1b2c3d4e",
    "role": "operator",
    "created_at_s": 1789990000.0,
    "revoked_at_s": None,
}


class NewOperator(Asked):
    """Somebody to let in.

    Attributes:
        role: `viewer` may look, `operator` may also change.
    """

    model_config = example({"role": "viewer"})

    role: Role


class Operator(Model):
    """Who may look at the coordinator (viewer) or change it (operator)."""

    model_config = example(OPERATOR)

    operator_id: str
    role: Role
    created_at_s: float
    revoked_at_s: float | None


class CreatedOperator(Operator):
    """Somebody who was just let in, with their token, which is not shown again."""

    model_config = example({**OPERATOR, "token": "sEcReT"})

    token: str


class Operators(Model):
    """Operators and viewers, the newest first."""

    model_config = example({"operators": [OPERATOR], "next": None})

    operators: list[Operator]
    next: str | None


class LogIn(Model):
    """Somebody's token, once; the page forgets it and goes on by a cookie."""

    model_config = example({"token": "sEcReT"})

    token: str = Field(min_length=1, max_length=200)


class Session(Model):
    """Who is logged in on the page.

    Attributes:
        role: What they may do; null where nobody is logged in.
        version: Of smidgen on the server; null likewise.
    """

    model_config = example({"role": "viewer", "version": "0.1.0"})

    role: Role | None
    version: str | None


MEMBERSHIP = {
    "run_id": "r0a1b2c3d4e",
    "run_name": "mail",
    "state": "joined",
    "failure": None,
    "peak_bytes": 180000000,
    "most_rank": 0,
    "at_s": 1789990100.0,
    "misses": 0,
}


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

    model_config = example(MEMBERSHIP)

    run_id: str
    run_name: str
    state: Literal["joined", "declined", "home"]
    failure: Failure | None
    peak_bytes: int | None
    most_rank: int
    at_s: float
    misses: int


FACTS: dict[str, Any] = {
    "machine": "aarch64",
    "cores": 4,
    "memory_bytes": 4_000_000_000,
    "python": "3.11.2",
    "smidgen": "0.1.0",
    "engine": "onnx",
    "base_id": "9f" * 32,
    "budget_bytes": 512_000_000,
    "board": "Raspberry Pi 4 Model B",
    "is_on_mains": None,
}
DEVICE = {
    "device_id": "d0123456789abcdef0123",
    "name": "pi-kitchen",
    "tags": {"site": "kitchen"},
    "own_tags": {"site": "hall"},
    "operator_tags": {"site": "kitchen"},
    "facts": FACTS,
    "token_id": "t0a1b2c3d4e",
    "enrolled_at_s": 1789990000.0,
    "last_seen_s": 1790000012.0,
    "is_here": True,
    "revoked_at_s": None,
    "cloned_at_s": None,
    "runs": [MEMBERSHIP],
}


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

    model_config = example(DEVICE)

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


class Devices(Model):
    """Devices, by name."""

    model_config = example({"devices": [DEVICE], "next": None})

    devices: list[Device]
    next: str | None


class DeviceDetail(Device):
    """A device with its last answers, the newest first."""

    model_config = example({**DEVICE, "answers": [ANSWER]})

    answers: list[Answer]


class Tags(Asked):
    """The operator's tags of a device, all of them; they go before its own."""

    model_config = example({"tags": {"site": "kitchen", "language": "de"}})

    tags: dict[str, str] = Field(
        max_length=MOST_TAGS,
        description=f"Keys and values of at most {LONGEST_TAG} printable characters.",
    )

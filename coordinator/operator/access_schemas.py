"""Enrolment tokens and operators, as the operator's API says them."""

from pydantic import Field

from coordinator.operator.schemas import Asked, Model, example
from coordinator.storage.operators import Role
from edge_client.wire.fleet import MOST_TAGS

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

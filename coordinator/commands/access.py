"""`smidgen coordinator tokens` and `operators`: who may enrol, who may look, and who may change.

Tokens of devices are counted, expire and can be revoked.
"""

import json
import re
import time
from contextlib import closing
from dataclasses import asdict
from enum import Enum
from typing import Annotated

import typer

from smidgen.coordinator.api.stores import open_store
from smidgen.coordinator.commands.console import (
    JsonOption,
    StoreOption,
    answer,
    at_store,
    device_lines,
    tags_of,
)
from smidgen.coordinator.operator.views import token_told
from smidgen.coordinator.storage.credentials import (
    add_operator,
    draw_secret,
    insert_token,
    operator_of_token,
    operators,
    revoke,
    revoke_operator,
    tokens,
)
from smidgen.coordinator.storage.database import StoreError
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.options import Commands
from smidgen.edge_client.tables import Column, Table, show, span

TOKEN_COLUMNS = (
    Column("token", "word"),
    Column("state", "text"),
    Column("used", "word"),
    Column("expires", "word", optional=1),
    Column("tags", "text", optional=2),
    Column("made", "word", optional=3),
)
OPERATOR_COLUMNS = (
    Column("operator", "word"),
    Column("role", "word"),
    Column("state", "word"),
    Column("let in", "word", optional=1),
)
UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST_S = 3.2e9  # a hundred years
MOST_USES = 1_000_000
USES = "Devices that may enrol with it; by default any number."
EXPIRES = "How long it lets devices in, such as 90min, 12h or 7d; by default for ever."
TAG = "Tag of the devices that enrol with it, such as site=kitchen; may be given again."

tokens_app = Commands("Enrolment tokens: what lets new devices in.")
operators_app = Commands(
    "Who may look at this coordinator (viewer) and change it (operator), by token."
)


@tokens_app.command("list")
@at_store
def list_tokens(store: StoreOption, as_json: JsonOption = False) -> None:
    """List enrolment tokens, the newest first; the secrets themselves are nowhere."""
    now_s = time.time()
    with closing(open_store(store)) as opened:
        found = tokens(opened.database)[::-1]
    if as_json:
        print(json.dumps({"tokens": [token_told(one, now_s) for one in found]}, sort_keys=True))
        return
    rows = [
        [
            one.token_id,
            one.lack(now_s) or "lets devices in",
            f"{one.used} of {one.uses}" if one.uses is not None else str(one.used),
            _ends(one.expires_at_s, now_s),
            " ".join(f"{key}={value}" for key, value in sorted(one.tags.items())) or "-",
            f"{span(now_s - one.created_at_s)} ago",
        ]
        for one in found
    ]
    if rows:
        show(Table(TOKEN_COLUMNS, rows))
    else:
        print("no token yet; `smidgen coordinator tokens new` makes one")


def _ends(at_s: float | None, now_s: float) -> str:
    if at_s is None:
        return "never"
    return f"in {span(at_s - now_s)}" if at_s > now_s else f"{span(now_s - at_s)} ago"


@tokens_app.command("new")
@at_store
def new_token(
    store: StoreOption,
    uses: Annotated[int | None, typer.Option(help=USES)] = None,
    expires: Annotated[str | None, typer.Option(metavar="SPAN", help=EXPIRES)] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help=TAG)] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an enrolment token; print the line that starts a device with it.

    It is not shown again.
    """
    is_count = uses is None or 1 <= uses <= MOST_USES
    demand(is_count, f"--uses {uses}: 1 to {MOST_USES} are expected")
    tags, now_s, secret = tags_of("--tag", tag or ()), time.time(), draw_secret()
    ends_at_s = None if expires is None else now_s + span_s("--expires", expires)
    with closing(open_store(store)) as opened:
        token_id, added = insert_token(secret, now_s, uses, ends_at_s, tags)
        opened.database.write(added)
    told = {"token_id": token_id, "token": secret, "uses": uses, "expires_at_s": ends_at_s}
    ends = "never expires" if ends_at_s is None else f"expires {_ends(ends_at_s, now_s)}"
    lines = [f"enrolment token {secret}", f"its id is {token_id}; it {ends}"]
    lines += device_lines(store, secret)
    answer("\n".join(lines), told | {"tags": tags, "line": lines[-1]}, as_json)


def span_s(option: str, text: str) -> float:
    """Seconds of a span such as 12h.

    Raises:
        WrongInput: It is not one, or longer than a hundred years.
    """
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(s|min|h|d)", text, re.ASCII)
    value_s = float(match[1]) * UNITS_S[match[2]] if match else 0.0
    if not 0 < value_s <= LONGEST_S:
        units = ", ".join(UNITS_S)
        raise WrongInput(f"{option} {text[:40]!r}: a number and one of {units} expected, as in 7d")
    return value_s


@tokens_app.command("revoke")
@at_store
def revoke_token(
    store: StoreOption,
    token: Annotated[str, typer.Argument(help="Id of the token, as `tokens list` shows it.")],
    as_json: JsonOption = False,
) -> None:
    """Let nobody enrol with a token any more; devices that came with it stay."""
    now_s = time.time()
    with closing(open_store(store)) as opened:
        if token not in {one.token_id for one in tokens(opened.database)}:
            raise StoreError(
                f"no token {token[:40]!r}; `smidgen coordinator tokens list` shows their ids"
            )
        revoke(opened.database, token, now_s)
    answer(f"token {token} is revoked", {"token_id": token, "revoked_at_s": now_s}, as_json)


class RoleName(str, Enum):
    """The roles, as the command line shows them."""

    operator = "operator"
    viewer = "viewer"


@operators_app.command("list")
@at_store
def list_operators(store: StoreOption, as_json: JsonOption = False) -> None:
    """List operators and viewers, the newest first."""
    now_s = time.time()
    with closing(open_store(store)) as opened:
        found = operators(opened)
    if as_json:
        print(json.dumps({"operators": [asdict(one) for one in found]}, sort_keys=True))
        return
    rows = [
        [
            one.operator_id,
            one.role,
            "let in" if one.revoked_at_s is None else "revoked",
            f"{span(now_s - one.created_at_s)} ago",
        ]
        for one in found
    ]
    if rows:
        show(Table(OPERATOR_COLUMNS, rows))
    else:
        print("nobody yet; `smidgen coordinator operators new` lets somebody in")


@operators_app.command("new")
@at_store
def new_operator(
    store: StoreOption,
    role: Annotated[
        RoleName, typer.Option(help="`viewer` may look, `operator` may also change.")
    ] = RoleName.operator,
    as_json: JsonOption = False,
) -> None:
    """Let somebody in; print their token, which is not shown again."""
    with closing(open_store(store)) as opened:
        token = add_operator(opened, role.value, time.time())
        found = operator_of_token(opened, token)
    assert found is not None  # it was added a moment ago
    told = {"operator_id": found.operator_id, "role": found.role, "token": token}
    answer(f"{found.role}'s token {token}", told, as_json)


@operators_app.command("revoke")
@at_store
def end_operator(
    store: StoreOption,
    operator: Annotated[str, typer.Argument(help="Id, as `operators list` shows it.")],
    as_json: JsonOption = False,
) -> None:
    """Let an operator's or a viewer's token count no longer, and end their sessions."""
    with closing(open_store(store)) as opened:
        found = revoke_operator(opened, operator, time.time())
    answer(f"{found.role} {found.operator_id} is revoked", asdict(found), as_json)

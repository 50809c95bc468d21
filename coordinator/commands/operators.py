"""`smidgen coordinator operators`: who may look at a coordinator, and who may change it."""

import json
import time
from contextlib import closing
from dataclasses import asdict
from enum import Enum
from typing import Annotated

import typer

from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, StoreOption, answer, at_store
from coordinator.storage.credentials import (
    add_operator,
    operator_of_token,
    operators,
    revoke_operator,
)
from edge_client.tables import Column, Table, show, span

COLUMNS = (
    Column("operator", "word"),
    Column("role", "word"),
    Column("state", "word"),
    Column("let in", "word", optional=1),
)

app = typer.Typer(
    help="Who may look at this coordinator (viewer) and change it (operator), by token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class RoleName(str, Enum):
    """The roles, as the command line shows them."""

    operator = "operator"
    viewer = "viewer"


@app.command("list")
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
        show(Table(COLUMNS, rows))
    else:
        print("nobody yet; `smidgen coordinator operators new` lets somebody in")


@app.command("new")
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


@app.command("revoke")
@at_store
def revoke(
    store: StoreOption,
    operator: Annotated[str, typer.Argument(help="Id, as `operators list` shows it.")],
    as_json: JsonOption = False,
) -> None:
    """Let an operator's or a viewer's token count no longer, and end their sessions."""
    with closing(open_store(store)) as opened:
        found = revoke_operator(opened, operator, time.time())
    answer(f"{found.role} {found.operator_id} is revoked", asdict(found), as_json)

"""`smidgen coordinator list`, `export`: the runs of a store; a run's adapter as a PEFT folder."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import typer

from coordinator.api.export import ExportedAdapter
from coordinator.api.export import export as export_adapter
from coordinator.api.fleet import runs_told
from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, StoreOption, answer, at_store
from coordinator.fleet.clock import now_of
from coordinator.operator.views import Told
from coordinator.rounds.scoring import heads_of, measures_of
from edge_client.errors import demand
from edge_client.options import options_of
from edge_client.tables import Column, Table, share_within, show, span
from edge_client.tasks.kind import kind_named

FIRST = (
    Column("run", "word"),
    Column("name", "text"),
    Column("phase", "word"),
    Column("round", "word"),
    Column("here", "word", optional=1),
)
LAST = (Column("loss", optional=3), Column("created", "word", optional=4))
NOTE = "here: of the devices that joined; {}, loss: the newest that are known"


@at_store
def list_runs(store: StoreOption, as_json: JsonOption = False) -> None:
    """List the runs of a store, the newest first."""
    now_s = now_of(store.folder)
    with closing(open_store(store)) as opened:
        found = runs_told(opened, now_s)
    if as_json:
        print(json.dumps({"runs": found}, sort_keys=True))
        return
    if not found:
        print("no run yet; `smidgen coordinator create` makes one")
        return
    measures = measures_of(one["kind"] for one in found)
    rows = [
        [
            one["run_id"],
            one["name"],
            "stopped" if one["is_stopped"] else one["phase"],
            f"{one['round_index']} of {one['rounds']}",
            f"{one['here']} of {one['devices']}",
            _score(one),
            "-" if one["loss"] is None else f"{one['loss']:.3f}",
            f"{span(now_s - one['created_at_s'])} ago",
        ]
        for one in found
    ]
    columns = [*FIRST, Column(heads_of(measures), optional=2), *LAST]
    said = NOTE.format(", ".join(dict.fromkeys(measure.word for measure in measures)))
    show(Table(columns, rows, notes=[said]))


def _score(one: Told) -> str:
    key = kind_named(one["kind"]).measure.key
    return share_within(one[key], one[f"{key}_error"])


UNTRAINED = "this is the untrained adapter of round 0"
NONE_CLOSED = "no round of training has closed yet"
ROUND = (
    "Whose adapter: of that round, the best by evaluation, or the last closed one; by default the "
    "one that the run keeps, which is the last unless its run file says otherwise."
)


@at_store
@options_of(export_adapter, without=("round_index", "database", "blobs"))
def export(
    call: Callable[..., ExportedAdapter],
    out: Path,
    round_index: Annotated[
        str | None, typer.Option("--round", metavar="N|best|last", help=ROUND)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a round's adapter as a folder that PEFT loads, by default what the run keeps."""
    found = call(round_index=None if round_index is None else round_of(round_index))
    plain = {
        "run_id": found.run_id,
        "round_index": found.round_index,
        "is_trained": found.is_trained,
        "adapter_sha256": found.adapter_sha256,
        "out": str(out),
    }
    if not found.is_trained:
        why = "" if found.rounds else f": {NONE_CLOSED}"
        print(f"smidgen coordinator: {UNTRAINED}{why}", file=sys.stderr)
    if found.lacks:
        print(f"smidgen coordinator: {found.lacks}", file=sys.stderr)
    answer(f"adapter of round {found.round_index} of {found.run_id} in {out}", plain, as_json)


def round_of(text: str) -> int | Literal["best", "last"]:
    """What --round says.

    Raises:
        WrongInput: It is something else.
    """
    if text == "best":
        return "best"
    if text == "last":
        return "last"
    is_number = text.isascii() and text.isdecimal() and len(text) <= 7
    demand(is_number, f"--round {text[:40]!r}: a round's number, best or last expected")
    return int(text)

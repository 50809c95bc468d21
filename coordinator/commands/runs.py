"""`smidgen coordinator list`: the runs of a store, a line each."""

import json
from contextlib import closing

from coordinator.api.fleet import runs_told
from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, StoreOption
from coordinator.fleet.clock import now_of
from edge_client.tables import Column, Table, share_within, show, span

COLUMNS = (
    Column("run", "word"),
    Column("name", "text"),
    Column("phase", "word"),
    Column("round", "word"),
    Column("here", "word", optional=1),
    Column("accuracy", optional=2),
    Column("loss", optional=3),
    Column("created", "word", optional=4),
)
NOTES = ("here: of the devices that joined; accuracy, loss: the newest that are known",)


def list_runs(store: StoreOption, as_json: JsonOption = False) -> None:
    """List the runs of a store, the newest first."""
    now_s = now_of(store)
    with closing(open_store(store)) as opened:
        found = runs_told(opened, now_s)
    if as_json:
        print(json.dumps({"runs": found}, sort_keys=True))
        return
    if not found:
        print("no run yet; `smidgen coordinator create` makes one")
        return
    rows = [
        [
            one["run_id"],
            one["name"],
            "stopped" if one["is_stopped"] else one["phase"],
            f"{one['round_index']} of {one['rounds']}",
            f"{one['here']} of {one['devices']}",
            share_within(one["accuracy"], one["accuracy_error"]),
            "-" if one["loss"] is None else f"{one['loss']:.3f}",
            f"{span(now_s - one['created_at_s'])} ago",
        ]
        for one in found
    ]
    show(Table(COLUMNS, rows, notes=NOTES))

"""`smidgen coordinator list`: the runs of a store, a line each."""

import json
from contextlib import closing

from coordinator.api.fleet import runs_told
from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, StoreOption, at_store
from coordinator.fleet.clock import now_of
from coordinator.operator.told import Told
from coordinator.rounds.metrics import heads_of, measures_of
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

"""`smidgen coordinator devices`: who enrolled, what they say of themselves, and what they are told.

What is changed here holds at once, also while the store is served.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer

from smidgen.coordinator.api.stores import device_detail_told, devices_told, find_device, open_store
from smidgen.coordinator.commands.console import JsonOption, StoreOption, answer, at_store, tags_of
from smidgen.coordinator.commands.status import seen_ago
from smidgen.coordinator.fleet.presence import now_of
from smidgen.coordinator.storage import devices as device_rows
from smidgen.edge_client.errors import demand
from smidgen.edge_client.options import Commands
from smidgen.edge_client.tables import Column, Table, seconds, show, size, span
from smidgen.edge_client.wire.fleet import check_tags
from smidgen.edge_client.wire.reports import SAID

MOST = 100  # devices that a screen lists; --json has all
COLUMNS = (
    Column("device", "word"),
    Column("last seen", "word"),
    Column("runs", "text"),
    Column("memory", optional=2),
    Column("tags", "text", optional=1),
    Column("board", "text", optional=4),
    Column("version", "word", optional=3),
)
TROUBLES = {
    "two lives": "two lives: two clients ran with copies of its state folder and key; keep one of "
    "them, and start the other with a folder and a token of its own",
    "silent": "silent: so many steps in a row closed without an answer; it is asked less often "
    "until it answers",
    "slow": "slow: the same, but an answer came too late to count",
}
ANSWERS = (
    Column("run", "text"),
    Column("round"),
    Column("work", "word"),
    Column("outcome", "text"),
    Column("seconds", optional=1),
    Column("memory", optional=2),
)
DeviceArgument = Annotated[str, typer.Argument(help="Device id or name.", metavar="DEVICE")]

app = Commands("Devices that enrolled with this coordinator.")


@app.command("list")
@at_store
def list_devices(
    store: StoreOption,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Those with this tag alone; may be given again."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List devices by name: last contact, runs, memory, tags."""
    wanted, now_s = tags_of("--tag", tag or ()), now_of(store.folder)
    with closing(open_store(store)) as opened:
        found = [
            one for one in devices_told(opened, now_s) if wanted.items() <= one["tags"].items()
        ]
    if as_json:
        print(json.dumps({"devices": found}, sort_keys=True))
        return
    if not found:
        print("no device has these tags" if wanted else "no device has enrolled yet")
        return
    notes = [
        "last seen: to within a minute; runs: that it joined, with the rank that it takes where "
        "that is less than the run's, and those it declined"
    ]
    troubles = " ".join(map(_trouble, found))
    notes += [note for word, note in TROUBLES.items() if word in troubles]
    if len(found) > MOST:
        notes.append(f"and {len(found) - MOST} more devices; see --json")
    show(_table(found[:MOST], now_s, notes))


def _table(found: Sequence[Mapping[str, Any]], now_s: float, notes: Sequence[str]) -> Table:
    """The devices; what is wrong with some of them has a column where there is such a device."""
    columns, rows = [*COLUMNS], [_row(one, now_s) for one in found]
    if any(map(_trouble, found)):
        columns.insert(2, Column("trouble", "text"))
        for row, one in zip(rows, found, strict=True):
            row.insert(2, _trouble(one) or "-")
    return Table(columns, rows, notes=notes)


def _trouble(one: Mapping[str, Any]) -> str:
    """What to look at: two clients of one key, and runs in which a device misses steps."""
    if one["revoked_at_s"] is not None:
        return ""
    twice = ["two lives"] if one["cloned_at_s"] is not None else []
    missed = [f"{text} in {run['run_name']}" for run in one["runs"] if (text := _missed(run))]
    return "; ".join([*twice, *missed])


def _missed(run: Mapping[str, Any]) -> str:
    if not run["misses"]:
        return ""
    return f"{'slow' if run['is_slow'] else 'silent'} {run['misses']}"


def _row(one: Mapping[str, Any], now_s: float) -> list[str]:
    facts = one["facts"]
    return [
        one["name"],
        _seen(one, now_s),
        ", ".join(_stands(run) for run in one["runs"]) or "-",
        size(facts["memory_bytes"]) if facts["memory_bytes"] else "-",
        _tags(one["tags"]),
        facts["board"] or facts["machine"] or "-",
        facts["smidgen"] or "-",
    ]


def _seen(one: Mapping[str, Any], now_s: float) -> str:
    if one["revoked_at_s"] is not None:
        return "revoked"
    seen_s = one["last_seen_s"]
    return "never" if seen_s is None else seen_ago(now_s - seen_s)


def _stands(run: Mapping[str, Any]) -> str:
    name, rank = str(run["run_name"]), run["most_rank"]
    if run["state"] != "joined":
        return f"{name} ({run['state']})"
    return f"{name} (rank {rank})" if rank else name


def _tags(tags: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "-"


@app.command("show")
@at_store
def show_device(store: StoreOption, device: DeviceArgument, as_json: JsonOption = False) -> None:
    """Show a device: its facts, tags, runs and newest answers."""
    now_s = now_of(store.folder)
    with closing(open_store(store)) as opened:
        told = device_detail_told(opened, find_device(opened, device), now_s)
    if as_json:
        print(json.dumps(told, sort_keys=True))
        return
    facts, runs = told["facts"], told["runs"]
    power = {True: "mains", False: "battery", None: "unknown"}[facts["is_on_mains"]]
    rows = [
        ["id", told["device_id"]],
        ["enrolled", f"{span(now_s - told['enrolled_at_s'])} ago"],
        ["last seen", _seen(told, now_s)],
        *_cloned(told, now_s),
        ["its own tags", _tags(told["own_tags"])],
        ["the operator's tags", _tags(told["operator_tags"])],
        ["machine", f"{facts['board'] or facts['machine'] or '-'}, {facts['cores']} cores"],
        ["memory", size(facts["memory_bytes"])],
        ["budget", "-" if facts["budget_bytes"] is None else size(facts["budget_bytes"])],
        ["power", power],
        ["client", f"{facts['smidgen'] or '-'}, Python {facts['python'] or '-'}"],
        ["engine", facts["engine"] or "-"],
        ["base", facts["base_id"] or "-"],
        *([f"run {run['run_name']}", _said(run)] for run in runs),
    ]
    show(Table((Column(told["name"], "word"), Column("", "text")), rows))
    if told["answers"]:
        print()
        show(Table(ANSWERS, [_answer_row(one) for one in told["answers"]]))


def _cloned(told: Mapping[str, Any], now_s: float) -> list[list[str]]:
    if told["cloned_at_s"] is None:
        return []
    when = f"{span(now_s - told['cloned_at_s'])} ago"
    return [["two lives", f"{when}, two clients ran with copies of its state folder; keep one"]]


def _said(run: Mapping[str, Any]) -> str:
    why = f": {SAID[run['failure']]}" if run["failure"] else ""
    plan = f", plan {size(run['peak_bytes'])}" if run["peak_bytes"] is not None else ""
    missed = f", {text}" if (text := _missed(run)) else ""
    rank = f", rank {run['most_rank']}" if run["most_rank"] else ""
    return f"{run['state']}{why}{rank}{plan}{missed}"


def _answer_row(one: Mapping[str, Any]) -> list[str]:
    why = f": {SAID[one['failure']]}" if one["failure"] else ""
    late = ", too late to count" if one["is_late"] else ""
    return [
        one["run_name"],
        str(one["round_index"]),
        one["kind"],
        f"{one['outcome']}{why}{late}",
        seconds(one["seconds"]),
        size(one["peak_rss_bytes"]),
    ]


@app.command("tag")
@at_store
def tag_device(
    store: StoreOption,
    device: DeviceArgument,
    tags: Annotated[
        list[str],
        typer.Argument(help="KEY=VALUE sets a tag, KEY= takes it away.", metavar="TAG..."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Set the operator's tags of a device; they go before its own."""
    changes = tags_of("TAG", tags)
    with closing(open_store(store)) as opened:
        found = find_device(opened, device)
        merged = device_rows.tag(opened.database, found.device_id, changes, check_tags)
    now = found.own_tags | merged
    told = {"device_id": found.device_id, "name": found.name, "tags": now}
    answer(f"device {found.name}: {_tags(now)}", told, as_json)


@app.command("revoke")
@at_store
def revoke_device(store: StoreOption, device: DeviceArgument, as_json: JsonOption = False) -> None:
    """Let a device in no more: its next request is refused, and no run waits for it."""
    now_s = time.time()
    with closing(open_store(store)) as opened:
        found = find_device(opened, device)
        demand(found.revoked_at_s is None, f"device {found.name} is revoked already")
        device_rows.revoke(opened.database, found.device_id, now_s)
    told = {"device_id": found.device_id, "name": found.name, "revoked_at_s": now_s}
    answer(f"device {found.name} ({found.device_id}) is revoked", told, as_json)

"""`smidgen coordinator prune`, `verify`, `backup`: a store kept small, looked over, copied."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from coordinator.api import keeping
from coordinator.api.keeping import Pruned
from coordinator.commands.console import JsonOption, answer, at_store
from coordinator.storage.place import StorePlace
from coordinator.upkeep.backup import Found
from edge_client.errors import Failed
from edge_client.options import options_of
from edge_client.tables import size, some

SAID = {
    "update": "updates of closed steps",
    "adapter": "adapters of old rounds",
    "orphan": "files of no run",
    "part": "parts of uploads that were cut",
}


@at_store
@options_of(keeping.prune)
def prune(call: Callable[..., Pruned], dry_run: bool, as_json: JsonOption = False) -> None:
    done = call()
    plain = asdict(done) | {"freed": done.freed, "is_dry_run": dry_run}
    answer("\n".join(said_of(done, dry_run)), plain, as_json)


def said_of(done: Pruned, dry_run: bool) -> list[str]:
    verb = "would free" if dry_run else "freed"
    lines = [
        f"{verb} {size(done.freed_bytes[kind])}: {done.files[kind]} {words}"
        for kind, words in SAID.items()
        if done.files.get(kind)
    ]
    kept = f"{size(done.kept_bytes)} of adapters and open updates stay"
    return [*(lines or ["nothing to remove"]), kept]


@at_store
@options_of(keeping.verify)
def verify(call: Callable[..., Found], store: StorePlace, as_json: JsonOption = False) -> None:
    """Look a store over: its database, its journals, its blobs, and who may read it.

    Also while it is served. Lists what is wrong, and ends with exit code 1 then.
    """
    found = call()
    plain = plain_of(found) | {"is_sound": not found.lines, "wrong": found.lines}
    answer("\n".join([*found.lines, held(found)]), plain, as_json)
    if found.lines:
        things = "1 thing is" if len(found.lines) == 1 else f"{len(found.lines)} things are"
        raise Failed(f"{things} wrong with the store {store}")


@at_store
@options_of(keeping.backup)
def backup(call: Callable[..., Found], out: Path, as_json: JsonOption = False) -> None:
    found = call()
    answer(f"{held(found)}; copied to {out}", plain_of(found) | {"out": str(out)}, as_json)


@at_store
@options_of(
    keeping.move, to={"metavar": "PLACE"}, blobs_to={"metavar": "URL", "show_default": False}
)
def move(call: Callable[..., Found], as_json: JsonOption = False) -> None:
    found = call()
    answer(f"{held(found)}; moved", plain_of(found), as_json)


def held(found: Found) -> str:
    blobs = f"{some(found.blobs, 'blob')} ({size(found.blob_bytes)})"
    return f"{some(found.runs, 'run')}, {some(found.events, 'event')}, {blobs}"


def plain_of(found: Found) -> dict[str, object]:
    names = ("runs", "events", "blobs", "blob_bytes")
    return {name: getattr(found, name) for name in names}

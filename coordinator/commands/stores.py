"""`smidgen coordinator prune`, `verify`, `backup`: a store kept small, looked over, copied."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from coordinator.api import keeping
from coordinator.api.keeping import Pruned
from coordinator.api.keeping import prune as prune_store
from coordinator.commands.console import EveryOption, JsonOption, StoreOption, answer, at_store
from coordinator.upkeep.backup import Found
from edge_client.errors import Failed
from edge_client.tables import size, some

KEEP_ROUNDS = (
    "Newest rounds whose adapter stays, of finished runs too; by default as `serve` was told, and "
    "of finished runs the first, best and last."
)
ACCEPT = "Take the database as it is now for the newest: after a backup was put back by hand."
BACKUP = "New or empty folder for the copy, which is a store itself."
TO = "PostgreSQL database without a fleet, as postgresql://USER@HOST/NAME; or a new folder."
BLOBS_TO = (
    "Where the blobs go, as s3://BUCKET/PREFIX; by default into the new folder, and where --to is "
    "a database they stay."
)
SAID = {
    "update": "updates of closed steps",
    "adapter": "adapters of old rounds",
    "orphan": "files of no run",
    "part": "parts of uploads that were cut",
}


@at_store
def prune(
    store: StoreOption,
    run: EveryOption = None,
    keep_rounds: Annotated[int | None, typer.Option(help=KEEP_ROUNDS)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove updates, old adapters and leftovers that nothing needs; say what that frees.

    A coordinator that serves does the same after each round. Journals and reports stay.
    """
    done = prune_store(store, run=run, keep_rounds=keep_rounds, dry_run=dry_run)
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
def verify(
    store: StoreOption,
    accept: Annotated[bool, typer.Option("--accept", help=ACCEPT)] = False,
    as_json: JsonOption = False,
) -> None:
    """Look a store over: its database, its journals, its blobs, and who may read it.

    Also while it is served. Lists what is wrong, and ends with exit code 1 then.
    """
    found = keeping.verify(store, accept=accept)
    plain = plain_of(found) | {"is_sound": not found.lines, "wrong": found.lines}
    answer("\n".join([*found.lines, held(found)]), plain, as_json)
    if found.lines:
        things = "1 thing is" if len(found.lines) == 1 else f"{len(found.lines)} things are"
        raise Failed(f"{things} wrong with the store {store}")


@at_store
def backup(
    store: StoreOption,
    out: Annotated[Path, typer.Option(help=BACKUP)],
    as_json: JsonOption = False,
) -> None:
    """Copy a store, also while it is served; the copy is looked over before it gets its name.

    To restore: stop the coordinator, and serve a copy of the backup in the store's place.
    """
    found = keeping.backup(store, out)
    answer(f"{held(found)}; copied to {out}", plain_of(found) | {"out": str(out)}, as_json)


@at_store
def move(
    store: StoreOption,
    to: Annotated[str, typer.Option(metavar="PLACE", help=TO)],
    blobs_to: Annotated[str, typer.Option(metavar="URL", help=BLOBS_TO, show_default=False)] = "",
    as_json: JsonOption = False,
) -> None:
    """Take a store that nobody serves to another place: from a folder to servers, or back.

    All rows go in one transaction, after the blobs: a move that is cut leaves the store as it was,
    and asked again it goes on. Every row and blob is compared. The old place is then refused.
    """
    found = keeping.move(store, to, blobs_to=blobs_to)
    answer(f"{held(found)}; moved", plain_of(found), as_json)


def held(found: Found) -> str:
    blobs = f"{some(found.blobs, 'blob')} ({size(found.blob_bytes)})"
    return f"{some(found.runs, 'run')}, {some(found.events, 'event')}, {blobs}"


def plain_of(found: Found) -> dict[str, object]:
    names = ("runs", "events", "blobs", "blob_bytes")
    return {name: getattr(found, name) for name in names}

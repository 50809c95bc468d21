"""`smidgen coordinator prune`: remove from a store what nothing needs any more."""

from dataclasses import asdict
from typing import Annotated

import typer

from coordinator.api.prune import Pruned
from coordinator.api.prune import prune as prune_store
from coordinator.commands.console import EveryOption, JsonOption, StoreOption, answer
from edge_client.tables import size

KEEP_ROUNDS = (
    "Newest rounds whose adapter stays, of finished runs too; by default as `serve` was told, and "
    "of finished runs the first, best and last."
)
SAID = {
    "update": "updates of closed steps",
    "adapter": "adapters of old rounds",
    "orphan": "files of no run",
    "part": "parts of uploads that were cut",
}


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
    """What was removed, a line a kind."""
    verb = "would free" if dry_run else "freed"
    lines = [
        f"{verb} {size(done.freed_bytes[kind])}: {done.files[kind]} {words}"
        for kind, words in SAID.items()
        if done.files.get(kind)
    ]
    kept = f"{size(done.kept_bytes)} of adapters and open updates stay"
    return [*(lines or ["nothing to remove"]), kept]

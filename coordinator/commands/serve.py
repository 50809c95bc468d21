"""`smidgen coordinator serve`: all runs of a store, until Ctrl-C."""

import json
import os
import sys
import threading
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coordinator.api.ready import Serving, listening, ready
from coordinator.api.serve import check_workers, end_with_parent, inherited, serve, serve_together
from coordinator.commands.console import JsonOption, at_store
from coordinator.commands.create import announce
from coordinator.storage.place import StorePlace
from coordinator.storage.status import status_of
from coordinator.watch.logs import log_to_stderr
from edge_client.files import OTHERS
from edge_client.options import options_of
from edge_client.planning.allocator import use_one_arena

WORKERS = (
    "Processes of this machine that serve the store together; more than one with --database alone."
)
DRAIN = (
    "Seconds for which it serves on after SIGTERM or Ctrl-C while `/readyz` answers 503, so that a "
    "proxy that asks leaves it out before it ends; a second signal ends it at once."
)
LOG_FORMAT = "The log's lines, on stderr: for people, or one JSON object each for a collector."


@at_store
@options_of(
    serve,
    without=("database", "blobs"),
    exit_when_finished={"flag": "--exit-when-finished/--no-exit-when-finished"},
    least_free={"metavar": "SIZE"},
    trusted_proxies={"name": "trusted_proxy", "metavar": "ADDRESS"},
    minimum_client={"metavar": "VERSION"},
    plugins={"metavar": "FOLDER"},
    plugin_limit={"metavar": "SECONDS"},
)
def serve_command(
    call: "partial[object]",
    store: StorePlace,
    run: Path | None,
    exit_when_finished: bool,
    log_format: Annotated[str, typer.Option(metavar="text|json", help=LOG_FORMAT)] = "text",
    workers: Annotated[int, typer.Option(metavar="N", help=WORKERS)] = 1,
    drain: Annotated[float, typer.Option(metavar="SECONDS", help=DRAIN)] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Serve all runs of a store until Ctrl-C.

    The store must be there; with --run it is made. TLS where `init` has made certificates.
    """
    log_to_stderr(log_format)
    os.umask(OTHERS)
    use_one_arena()
    check_workers(store, workers)
    bound, stop = inherited(), threading.Event()
    typed, named = call.keywords, [one.name for one in fields(Serving)]
    serving = Serving(**{name: typed[name] for name in named if name in typed}, drain=drain)
    if workers > 1 and bound is None:
        with listening(store, serving, run) as (bound, url, created):
            if created is not None:
                announce(created, as_json)
            said = serve_together(bound, sys.argv[1:], workers, partial(_say, url))
            print(said, end="", flush=True)
        return
    if bound is not None:
        end_with_parent(stop)
    with ready(store, serving, run, bound) as prepared:
        if prepared.created is not None:
            announce(prepared.created, as_json)
        prepared.serve(partial(_say, prepared.url), stop, exit_when_finished)
        if as_json:
            runs = [status_of(prepared.store, item) for item in prepared.store.runs()]
            print(json.dumps({"url": prepared.url, "runs": runs}, sort_keys=True), flush=True)


def _say(url: str) -> None:
    print(f"listening on {url}\n", end="", flush=True)  # whole, beside the log

"""`smidgen coordinator serve`: all runs of a store, until Ctrl-C."""

import json
import logging
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from coordinator.api.serve import HOST, PORT, ready
from coordinator.commands.console import JsonOption
from coordinator.commands.create import announce
from coordinator.storage.status import status_of


def serve_command(
    store: Annotated[
        Path, typer.Option(help="Folder of a store that `create` made; with --run, it may be new.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for every network of this machine.")
    ] = HOST,
    port: Annotated[int, typer.Option(help="TCP port to listen on; 0 takes a free one.")] = PORT,
    run: Annotated[
        Path | None,
        typer.Option(help="Run file (TOML); its run is created first, unless its name is there."),
    ] = None,
    exit_when_finished: Annotated[
        bool, typer.Option(help="End when all runs are finished and their devices know.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve all runs of a store until Ctrl-C.

    The store must be there; with --run it is made.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    with ready(store, host, port, run) as prepared:
        if prepared.created is not None:
            announce(prepared.created, as_json)

        def announce_url() -> None:
            print(f"listening on {prepared.url}", flush=True)

        prepared.serve(announce_url, threading.Event(), exit_when_finished)
        if as_json:
            runs = [status_of(prepared.store, item) for item in prepared.store.runs()]
            print(json.dumps({"url": prepared.url, "runs": runs}, sort_keys=True), flush=True)

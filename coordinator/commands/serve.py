"""`smidgen coordinator serve`: all runs of a store, until Ctrl-C."""

import json
import logging
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands.console import JsonOption, open_store
from coordinator.commands.create import announce
from coordinator.config import RunConfig, read_run_config
from coordinator.storage.runs import config_of, create_run
from coordinator.storage.status import status_of
from coordinator.storage.store import Store


def serve_command(
    store: Annotated[
        Path, typer.Option(help="Folder of a store that `create` made; with --run, it may be new.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for every network of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port to listen on; 0 takes a free one.")] = 8700,
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
    from coordinator.serving.server import listen, serve, sole_server, url_of  # FastAPI: seconds
    from coordinator.serving.service import Service

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    config = None if run is None else read_run_config(run, {})
    with (
        closing(open_store(store) if config is None else Store(store)) as opened,
        listen(host, port) as bound,
        sole_server(store, opened),
    ):
        if config is not None:
            _create_if_new(opened, config, as_json)
        service, url, stop = Service(opened, time.time()), url_of(bound), threading.Event()

        def announce_url() -> None:
            print(f"listening on {url}", flush=True)

        serve(service, bound, announce_url, stop, exit_when_finished)
        if as_json:
            runs = [status_of(opened, item) for item in opened.runs()]
            print(json.dumps({"url": url, "runs": runs}, sort_keys=True), flush=True)


def _create_if_new(store: Store, config: RunConfig, as_json: bool) -> None:
    if config.name not in {config_of(run).name for run in store.runs()}:
        announce(config, create_run(store, config, time.time()), as_json)

"""`smidgen coordinator serve`: all runs of a store, until Ctrl-C."""

import json
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coordinator.api.ready import Endpoint, Serving, listening, ready
from coordinator.api.serve import check_workers, end_with_parent, inherited, serve_together
from coordinator.commands.console import JsonOption, at_store
from coordinator.commands.create import announce
from coordinator.serving import limit
from coordinator.storage.place import StorePlace
from coordinator.storage.status import status_of
from coordinator.upkeep import disk_space
from coordinator.watch.logs import log_to_stderr
from edge_client.files import OTHERS
from edge_client.planning.allocator import use_one_arena

HOST = (
    "Address to listen on; by default loopback, or every network where `init` named another host."
)
PORT = "TCP port to listen on, 0 takes a free one; by default that of `init`, or 8700."
PLAIN_HTTP = "Serve without TLS: behind a proxy on this machine, or where nobody listens in."
KEEP_ROUNDS = "Newest rounds of each run whose adapter is kept; first, best and last stay anyway."
LEAST_FREE = "Free space on the store's disk below which nothing more is taken; 0 for no mark."
TRUSTED_PROXY = (
    "Address or network of a proxy whose X-Forwarded-For says who asks; may be given again. By "
    "default nobody is believed."
)
SERVE_PACKS = (
    "Give the packs that runs train on to devices that fetch them (`client run --packs`); by "
    "default devices are told of them, and get them elsewhere."
)
MINIMUM_CLIENT = "Oldest client that gets work, such as 0.2.0; an older one says what to install."
PLUGINS = "Folder of Python files with means, optimizers and selections that runs may name."
PLUGIN_LIMIT = (
    "Seconds that a call of an extension may take before its run pauses; 0 for any time. Other "
    "runs wait as long."
)
WORKERS = (
    "Processes of this machine that serve the store together; more than one with --database alone."
)
DRAIN = (
    "Seconds for which it serves on after SIGTERM or Ctrl-C while `/readyz` answers 503, so that a "
    "proxy that asks leaves it out before it ends; a second signal ends it at once."
)
LOG_FORMAT = "The log's lines, on stderr: for people, or one JSON object each for a collector."


@at_store
def serve_command(
    store: Annotated[
        StorePlace,
        typer.Option(
            "--store", help="Folder of a store that `create` made; with --run, it may be new."
        ),
    ],
    host: Annotated[str | None, typer.Option(help=HOST)] = None,
    port: Annotated[int | None, typer.Option(help=PORT)] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Run file (TOML); its run is created first, unless its name is there."),
    ] = None,
    exit_when_finished: Annotated[
        bool, typer.Option(help="End when all runs are finished and their devices know.")
    ] = False,
    plain_http: Annotated[bool, typer.Option("--plain-http", help=PLAIN_HTTP)] = False,
    keep_rounds: Annotated[int, typer.Option(help=KEEP_ROUNDS)] = disk_space.KEEP_ROUNDS,
    least_free: Annotated[
        str, typer.Option(metavar="SIZE", help=LEAST_FREE)
    ] = disk_space.LEAST_FREE,
    trusted_proxy: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help=TRUSTED_PROXY)
    ] = None,
    serve_packs: Annotated[bool, typer.Option("--serve-packs", help=SERVE_PACKS)] = False,
    minimum_client: Annotated[str, typer.Option(metavar="VERSION", help=MINIMUM_CLIENT)] = "",
    plugins: Annotated[Path | None, typer.Option(metavar="FOLDER", help=PLUGINS)] = None,
    plugin_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help=PLUGIN_LIMIT)
    ] = limit.LIMIT_S,
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
    endpoint = Endpoint(host, port, plain_http)
    if workers > 1 and bound is None:
        with listening(store, endpoint, run) as (bound, url, created):
            if created is not None:
                announce(created, as_json)
            said = serve_together(bound, sys.argv[1:], workers, partial(_say, url))
            print(said, end="", flush=True)
        return
    if bound is not None:
        end_with_parent(stop)
    told = (keep_rounds, least_free, trusted_proxy or (), serve_packs, minimum_client)
    serving = Serving(*told, plugins, plugin_limit, drain)
    with ready(store, endpoint, run, serving, bound) as prepared:
        if prepared.created is not None:
            announce(prepared.created, as_json)
        prepared.serve(partial(_say, prepared.url), stop, exit_when_finished)
        if as_json:
            runs = [status_of(prepared.store, item) for item in prepared.store.runs()]
            print(json.dumps({"url": prepared.url, "runs": runs}, sort_keys=True), flush=True)


def _say(url: str) -> None:
    print(f"listening on {url}\n", end="", flush=True)  # whole, beside the log

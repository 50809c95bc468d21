"""`smidgen coordinator create` and `serve`: a new run, and all runs of a store until Ctrl-C."""

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from smidgen.coordinator.api.create import NewRun, create_run
from smidgen.coordinator.api.ready import Serving, listening, ready
from smidgen.coordinator.api.serve import (
    SOCKET,
    check_workers,
    end_with_parent,
    inherited,
    serve,
    serve_together,
)
from smidgen.coordinator.api.stores import open_store
from smidgen.coordinator.commands.console import (
    JsonOption,
    answer,
    at_store,
    device_lines,
    tags_of,
)
from smidgen.coordinator.commands.status import next_step
from smidgen.coordinator.fleet.presence import now_of
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.runs import config_of, find_run, status_of
from smidgen.coordinator.watch.logs import log_to_stderr
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.files import OTHERS
from smidgen.edge_client.options import options_of
from smidgen.edge_client.planning.allocator import use_one_arena
from smidgen.edge_client.tables import some

TAG = "Tag that a device must have, such as site=kitchen; may be repeated."


@at_store
@options_of(
    create_run,
    without=("tag", "database", "blobs"),
    run={"name": "file", "is_argument": True},
    preset={"metavar": "NAME"},
    start={"flag": "--from", "metavar": "ADAPTER"},
    plugins={"metavar": "FOLDER"},
)
def create(
    call: Callable[..., NewRun],
    store: StorePlace,
    plugins: Path | None,
    tag: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help=TAG)] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a run; print its id and the line that starts a device, which is not shown again.

    Devices that are already enrolled need no token. Options override the run file.
    """
    created = call(tag=tags_of("--tag", tag) if tag else None)
    line = ["smidgen", "coordinator", "serve", *store.options]
    line += [] if plugins is None else ["--plugins", str(plugins)]
    announce(store, created, as_json, f"next, here  {shlex.join(line)}")


def announce(store: StorePlace, created: NewRun, as_json: bool, *more: str, url: str = "") -> None:
    """Say what was made and how devices come to it.

    Args:
        store: Where the run is.
        created: The run.
        as_json: Whether to say it to a machine.
        more: Lines for people, before that for a device.
        url: See `device_lines`.
    """
    with closing(open_store(store)) as opened:
        config = config_of(find_run(opened, created.run_id))
    lines = device_lines(store, created.token, url)
    run = f"run {created.run_id} ({created.name})"
    base = "" if config.base == EMBEDDED else f" of {config.base}"
    least = some(config.min_clients, "device")
    does = f"{config.adapter}{base}, {some(config.rounds, 'round')}, the first with {least}"
    said = [f"{run}: {does}", *([f"privacy {created.privacy}"] if created.privacy else [])]
    answer("\n".join([*said, *more, *lines]), asdict(created) | {"line": lines[-1]}, as_json)


WORKERS = "Processes that serve the store together; more than one needs --database."
DRAIN = (
    "Seconds to go on serving after SIGTERM or Ctrl-C while `/readyz` answers 503, so that a proxy "
    "can take it out first; a second signal ends it at once."
)
LOG_FORMAT = "Log lines on stderr: for people, or one JSON object each for a log collector."


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

    The store must exist, unless --run is given. Uses TLS if `init` has made certificates.
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
                announce(store, created, as_json, url=url)
            tell = partial(_say, url, stop, "" if as_json else _next(store))
            said = serve_together(bound, sys.argv[1:], workers, tell)
            print(said, end="", flush=True)
        return
    if bound is not None:
        end_with_parent(stop)
    with ready(store, serving, run, bound) as prepared:
        if prepared.created is not None:
            announce(store, prepared.created, as_json, url=prepared.url)
        following = "" if as_json or bound is not None else _next(store)
        prepared.serve(partial(_say, prepared.url, stop, following), stop, exit_when_finished)
        if as_json:
            runs = [status_of(prepared.store, item) for item in prepared.store.runs()]
            print(json.dumps({"url": prepared.url, "runs": runs}, sort_keys=True), flush=True)


def _next(store: StorePlace) -> str:
    """What comes next once the store is served, as a line of its own."""
    with closing(open_store(store)) as opened:
        newest = [status_of(opened, run) for run in opened.runs()[-1:]]
    now_s = now_of(store.folder)
    return f"{next_step(store, newest[0] if newest else None, True, now_s)}\n"


def _say(url: str, stop: threading.Event, following: str) -> None:
    """Say where it listens; who has nobody to say it to serves on, but for a child."""
    try:
        print(f"listening on {url}\n{following}", end="", flush=True)  # whole, beside the log
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if SOCKET in os.environ:  # its parent has ended
            stop.set()

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

from smidgen.coordinator.api.create import NewRun, create_run, join_line
from smidgen.coordinator.api.ready import PORT, Serving, listening, ready
from smidgen.coordinator.api.serve import (
    SOCKET,
    check_workers,
    end_with_parent,
    inherited,
    serve,
    serve_together,
)
from smidgen.coordinator.api.stores import open_store
from smidgen.coordinator.commands.console import JsonOption, answer, at_store, tags_of
from smidgen.coordinator.storage.place import StorePlace
from smidgen.coordinator.storage.runs import config_of, find_run, status_of
from smidgen.coordinator.watch.logs import log_to_stderr
from smidgen.edge_client.files import OTHERS
from smidgen.edge_client.options import options_of
from smidgen.edge_client.planning.allocator import use_one_arena

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
    """Create a run; print its id and an enrolment token, which is not shown again.

    Devices that are already enrolled need no token. Options override the run file.
    """
    created = call(tag=tags_of("--tag", tag) if tag else None)
    announce(created, as_json)
    if not as_json:
        line = ["smidgen", "coordinator", "serve", *store.options]
        line += [] if plugins is None else ["--plugins", str(plugins)]
        print(f"next, here  {shlex.join(line)}")
        device = line_of(store, created)
        is_local = "http://127.0.0.1" in device
        print("on this machine (`init` is for others):" if is_local else "on each device:")
        print(device)


def line_of(store: StorePlace, created: NewRun) -> str:
    from smidgen.coordinator.trust.folder import ca_of, folder_of, is_there, read

    with closing(open_store(store)) as opened:
        base = config_of(find_run(opened, created.run_id)).base
    if not is_there(store.folder):
        return join_line(created.token, f"http://127.0.0.1:{PORT}", None, base)
    trust = read(folder_of(store.folder))
    return join_line(created.token, trust.address.url, ca_of(trust), base)


def announce(created: NewRun, as_json: bool) -> None:
    text = f"run {created.run_id} ({created.name})\nenrolment token {created.token}"
    text += f"\nprivacy {created.privacy}" if created.privacy else ""
    plain = asdict(created)
    answer(text, plain, as_json)


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
                announce(created, as_json)
            said = serve_together(bound, sys.argv[1:], workers, partial(_say, url, stop))
            print(said, end="", flush=True)
        return
    if bound is not None:
        end_with_parent(stop)
    with ready(store, serving, run, bound) as prepared:
        if prepared.created is not None:
            announce(prepared.created, as_json)
        prepared.serve(partial(_say, prepared.url, stop), stop, exit_when_finished)
        if as_json:
            runs = [status_of(prepared.store, item) for item in prepared.store.runs()]
            print(json.dumps({"url": prepared.url, "runs": runs}, sort_keys=True), flush=True)


def _say(url: str, stop: threading.Event) -> None:
    """Say where it listens; who has nobody to say it to serves on, but for a child."""
    try:
        print(f"listening on {url}\n", end="", flush=True)  # whole, beside the log
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if SOCKET in os.environ:  # its parent has ended
            stop.set()

"""`smidgen coordinator create`: a new run, from a run file and flags."""

import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from coordinator.api.create import NewRun, create_run
from coordinator.api.ready import PORT
from coordinator.api.starting import join_line
from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, answer, at_store, tags_of
from coordinator.storage.place import StorePlace
from coordinator.storage.runs import config_of, find_run
from edge_client.options import options_of

TAG = "Tag that a device must have to be asked, such as site=kitchen; may be given again."


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

    Devices that have enrolled before need no token: they are asked if the run wants them.

    Options go before the run file; what neither says has the default named here.
    """
    created = call(tag=tags_of("--tag", tag) if tag else None)
    announce(created, as_json)
    if not as_json:
        line = ["smidgen", "coordinator", "serve", *store.options]
        line += [] if plugins is None else ["--plugins", str(plugins)]
        print(f"next, here  {shlex.join(line)}")
        print("on each device:")
        print(line_of(store, created))


def line_of(store: StorePlace, created: NewRun) -> str:
    from coordinator.trust.folder import ca_of, folder_of, is_there, read

    with closing(open_store(store)) as opened:
        base = config_of(find_run(opened, created.run_id)).base
    if not is_there(store.folder):
        return join_line(created.token, f"http://127.0.0.1:{PORT}", None, base)
    trust = read(folder_of(store.folder))
    return join_line(created.token, trust.address.url, ca_of(trust), base)


def announce(created: NewRun, as_json: bool) -> None:
    text = f"run {created.run_id} ({created.name})\nenrolment token {created.token}"
    plain = {"run_id": created.run_id, "name": created.name, "token": created.token}
    answer(text, plain, as_json)

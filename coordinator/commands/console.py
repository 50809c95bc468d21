"""What the commands of `smidgen coordinator` share: options, the store, and the last line."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from smidgen.coordinator.api.create import join_line
from smidgen.coordinator.api.ready import PORT
from smidgen.coordinator.api.stores import open_store
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.runs import config_of
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.errors import demand
from smidgen.edge_client.wire.fleet import check_tags

# Commands get the place that these and the two next options give: `at_store`.
NewStoreOption = Annotated[
    StorePlace, typer.Option("--store", help="Folder of the coordinator's store; created if new.")
]
StoreOption = Annotated[
    StorePlace, typer.Option("--store", help="Folder of a store that `create` made.")
]
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="SMIDGEN_DATABASE",
        show_default=False,
        help="PostgreSQL database shared by several machines, as postgresql://USER@HOST/NAME; "
        "default: SQLite in the folder.",
    ),
]
BlobsOption = Annotated[
    str,
    typer.Option(
        "--blobs",
        metavar="URL",
        envvar="SMIDGEN_BLOBS",
        show_default=False,
        help="Where adapters and updates are stored, as s3://BUCKET/PREFIX; default: the folder.",
    ),
]
NewestOption = Annotated[
    str | None, typer.Option("--run", help="Run id or name; by default the newest run.")
]
EveryOption = Annotated[
    str | None, typer.Option("--run", help="Run id or name; by default all runs.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")
]


def at_store(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes a store's place `--store`, `--database` and `--blobs` for it."""

    def at_place(*, store: Path, database: str, blobs: str, **rest: Any) -> None:
        command(store=StorePlace(store, database, blobs), **rest)

    first, *others = inspect.signature(command, eval_str=True).parameters.values()
    assert first.name == "store"
    named = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter("database", named, default="", annotation=DatabaseOption),
        inspect.Parameter("blobs", named, default="", annotation=BlobsOption),
    ]
    folder = first.replace(annotation=Annotated[(Path, *first.annotation.__metadata__)])
    given = [one.replace(kind=named) for one in (folder, *others, *more)]
    at_place.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    at_place.__annotations__ = {one.name: one.annotation for one in given}
    at_place.__name__, at_place.__doc__ = command.__name__, command.__doc__
    return at_place


def device_lines(store: StorePlace, token: str, url: str = "") -> list[str]:
    """What starts a device, for a shell: the line, behind one that says what it does.

    Args:
        store: Whose newest run the device is for.
        token: Lets it in.
        url: Where the store is served; empty: as it will be.
    """
    from smidgen.coordinator.trust.folder import ca_of, folder_of, is_there, read  # 0.1 s

    with closing(open_store(store)) as opened:
        base = config_of(runs[-1]).base if (runs := opened.runs()) else EMBEDDED
    ca = None
    if is_there(store.folder) and not url.startswith("http:"):
        trust = read(folder_of(store.folder))
        url, ca = url or trust.address.url, ca_of(trust)
    url = url or f"http://127.0.0.1:{PORT}"
    where = "on this machine (`init` is for others)" if ca is None else "on each device"
    how = "FOLDER holds its texts, without --until it waits for further runs"
    return [f"{where}; {how}:", join_line(token, url, ca, base)]


def tags_of(option: str, pairs: Iterable[str]) -> dict[str, str]:
    """The tags of `site=kitchen` and the like.

    Raises:
        WrongInput: Names the one that is something else.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        demand(bool(sign and key), f"{option} {pair[:80]!r}: KEY=VALUE is expected")
        found[key] = value
    check_tags(found)
    return found


def answer(text: str, plain: Mapping[str, Any], as_json: bool) -> None:
    """Print text for people, or the same for machines."""
    print(json.dumps(plain, sort_keys=True) if as_json else text, flush=True)

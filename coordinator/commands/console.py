"""What the commands of `smidgen coordinator` share: options, the store, and the last line."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.errors import demand
from edge_client.wire.fleet import check_tags

NewStoreOption = Annotated[
    Path, typer.Option("--store", help="Folder of the coordinator's store; made if it is new.")
]
StoreOption = Annotated[Path, typer.Option("--store", help="Folder of a store that `create` made.")]
NewestOption = Annotated[
    str | None, typer.Option("--run", help="Run id or name; by default the newest run.")
]
EveryOption = Annotated[
    str | None, typer.Option("--run", help="Run id or name; by default all runs.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")
]


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

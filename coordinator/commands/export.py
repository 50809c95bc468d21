"""`smidgen coordinator export`: a run's adapter as a folder that PEFT loads."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from coordinator.api.export import export as export_adapter
from coordinator.commands.console import JsonOption, NewestOption, StoreOption, answer

UNTRAINED = "this is the untrained adapter of round 0: no round of training has closed yet"


def export(
    store: StoreOption,
    out: Annotated[
        Path,
        typer.Option(
            help="PEFT adapter folder to write; an earlier export there is replaced, nothing else."
        ),
    ],
    run: NewestOption = None,
    base_name: Annotated[
        str,
        typer.Option(
            help="What PEFT's users load the base by, such as a hub name; by default the run's "
            "base, of a folder its last part."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Write the adapter of the last closed round as a folder that PEFT loads."""
    found = export_adapter(store, out, run=run, base_name=base_name)
    plain = {
        "run_id": found.run_id,
        "round_index": found.round_index,
        "is_trained": found.is_trained,
        "adapter_sha256": found.adapter_sha256,
        "out": str(out),
    }
    if not found.is_trained:
        print(f"smidgen coordinator: {UNTRAINED}", file=sys.stderr)
    answer(f"adapter of round {found.round_index} in {out}", plain, as_json)

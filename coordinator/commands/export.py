"""`smidgen coordinator export`: a run's adapter as a folder that PEFT loads."""

import sys
from contextlib import closing
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, NewestOption, StoreOption, answer
from coordinator.storage.figures import accuracies, rows
from coordinator.storage.runs import config_of, find_run
from coordinator.storage.status import state_of
from coordinator.storage.store import Run, Store
from edge_client.adapters.card import Card
from edge_client.adapters.peft_folder import Exported, check_adapter_folder, write_peft_folder

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
    check_adapter_folder("--out", out)
    with closing(open_store(store)) as opened:
        chosen = find_run(opened, run)
        config, state = config_of(chosen), state_of(opened, chosen)
        exported = Exported(
            adapter=config.adapter,
            base_name=base_name or chosen.base_reference,
            base_id=chosen.base_id,
            architecture=chosen.architecture,
            task=config.task,
        )
        card = _card(opened, chosen, state.round_index)
        write_peft_folder(out, exported, opened.read(state.adapter_sha256), card)
    plain = {
        "run_id": chosen.run_id,
        "round_index": state.round_index,
        "is_trained": state.round_index > 0,
        "adapter_sha256": state.adapter_sha256,
        "out": str(out),
    }
    if not state.round_index:
        print(f"smidgen coordinator: {UNTRAINED}", file=sys.stderr)
    answer(f"adapter of round {state.round_index} in {out}", plain, as_json)


def _card(store: Store, run: Run, rounds: int) -> Card:
    return Card(
        rounds=rounds,
        devices=sum(device.run_id == run.run_id for device in store.devices()),
        accuracies=accuracies(rows(store, run.run_id)),
        date=date.today().isoformat(),
        version=metadata.version("smidgen"),
    )

"""`smidgen coordinator export`: a run's adapter as a folder that PEFT loads."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands.console import JsonOption, NewestOption, StoreOption, answer, open_store
from coordinator.storage.runs import config_of, find_run
from coordinator.storage.status import state_of
from edge_client.adapters.peft_folder import CONFIG, ORIGIN, WEIGHTS, Exported, write_peft_folder
from edge_client.outputs import check_out_folder, new_folder

MINE = (CONFIG, WEIGHTS, "README.md")
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
    as_json: JsonOption = False,
) -> None:
    """Write the adapter of the last closed round as a folder that PEFT loads."""
    check_out_folder("--out", out, ORIGIN, MINE)
    with closing(open_store(store)) as opened:
        chosen = find_run(opened, run)
        config, state = config_of(chosen), state_of(opened, chosen)
        exported = Exported(
            adapter=config.adapter,
            base_name=chosen.base_reference,
            base_id=chosen.base_id,
            architecture=chosen.architecture,
            task=config.task,
        )
        with new_folder("--out", out, ORIGIN, MINE) as part:
            write_peft_folder(part, exported, opened.read(state.adapter_sha256))
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

"""`smidgen profile soak`: what grows over thousands of rounds, on both sides."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import EMBEDDED
from edge_client.errors import Failed, demand
from edge_client.tables import show, size, tell
from profiling.benchmarks.report import machine_notes
from profiling.commands.options import AdapterOption, JsonOption, added_to, working
from profiling.instruments.bases import demand_between, find_base
from profiling.instruments.child import terminable
from profiling.instruments.machine import this_machine
from profiling.records.record import append, new_session
from profiling.soak import MOST_GROWTH_BYTES, measure, soak_table, to_json, to_record
from profiling.wire.ours import Rounds
from profiling.wire.run import WARMUP

SOAK_FILE = "soak.jsonl"
MOST_CLIENTS, MOST_ROUNDS = 100, 1_000_000


def soak(
    rounds: Annotated[int, typer.Option(help="Rounds of the run, 4 or more.")] = 2000,
    clients: Annotated[int, typer.Option(help="Devices, 1 or more, all in every round.")] = 2,
    adapter: AdapterOption = "lora:8@q,v",
    out: Annotated[
        Path | None, typer.Option(help=f"Folder of {SOAK_FILE}, which grows by a record per run.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Let a run go on for thousands of rounds without computing, and watch what grows.

    A real coordinator and devices with the client's own transport and state, over real HTTP; the
    adapter is one of the embedded base. Exit code 1: a process failed, or over 1,000 rounds and
    more the coordinator's memory grew by more than 5 KiB in a round.
    """
    demand_between({"rounds": (4, rounds, MOST_ROUNDS), "clients": (1, clients, MOST_CLIENTS)})
    parse_adapter(adapter)
    path = added_to(out, SOAK_FILE)
    with terminable(), working("looking for the base") as say:
        base, session = find_base(EMBEDDED, False, None, 0), new_session()
        run = measure(Rounds(base, adapter, clients, rounds - WARMUP, 0.0), say)
        if path is not None:
            append(path, [to_record(run, base.base_id, session)])
    if json_output:
        print(json.dumps(to_json(run)))
    else:
        show(soak_table(run))
        tell(machine_notes(asdict(this_machine()), [run.load_1m]))
    most = size(MOST_GROWTH_BYTES)
    demand(run.is_level, f"the coordinator grew by more than {most} in a round", Failed)

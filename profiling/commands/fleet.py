"""`smidgen profile fleet`: what a thousand devices cost a coordinator, over real HTTP and TLS."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.tables import show, tell
from smidgen.profiling.benchmarks.report import machine_notes
from smidgen.profiling.commands.options import AdapterOption, JsonOption, added_to, kept, working
from smidgen.profiling.fleet.measure import Load, Served, check_files, measure
from smidgen.profiling.fleet.report import fleet_table, requests_table, to_json, to_record
from smidgen.profiling.instruments.bases import BenchmarkError, demand_between, find_base
from smidgen.profiling.instruments.child import terminable
from smidgen.profiling.instruments.machine import this_machine
from smidgen.profiling.records.record import new_session

FLEET_FILE = "fleet.jsonl"
DATABASE = (
    "Empty PostgreSQL database for the store, postgresql://USER@HOST/NAME; the run stays in it. "
    "Default: SQLite in a folder."
)
BLOBS = "Bucket for adapters and updates, s3://BUCKET/PREFIX. Default: a folder."
MOST_DEVICES, MOST_S = 20_000, 7 * 86_400.0


def fleet(
    devices: Annotated[
        list[int] | None,
        typer.Option(help="Devices in the fleet, 1 or more; repeatable. Default: 1000."),
    ] = None,
    cohort: Annotated[
        int, typer.Option(help="Most devices that train, and that evaluate, in a round; 1 or more.")
    ] = 200,
    rounds: Annotated[int, typer.Option(help="Rounds of the run, 1 or more.")] = 20,
    adapter: AdapterOption = "lora:64@q,v",
    processes: Annotated[
        int, typer.Option(help="Coordinator processes, 1 to 64; several need --database.")
    ] = 1,
    database: Annotated[
        str, typer.Option(metavar="URL", help=DATABASE, envvar="SMIDGEN_DATABASE")
    ] = "",
    blobs: Annotated[str, typer.Option(metavar="URL", help=BLOBS, envvar="SMIDGEN_BLOBS")] = "",
    within: Annotated[
        float,
        typer.Option(help="Seconds after which the run is stopped and reported as it stands."),
    ] = 1800.0,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder; a record per run is appended to its {FLEET_FILE}.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Load a real coordinator, over HTTP and TLS, with a fleet of devices that do not compute.

    The adapter is for the embedded base; lora:64@q,v takes 0.8 MB. With --database, several
    coordinator processes share existing servers, whose processor time is shown too if they run on
    this machine. Exit code 1: a request failed, or the run did not finish in time.
    """
    sizes = devices or [1000]
    for count in sizes:
        demand_between({"devices": (1, count, MOST_DEVICES)})
        check_files(count)
    demand_between({"cohort": (1, cohort, MOST_DEVICES), "rounds": (1, rounds, 100_000)})
    served = _served(processes, database, blobs, len(sizes))
    is_time = math.isfinite(within) and 1 <= within <= MOST_S
    demand(is_time, f"--within {within:g}: 1 to {MOST_S:g} seconds", BenchmarkError)
    parse_adapter(adapter)
    path = added_to(out, FLEET_FILE)
    with terminable(), working("looking for the base") as say:
        base, session = find_base(EMBEDDED, False, None, 0), new_session()
        fleets = (
            measure(Load(base, adapter, count, min(cohort, count), rounds, within, served), say)
            for count in sizes
        )
        runs, stopped = kept(fleets, path, lambda run: to_record(run, base.base_id, session))
    if runs and json_output:
        print(json.dumps({"runs": [to_json(run) for run in runs]}))
    elif runs:
        show(fleet_table(runs), *map(requests_table, runs))
        tell(machine_notes(asdict(this_machine()), [run.load_1m for run in runs]))
    if stopped is not None:
        raise stopped
    for run in runs:
        demand(
            run.is_done and not run.errors,
            f"{run.devices} devices: {run.outcome}, {run.all_errors} errors",
            Failed,
        )


def _served(processes: int, database: str, blobs: str, fleets: int) -> Served:
    """By what the store is served.

    Raises:
        BenchmarkError: Options do not go together.
    """
    demand_between({"processes": (1, processes, 64)})
    is_plain = processes == 1 and not blobs
    demand(
        bool(database) or is_plain,
        "--processes above 1 and --blobs need --database: SQLite serves one process",
        BenchmarkError,
    )
    demand(
        not database or fleets == 1,
        "a database takes one fleet: give --devices once",
        BenchmarkError,
    )
    return Served(processes, database, blobs)

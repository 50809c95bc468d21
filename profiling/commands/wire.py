"""`smidgen profile wire`, `soak`, `fleet`: what rounds cost, and what grows, without computing."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.bases.random_models import CONFIGS
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.tables import show, size, tell
from smidgen.profiling import soak as long_run
from smidgen.profiling.benchmarks.report import machine_notes
from smidgen.profiling.commands.options import AdapterOption, JsonOption, added_to, kept, working
from smidgen.profiling.fleet.measure import Load, Served, check_files, measure
from smidgen.profiling.fleet.report import fleet_json, fleet_record, fleet_table, requests_table
from smidgen.profiling.instruments.child import terminable
from smidgen.profiling.instruments.environment import (
    BenchmarkError,
    demand_between,
    find_base,
    this_machine,
)
from smidgen.profiling.instruments.made_up_run import first_state
from smidgen.profiling.peers.flwr import FLWR
from smidgen.profiling.records.record import append, new_session
from smidgen.profiling.wire import flwr, ours
from smidgen.profiling.wire.run import WARMUP, WHO, WireRun, to_json, to_record, wire_table

WIRE_FILE, SOAK_FILE = "wire.jsonl", "soak.jsonl"
MOST_RTT_MS, MOST_CLIENTS, MOST_ROUNDS = 10_000.0, 100, 10_000


def wire(
    clients: Annotated[
        int, typer.Option(help="Clients, 1 or more; all take part in every round.")
    ] = 2,
    rounds: Annotated[
        int, typer.Option(help="Rounds to measure, 1 or more, after one warm-up round.")
    ] = 20,
    rtt: Annotated[
        list[float] | None,
        typer.Option(
            help="Round-trip milliseconds that the relay adds, 0 or more; repeatable. Default: 0 "
            "and 50."
        ),
    ] = None,
    base: Annotated[
        str,
        typer.Option(
            help="Base that sets the adapter's shapes: a shape, pack, folder or `embedded`."
        ),
    ] = "roberta-large",
    adapter: AdapterOption = "lora:8@q,v",
    peer: Annotated[
        str, typer.Option(help=f"`{FLWR}`: also measure its deployment, through the same relay.")
    ] = "",
    peer_rounds: Annotated[
        int, typer.Option(help="Rounds of the peer, 1 or more; each takes long.")
    ] = 5,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder; a record per run is appended to its {WIRE_FILE}.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Time rounds without compute: real server, real HTTP, a relay that counts bytes."""
    demand(peer in ("", FLWR), f"--peer {peer} is not known here; {FLWR}", BenchmarkError)
    demand_between(
        {
            "clients": (1, clients, MOST_CLIENTS),
            "rounds": (1, rounds, MOST_ROUNDS),
            "peer-rounds": (1, peer_rounds, MOST_ROUNDS),
        }
    )
    rtts_s = [_seconds(value) for value in rtt or (0.0, 50.0)]
    parse_adapter(adapter)
    path = added_to(out, WIRE_FILE)
    with terminable(), working("looking for the base") as say:
        found = find_base(base, base in CONFIGS, None, 0)
        session = new_session()
        asked = [ours.Rounds(found, adapter, clients, rounds, rtt_s) for rtt_s in rtts_s]
        every = _runs(asked, peer_rounds if peer else 0, say)
        runs, stopped = kept(every, path, lambda run: to_record(run, found.base_id, session))
    runs.sort(key=lambda run: rtts_s.index(run.rtt_s))
    if runs and json_output:
        print(json.dumps({"runs": [to_json(run) for run in runs]}))
    elif runs:
        show(wire_table(runs))
        tell(machine_notes(asdict(this_machine()), [run.load_1m for run in runs]))
    if stopped is not None:
        raise stopped


def _seconds(rtt_ms: float) -> float:
    is_one = math.isfinite(rtt_ms) and 0 <= rtt_ms <= MOST_RTT_MS
    demand(is_one, f"--rtt {rtt_ms:g}: 0 to {MOST_RTT_MS:g} milliseconds", BenchmarkError)
    return rtt_ms / 1e3


def _runs(
    asked: Sequence[ours.Rounds], peer_rounds: int, say: Callable[[str], None]
) -> Iterator[WireRun]:
    """Ours over every distance, then the peer's, if it has rounds."""

    def about(who: str, rtt_s: float) -> Callable[[str], None]:
        return lambda said: say(f"{who}, {1e3 * rtt_s:g} ms: {said}")

    for one in asked:
        yield ours.measure(one, about(WHO, one.rtt_s))
    for one in asked if peer_rounds else ():
        numbers = flwr.numbers(first_state(one.base, one.adapter))
        listen = about(FLWR, one.rtt_s)
        yield flwr.measure(numbers, one.clients, peer_rounds, one.rtt_s, listen)


def soak(
    rounds: Annotated[int, typer.Option(help="Rounds of the run, 4 or more.")] = 2000,
    clients: Annotated[
        int, typer.Option(help="Devices, 1 or more; all take part in every round.")
    ] = 2,
    adapter: AdapterOption = "lora:8@q,v",
    out: Annotated[
        Path | None, typer.Option(help=f"Folder; a record per run is appended to its {SOAK_FILE}.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Run thousands of rounds without compute and watch memory, files and disk for growth.

    A real coordinator, and devices with the client's own transport and state folder, over HTTP; the
    adapter is for the embedded base. Exit code 1: a process failed, or in a run of 1,000 rounds or
    more the coordinator's memory grew by more than 5 KiB per round.
    """
    demand_between({"rounds": (4, rounds, 1_000_000), "clients": (1, clients, MOST_CLIENTS)})
    parse_adapter(adapter)
    path = added_to(out, SOAK_FILE)
    with terminable(), working("looking for the base") as say:
        base, session = find_base(EMBEDDED, False, None, 0), new_session()
        run = long_run.measure(ours.Rounds(base, adapter, clients, rounds - WARMUP, 0.0), say)
        if path is not None:
            append(path, [long_run.to_record(run, base.base_id, session)])
    if json_output:
        print(json.dumps(long_run.to_json(run)))
    else:
        show(long_run.soak_table(run))
        tell(machine_notes(asdict(this_machine()), [run.load_1m]))
    most = size(long_run.MOST_GROWTH_BYTES)
    demand(run.is_level, f"the coordinator grew by more than {most} in a round", Failed)


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
        runs, stopped = kept(fleets, path, lambda run: fleet_record(run, base.base_id, session))
    if runs and json_output:
        print(json.dumps({"runs": [fleet_json(run) for run in runs]}))
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

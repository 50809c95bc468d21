"""`smidgen simulate reach`: what fleets of up to a million devices need, and what breaks first."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edge_client.errors import demand
from edge_client.planning.sizes import parse_size
from edge_client.tables import show, size, tell
from profiling.instruments.interrupts import terminable
from profiling.instruments.machine import this_machine
from simulation.commands.experiments import JsonOption
from simulation.reach.children import take
from simulation.reach.costs import KNOWN, fit, seen_in
from simulation.reach.model import Model, Place, Rounds
from simulation.reach.report import lines, reach_table, to_json
from simulation.reach.taken import Asked, Growth

SIZES = (1_000, 10_000, 100_000)
LEAST, MOST = 10, 1_000_000
MOST_CORES = 10_000.0
DEVICES = f"Devices of a fleet that is measured, {LEAST} to {MOST}; repeat. By default three sizes."
FLEET = (
    "Records of `profile fleet --out` of two sizes or more, from which costs over HTTP are "
    "fitted; by default the figures of docs/results/fleet.md."
)


def reach(
    devices: Annotated[list[int] | None, typer.Option(help=DEVICES)] = None,
    cohort: Annotated[int, typer.Option(help=f"Most devices that a step asks, 1 to {MOST}.")] = 200,
    round_s: Annotated[float, typer.Option(help="Seconds of a round, 1 to a day.")] = 60.0,
    cores: Annotated[float, typer.Option(help="Cores of a machine that serves.")] = 2.0,
    memory: Annotated[str, typer.Option(help="Its memory, such as 8G.")] = "8G",
    fleet: Annotated[Path | None, typer.Option(help=FLEET)] = None,
    json_output: JsonOption = False,
) -> None:
    """What a fleet of a million devices needs of a coordinator, by numbers; what breaks first.

    The fleet's state is measured here, by the coordinator's own code on a store of real rows, each
    size in a fresh process; what goes over HTTP is estimated from fleets that were measured. A
    million devices are estimated where they are not measured: that takes 2 GiB and ten minutes.
    """
    sizes = sorted(set(devices or SIZES))
    for count in sizes:
        demand(LEAST <= count <= MOST, f"--devices {count}: {LEAST} to {MOST} is expected")
    demand(1 <= cohort <= MOST, f"--cohort {cohort}: 1 to {MOST} is expected")
    is_time = math.isfinite(round_s) and 1.0 <= round_s <= 86_400.0
    demand(is_time, f"--round-s {round_s:g}: 1 to 86400 seconds")
    is_count = math.isfinite(cores) and 1.0 <= cores <= MOST_CORES
    demand(is_count, f"--cores {cores:g}: 1 to {MOST_CORES:g} is expected")
    places = places_of(cores, parse_size("--memory", memory))
    costs = fit(KNOWN) if fleet is None else fit(seen_in(fleet), str(fleet))
    progress, taken = Console(stderr=True), []
    with terminable(), progress.status("") as status:
        for count in sizes:
            taken.append(take(Asked(count, min(cohort, count)), status.update))
    model = Model(costs, Growth(taken), Rounds(cohort, round_s))
    columns = sorted({*sizes, MOST})
    if json_output:
        print(json.dumps(to_json(model, columns, places)))
        return
    show(reach_table(model, columns, places[0], places[-1]))
    tell(lines(model, places, _machine()))


def places_of(cores: float, memory_bytes: int) -> list[Place]:
    """Where a coordinator may run: alone, on one machine, and on any number of such machines."""
    machine = f"{cores:g} cores, {size(memory_bytes)}"
    whole = int(cores)
    found = [Place(f"one process with SQLite, {machine}", cores, memory_bytes, 1, False)]
    if whole > 1:
        name = f"{whole} processes with PostgreSQL, {machine}"
        found.append(Place(name, cores, memory_bytes, whole, True))
    name = f"any number of processes with PostgreSQL, machines of {machine}"
    return [*found, Place(name, cores, memory_bytes, None, True)]


def _machine() -> str:
    """Where it was measured."""
    here = this_machine()
    sets = ", ".join(here.instruction_sets) or "instruction sets not known"
    return (
        f"measured on: {here.processor or here.machine} ({sets}), {here.cores} cores, "
        f"{size(here.memory_bytes)}, load average now {here.load_1m:g}"
    )

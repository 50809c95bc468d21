"""`python -m benchmarks zero-compute`: rounds that compute nothing, ours and Flower's."""

import json
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.comparisons.flwr import FlwrRun, simulate
from benchmarks.comparisons.zero_compute import (
    Footprint,
    ZeroRounds,
    first_state,
    footprint,
    zero_rounds,
)
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.tables import Column, Table, seconds, show, size, sizes, tell
from smidgen.profiling.instruments.child import terminable
from smidgen.profiling.instruments.environment import BenchmarkError
from smidgen.profiling.peers.flwr import FLWR, missing
from smidgen.simulation.experiments.child import child

MOST = 1_000_000


def zero_compute(
    clients: Annotated[
        int, typer.Option(min=11, max=MOST, help="Virtual clients; all take part in each round.")
    ] = 1000,
    rounds: Annotated[int, typer.Option(min=1, max=MOST, help="Rounds.")] = 3,
    peer: Annotated[str, typer.Option(help=f"`{FLWR}`: also measure its simulation.")] = "",
    peer_clients: Annotated[
        int, typer.Option(min=0, max=MOST, help="Clients of the peer. Default, or 0: as many.")
    ] = 0,
    json_output: JsonOption = False,
) -> None:
    """Time rounds without compute (each client adds 0.01), and measure memory per client."""
    if peer not in ("", FLWR):
        raise BenchmarkError(f"--peer {peer} is not known here; {FLWR}")
    if peer and (reason := missing()):
        raise BenchmarkError(f"--peer {FLWR}: {reason}")
    ours = _in_fresh_process(zero_rounds, clients, rounds)
    taken = _in_fresh_process(footprint, clients)
    other = simulate(peer_clients or clients, rounds, first_state()) if peer else None
    _tell(ours, taken, other, Console(stderr=json_output))
    if json_output:
        print(json.dumps(_plain(ours, taken, other)))


def _in_fresh_process(work: Callable[..., Any], *arguments: int) -> Any:
    """A figure of its own process is of nobody else's memory."""
    with terminable(), child(work, *arguments, name="zero-compute") as running:
        return running.answer()


def _tell(ours: ZeroRounds, taken: Footprint, other: FlwrRun | None, console: Console) -> None:
    rows = [("smidgen, one process", ours.clients, ours.round_s, ours.peak_rss_bytes)]
    if other is not None:
        name = f"flwr {other.versions.get('flwr', '')}, {other.processors} actors"
        rows.append((name, other.clients, other.rounds_s, other.peak_pss_bytes))
    peaks = sizes([row[-1] for row in rows])
    names = ("clients", "a round", "from", "to", "1,000 clients", "peak")
    table = Table(
        [Column("who", "text"), *(Column(name) for name in names)],
        [_zero_cells(*row[:3], peak) for row, peak in zip(rows, peaks, strict=True)],
        f"zero-compute rounds of lora:8, {size(ours.adapter_bytes)}",
        [
            "a round: median of the rounds, from the shortest to the longest; 1,000 clients: a "
            "round's time for so many of them; peak: resident memory, of all processes together"
        ],
    )
    show(table, file=console.file)
    lines = []
    if other is not None:
        factor = _per_client(other.rounds_s, other.clients) / _per_client(
            ours.round_s, ours.clients
        )
        lines.append(
            f"a client-round: {factor:.0f} x faster than flwr, "
            f"whose start of {other.startup_s:.1f} s is not counted"
        )
    lines.append(
        f"memory: {size(taken.bytes_per_client)} per client from {taken.few} to "
        f"{taken.clients:,} clients that all train on the embedded base ({taken.round_s:.1f} s)"
    )
    tell(lines, console.file)


def _zero_cells(name: str, clients: int, taken: tuple[float, ...], peak: str) -> list[str]:
    times = (median(taken), min(taken), max(taken), 1000 * _per_client(taken, clients))
    return [name, f"{clients:,}", *map(seconds, times), peak]


def _per_client(taken: tuple[float, ...], clients: int) -> float:
    return median(taken) / clients


def _plain(ours: ZeroRounds, taken: Footprint, other: FlwrRun | None) -> dict[str, Any]:
    plain: dict[str, Any] = {"smidgen": asdict(ours), "footprint": asdict(taken)}
    if other is not None:
        plain["flwr"] = asdict(other)
    return plain

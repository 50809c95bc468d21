"""`smidgen simulate run`, `waiting`, `zero-compute`, and options of all commands of experiments."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import typer
from rich.console import Console

from smidgen.coordinator.plugins import know_folder
from smidgen.edge_client.commands.console import DeviceOption
from smidgen.edge_client.errors import Stopped, demand
from smidgen.edge_client.planning.cuda.accelerator import CPU
from smidgen.edge_client.tables import Column, Table, seconds, show, size, sizes, tell
from smidgen.profiling.instruments.bases import BenchmarkError
from smidgen.profiling.instruments.child import terminable
from smidgen.profiling.peers.flwr import FLWR, FlwrRun, missing, simulate
from smidgen.simulation.api import JOBS, OUT, SEEDS
from smidgen.simulation.experiments.child import child
from smidgen.simulation.experiments.experiment import ExperimentError, read_experiment
from smidgen.simulation.experiments.runner import Place
from smidgen.simulation.experiments.virtual.zero_compute import (
    Footprint,
    ZeroRounds,
    first_state,
    footprint,
    zero_rounds,
)
from smidgen.simulation.experiments.waiting import WAYS, Asked, Compared, compare
from smidgen.simulation.report.report import Order, Piece, play
from smidgen.simulation.report.scenario import Cell, Scenario

PLUGINS = "Folder of Python files that define means, optimizers or selections for the experiments."
BaseOption = Annotated[str, typer.Option(help="Folder, hub name, or `embedded`.")]
DataOption = Annotated[
    Path | None, typer.Option(help="Folder of data sets. Default: $SMIDGEN_DATA.")
]
OutOption = Annotated[Path, typer.Option(help="Folder of results; finished experiments are kept.")]
SeedsOption = Annotated[
    int, typer.Option(min=1, max=1000, help="Number of seeds, counting from 0.")
]
JobsOption = Annotated[
    int, typer.Option(min=1, max=1024, help="Experiments at once, one process each.")
]
RayOption = Annotated[str, typer.Option(help="Train on a Ray cluster: its address, or `local`.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")
]


def run_command(
    files: Annotated[list[Path], typer.Argument(help="Experiment files (TOML); one row each.")],
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of seeds, counting from the file's own.")
    ] = SEEDS,
    jobs: JobsOption = JOBS,
    device: DeviceOption = CPU,
    ray: RayOption = "",
    plugins: Annotated[Path | None, typer.Option(help=PLUGINS)] = None,
    json_output: JsonOption = False,
) -> None:
    """Run your own experiments, described in TOML files."""
    if plugins is not None:
        know_folder(plugins)
    with resumable(out):
        cells = [Cell(said.name, said.paradigm, said) for said in map(read_experiment, files)]
        if len({cell.name for cell in cells}) < len(cells):
            raise ExperimentError(
                "two files have one `name` and paradigm; they would share a row: rename one"
            )
        place = Place(data, out / "experiments", ray, plugins, device)
        chosen = Scenario("run", "Experiments of your own: accuracy in %", tuple(cells), ())
        play(Piece(chosen), Order(range(seeds), place, jobs, out, json_output))


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Say after a Ctrl-C or SIGTERM how to go on."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt as error:
        raise Stopped(f"stopped; the same command goes on from {out}") from error


def waiting(
    clients: Annotated[int, typer.Option(min=3, max=64, help="Homes.")] = Asked.clients,
    slower: Annotated[
        float, typer.Option(min=1.0, max=1000.0, help="How many times slower one of the homes is.")
    ] = Asked.slower,
    rounds: Annotated[
        int, typer.Option(min=1, max=1000, help="Synchronous rounds; the others get the same time.")
    ] = Asked.rounds,
    seeds: Annotated[
        int, typer.Option(min=1, max=100, help="Number of seeds; each deals the texts anew.")
    ] = 3,
    json_output: JsonOption = False,
) -> None:
    """Compare time to a target accuracy with one slow device, on a virtual clock.

    Synchronous rounds wait for it, over-selected rounds take the first answers, and asynchronous
    rounds wait for nobody.
    """
    demand(1.0 <= slower <= 1000.0, f"--slower {slower}: 1 to 1000 is expected")  # not NaN
    console = Console(stderr=json_output)
    progress = Console(stderr=True)
    asked = Asked(clients=clients, slower=slower, rounds=rounds, seeds=seeds)
    with progress.status("") as status:

        def tell(said: str, judged: int) -> None:
            if not judged:
                progress.print(said, highlight=False)
            status.update(f"{judged} adapters judged")

        found = compare(asked, tell)
    show(_table(asked, found), file=console.file)
    if json_output:
        print(json.dumps(_plain_ways(found)))


def _table(asked: Asked, found: Compared) -> Table:
    names = ("to target", "versions", "trainings", "accuracy", "slow home's", "replay")
    return Table(
        [Column("rounds", "text"), *(Column(name) for name in names)],
        [_way_cells(name, found) for name in WAYS],
        f"{asked.clients} homes, one {asked.slower:g} times slower; seeds: {asked.seeds}",
        [
            f"to target: virtual seconds until {found.target:.1%} is right, which is what "
            "synchronous rounds end with on average, less one point; each run has "
            f"{found.until_s:g} s; a quick home trains for about 1 s",
            "mean over seeds, and from the least to the most; slow home's: accuracy on its own "
            "test texts; replay: whether the journal, folded once more, gave the same bytes",
        ],
    )


def _way_cells(name: str, found: Compared) -> list[str]:
    ways = found.of(name)
    return [
        name,
        _times([way.time_to(found.target) for way in ways]),
        _spread([float(way.told.made) for way in ways], "{:.0f}"),
        _spread([float(way.told.trained) for way in ways], "{:.0f}"),
        _spread([way.accuracy for way in ways], "{:.1%}"),
        _spread([way.of_slowest for way in ways], "{:.1%}"),
        "equal" if all(way.is_replayed for way in ways) else "DIFFERENT",
    ]


def _times(told: Sequence[float | None]) -> str:
    """Times of the seeds that reached the target, and how many did not."""
    reached = [one for one in told if one is not None]
    missed = len(told) - len(reached)
    never = f"; {missed} of {len(told)} never" if missed else ""
    return f"{_spread(reached, '{:.1f} s')}{never}" if reached else "never"


def _spread(values: Sequence[float], form: str) -> str:
    least, most = form.format(min(values)), form.format(max(values))
    middle = form.format(mean(values))
    return middle if least == most else f"{middle} ({least} to {most})"


def _plain_ways(found: Compared) -> dict[str, Any]:
    return {
        "target": found.target,
        "until_s": found.until_s,
        "ways": [
            {
                "rounds": way.name,
                "seed": way.seed,
                "to_target_s": way.time_to(found.target),
                "versions": way.told.made,
                "trainings": way.told.trained,
                "accuracy": way.accuracy,
                "accuracy_of_slowest": way.of_slowest,
                "oldest": max(one.oldest for one in way.told.versions),
                "is_replayed": way.is_replayed,
            }
            for way in found.ways
        ],
    }


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
        print(json.dumps(_plain_zero(ours, taken, other)))


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


def _plain_zero(ours: ZeroRounds, taken: Footprint, other: FlwrRun | None) -> dict[str, Any]:
    plain: dict[str, Any] = {"smidgen": asdict(ours), "footprint": asdict(taken)}
    if other is not None:
        plain["flwr"] = asdict(other)
    return plain

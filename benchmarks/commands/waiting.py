"""`python -m benchmarks waiting`: rounds beside one slow device, waited for or not."""

import json
from collections.abc import Sequence
from statistics import mean
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.comparisons.waiting import WAYS, Asked, Compared, compare
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tables import Column, Table, show


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

"""A soak: one coordinator and a few devices over thousands of rounds in which nobody computes.

The processes are those of `profiling.wire`: `smidgen coordinator serve` with its store on disk, and
devices that speak with the client's own transport and state folder, without a relay between.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from profiling.fleet.watch import Sample, Watch
from profiling.instruments.bases import cache_folder
from profiling.instruments.child import Line
from profiling.instruments.processes import Processes, running
from profiling.soak.run import SoakRun, side
from profiling.wire.ours import (
    SERVER,
    START_S,
    Rounds,
    check,
    last_adapter,
    serve,
    start_clients,
)

POLL_S = 2.0  # between two looks at how far they are
ROUND_S = 20.0  # a round, on average, is not waited for longer


def measure(asked: Rounds, say: Callable[[str], None]) -> SoakRun:
    """Let a run take its rounds, and watch both sides.

    Args:
        asked: Which rounds; one before them warms up and counts like the others here.
        say: Told how far they are.

    Raises:
        ProcessError: The coordinator or a device failed, or the adapter is not the mean.
    """
    load_1m = os.getloadavg()[0]
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="soak-", dir=cache_folder()) as name,
        running(Path(name) / "logs") as processes,
    ):
        folder = Path(name)
        host, port, token = serve(processes, folder, asked)
        clients = start_clients(processes, folder, asked.clients, f"http://{host}:{port}", token)
        stores = {SERVER: folder / "store"} | {one: folder / one for one in clients}
        with ExitStack() as stack:
            watches = {
                one: stack.enter_context(Watch(processes.running[one].pid, store, {}))
                for one, store in stores.items()
            }
            _wait(processes, clients, asked, say)
        lines = [line for one in clients for line in processes.lines(one)]
        adapter = last_adapter(folder / clients[0])
    check(asked, adapter)
    began_s = began(lines)
    return SoakRun(
        rounds=len(began_s) - 1,
        clients=asked.clients,
        update_bytes=sum(tensor.nbytes for tensor in adapter.values()),
        began_s=began_s,
        sides=tuple(side(one, watch.samples, began_s) for one, watch in watches.items()),
        load_1m=load_1m,
    )


def _wait(
    processes: Processes, clients: Sequence[str], asked: Rounds, say: Callable[[str], None]
) -> None:
    """Wait until the run is over."""

    def is_over() -> bool:
        lines = processes.lines(clients[0])
        done = sum(line.get("kind") == "train" for line in lines)
        say(f"round {done} of {asked.all_rounds}")
        return bool(lines) and all(
            processes.lines(one)[-1]["event"] == "over" for one in clients if processes.lines(one)
        )

    processes.wait(is_over, START_S + ROUND_S * asked.all_rounds, "the last round", POLL_S)


def began(lines: Iterable[Line]) -> tuple[float, ...]:
    """When the training of each round reached the first device, and when the first one was over."""
    first: dict[int, float] = {}
    over: list[float] = []
    for line in lines:
        if line["event"] == "over":
            over.append(line["at_s"])
        elif line["kind"] == "train":
            index = line["round_index"]
            first[index] = min(line["at_s"], first.get(index, line["at_s"]))
    return (*(first[index] for index in sorted(first)), min(over))


def from_start(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    return tuple(replace(one, at_s=round(one.at_s - samples[0].at_s, 3)) for one in samples)

"""Soak test: one coordinator and a few devices over thousands of rounds without compute.

The processes are those of `smidgen.profiling.wire`: `smidgen coordinator serve` with its store on
disk, and devices with the client's own transport and state folder, without a relay.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from smidgen.edge_client.tables import Column, Table, seconds, size
from smidgen.profiling.fleet.run import ProcessWatch, Sample, slope
from smidgen.profiling.instruments.child import Line, Processes, running
from smidgen.profiling.instruments.environment import cache_folder, conditions
from smidgen.profiling.records.record import Figure, Record
from smidgen.profiling.wire.ours import (
    SERVER,
    START_S,
    Rounds,
    check,
    last_adapter,
    serve,
    start_clients,
)

SETTLED = 200  # rounds in which what is taken once may be taken; a tenth of a shorter run
MOST_GROWTH_BYTES = 5 << 10  # of the coordinator's resident set in a round, after these
FEWEST_JUDGED = 1000  # rounds; over fewer a page or two decide


@dataclass(frozen=True)
class ProcessGrowth:
    """One process over the rounds.

    Attributes:
        name: `coordinator`, or a device's.
        samples: Looks at it and at its folder, once a second.
        rss_slope_bytes: Growth of its resident set per round, once the first rounds are over.
        disk_slope_bytes: Growth of its folder per round; None with too few looks.
    """

    name: str
    samples: tuple[Sample, ...]
    rss_slope_bytes: float | None
    disk_slope_bytes: float | None

    @property
    def peak_rss_bytes(self) -> int:
        return max(one.rss_bytes for one in self.samples)

    @property
    def peak_disk_bytes(self) -> int:
        return max(one.disk_bytes for one in self.samples)

    @property
    def most_files(self) -> int:
        return max(one.open_files for one in self.samples)


@dataclass(frozen=True)
class SoakRun:
    """A soak; all figures measured.

    Attributes:
        rounds: Rounds that were taken.
        clients: Devices, all of them in every round.
        update_bytes: Size of an adapter's numbers, and so of an update.
        began_s: When each round's training reached the first device, and when the run was over.
        sides: The coordinator, then the devices.
        load_1m: Load average before.
    """

    rounds: int
    clients: int
    update_bytes: int
    began_s: tuple[float, ...]
    sides: tuple[ProcessGrowth, ...]
    load_1m: float

    @property
    def round_s(self) -> float:
        return median(later - earlier for earlier, later in pairwise(self.began_s))

    @property
    def is_level(self) -> bool:
        """Whether the coordinator does not grow; of a short run nobody can say."""
        grown = self.sides[0].rss_slope_bytes
        return self.rounds < FEWEST_JUDGED or grown is None or grown <= MOST_GROWTH_BYTES


def settled(rounds: int) -> int:
    return min(SETTLED, rounds // 10)


def side(name: str, samples: Sequence[Sample], began_s: Sequence[float]) -> ProcessGrowth:
    """What looks at a process come to.

    Args:
        name: Whose.
        samples: The looks.
        began_s: When each round began, and when the last one ended.
    """
    first = settled(len(began_s) - 1)
    rss, disk = (slope(samples, figure, began_s, first) for figure in ("rss_bytes", "disk_bytes"))
    return ProcessGrowth(name, tuple(samples), rss, disk)


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
                one: stack.enter_context(ProcessWatch(processes.running[one].pid, store, {}))
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


LOOKS = "statm of /proc, once a second"
# Growth in a round that is none, when two soaks are compared: the bar's; of a folder, a block's.
LEVELS = {"rss_growth_bytes": float(MOST_GROWTH_BYTES), "disk_growth_bytes": 512.0}


def soak_table(run: SoakRun) -> Table:
    """Figures by row, processes by column."""
    rows: list[tuple[str, Callable[[ProcessGrowth], str]]] = [
        ("RSS at first", lambda one: size(one.samples[0].rss_bytes)),
        ("RSS at the end", lambda one: size(one.samples[-1].rss_bytes)),
        ("RSS, highest", lambda one: size(one.peak_rss_bytes)),
        ("RSS, growth in a round", lambda one: size(one.rss_slope_bytes)),
        ("folder at the end", lambda one: size(one.samples[-1].disk_bytes)),
        ("folder, highest", lambda one: size(one.peak_disk_bytes)),
        ("folder, growth in a round", lambda one: size(one.disk_slope_bytes)),
        ("open files, most", lambda one: str(one.most_files)),
        ("processor time in a round", lambda one: seconds(_cpu_s(one, run))),
    ]
    notes = [
        "All figures are measured. Growth: by least squares over looks taken once a second, after "
        f"round {settled(run.rounds)}. The bar for the coordinator is {size(MOST_GROWTH_BYTES)}."
    ]
    return Table(
        [Column("figure", "word"), *(Column(one.name) for one in run.sides)],
        [[name, *(cell(one) for one in run.sides)] for name, cell in rows],
        f"{run.rounds} rounds without computing, {seconds(run.round_s)} each (median): "
        f"{size(run.update_bytes)} each way, {run.clients} clients",
        notes,
    )


def _cpu_s(one: ProcessGrowth, run: SoakRun) -> float:
    return (one.samples[-1].cpu_s - one.samples[0].cpu_s) / run.rounds


def to_record(run: SoakRun, base_id: str, session: str) -> Record:
    """A soak as it is kept."""
    figures = {"round_s": Figure((run.round_s,), "clock")}
    for which, one in (("coordinator", run.sides[0]), ("client", run.sides[1])):
        found = {
            "peak_rss_bytes": float(one.peak_rss_bytes),
            "rss_growth_bytes": one.rss_slope_bytes,
            "peak_disk_bytes": float(one.peak_disk_bytes),
            "disk_growth_bytes": one.disk_slope_bytes,
        }
        for name, value in found.items():
            how = "blocks of files" if "disk" in name else LOOKS
            level = LEVELS.get(name, 0.0)
            if value is not None:
                figures[f"{which}_{name}"] = Figure((value,), how, level=level)
    return Record(
        kind="soak",
        subject={
            "rounds": run.rounds,
            "clients": run.clients,
            "update_bytes": run.update_bytes,
        },
        figures=figures,
        conditions=replace(conditions(base_id), load_1m=run.load_1m),
        session=session,
        details={
            side.name: [
                asdict(replace(one, at_s=round(one.at_s - side.samples[0].at_s, 3)))
                for one in side.samples
            ]
            for side in run.sides
        },
    )


def to_json(run: SoakRun) -> dict[str, Any]:
    plain = asdict(run) | {"round_s": run.round_s, "is_level": run.is_level}
    del plain["began_s"]
    for one in plain["sides"]:
        del one["samples"]
    for told, one in zip(plain["sides"], run.sides, strict=True):
        told |= {"peak_rss_bytes": one.peak_rss_bytes, "peak_disk_bytes": one.peak_disk_bytes}
    return plain

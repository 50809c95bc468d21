"""What devices cost a coordinator over HTTP and TLS, fitted to fleets that were measured.

    costs = fit(seen_in(Path("fleet.jsonl")))

By least squares over fleets of different sizes: a round costs its pieces of work and the polls of
everybody meanwhile, enrolling costs each device and the polls of those that are in by then, and
memory is that of each process and of each connection. No cost is below 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from edge_client.errors import demand
from profiling.records.file import read_records
from profiling.records.record import Record
from simulation.reach.taken import POLL_S

PAGE = "docs/results/fleet.md, From 1,000 to 5,000 devices, with limits against floods"
KINDS = 2  # of work that a cohort is asked in each round: training and evaluation


@dataclass(frozen=True)
class Seen:
    """A fleet as `smidgen profile fleet` measured it.

    Attributes:
        devices: How many took part.
        cohort: How many trained in a round, and as many evaluated.
        update_bytes: Of an update, and of an adapter.
        processes: Of the coordinator.
        round_s: Seconds of a round, median.
        round_cpu_s: The coordinator's processor time in a round.
        enrolling_s: Seconds until all had enrolled.
        enrolling_cpu_s: The coordinator's processor time meanwhile.
        rss_bytes: Its resident memory at most, of all processes.
        beside: Processor time of the store's servers for each second of the coordinator's; None
            where it had none, or nobody saw.
    """

    devices: int
    cohort: int
    update_bytes: int
    processes: int
    round_s: float
    round_cpu_s: float
    enrolling_s: float
    enrolling_cpu_s: float
    rss_bytes: float
    beside: float | None = None


@dataclass(frozen=True)
class Costs:
    """What follows from them; all estimated.

    Attributes:
        poll_s: Processor time of a poll, with what a waiting device costs meanwhile.
        work_s: Of a piece of work: a download and a report, and half the times an upload.
        enrol_s: Of an enrolment: TLS, enrolling and joining.
        connection_bytes: Resident memory of a device that is connected.
        process_bytes: Of a process without any.
        update_bytes: Of the updates that were sent.
        beside: As `Seen` has it, on average.
        source: Where the figures are from.
    """

    poll_s: float
    work_s: float
    enrol_s: float
    connection_bytes: float
    process_bytes: float
    update_bytes: int
    beside: float | None
    source: str


KNOWN = tuple(
    Seen(devices, 200, 786_432, 1, round_s, round_cpu_s, enrolling_s, devices * each_s, mib * 2**20)
    for devices, round_s, round_cpu_s, enrolling_s, each_s, mib in (
        (1_000, 16.0, 13.1, 23.6, 0.0175, 227),
        (3_000, 24.5, 21.2, 79.6, 0.0223, 394),
        (5_000, 36.3, 33.0, 158.0, 0.0280, 569),
    )
)


def fit(seen: Sequence[Seen], source: str = PAGE) -> Costs:
    """Costs of fleets of two sizes or more, with updates of one size.

    Fleets that follow from costs give these back.

    Args:
        seen: The fleets.
        source: Where they are from.

    Raises:
        WrongInput: They do not tell costs apart.
    """
    sizes = sorted({one.devices for one in seen})
    told = ", ".join(map(str, sizes)) or "none"
    demand(
        len(sizes) >= 2,
        f"{source}: fleets of two sizes or more are expected, it has {told}; measure others with "
        "`smidgen profile fleet --devices 1000 --devices 3000 --out FOLDER`",
    )
    updates = sorted({one.update_bytes for one in seen})
    told = " and ".join(map(str, updates))
    demand(
        len(updates) == 1,
        f"{source}: updates of {told} bytes; fleets with one --adapter are expected",
    )
    work = [float(KINDS * min(one.cohort, one.devices)) for one in seen]
    polls = [one.devices * one.round_s / POLL_S for one in seen]
    work_s, poll_s = least_squares([work, polls], [one.round_cpu_s for one in seen])
    # Half of them are in on average while all enrol.
    meanwhile = [one.devices / 2 * one.enrolling_s / POLL_S * poll_s for one in seen]
    enrolling = [one.enrolling_cpu_s - less for one, less in zip(seen, meanwhile, strict=True)]
    (enrol_s,) = least_squares([[float(one.devices) for one in seen]], enrolling)
    memory = [[float(one.processes) for one in seen], [float(one.devices) for one in seen]]
    process_bytes, connection_bytes = least_squares(memory, [one.rss_bytes for one in seen])
    beside = [one.beside for one in seen if one.beside is not None]
    return Costs(
        poll_s,
        work_s,
        enrol_s,
        connection_bytes,
        process_bytes,
        updates[0],
        sum(beside) / len(beside) if beside else None,
        source,
    )


def least_squares(columns: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Factors of columns that come nearest to values, none below 0.

    Of all sets of columns whose best factors are not below 0 the one that comes nearest: with two
    columns there are three to try.
    """
    matrix, wanted = np.array(columns, float).T, np.array(values, float)
    best, least = [0.0] * len(columns), float((wanted**2).sum())
    places = range(len(columns))
    for some in (one for n in places for one in combinations(places, n + 1)):
        part = matrix[:, some]
        factors = np.linalg.lstsq(part, wanted, rcond=None)[0]
        off = float(((part @ factors - wanted) ** 2).sum())
        if (factors >= 0.0).all() and off < least:
            best, least = [0.0] * len(columns), off
            for place, factor in zip(some, factors, strict=True):
                best[place] = float(factor)
    return best


def seen_in(path: Path) -> list[Seen]:
    """The fleets of a file of records that came to their end.

    Raises:
        WrongInput: It cannot be read, or holds none.
    """
    fleets = [one for one in read_records(path).records if one.kind == "fleet"]
    found = [one for record in fleets if record.is_done and (one := seen_of(record)) is not None]
    told = f"{path}: no fleet that came to its end; `smidgen profile fleet --out` writes such"
    demand(bool(found), told)
    return found


def seen_of(record: Record) -> Seen | None:
    """A fleet of its record; None where one of the figures was not taken."""
    whole = {name: record.subject.get(name) for name in ("devices", "cohort", "update_bytes")}
    names = ("round_s", "round_cpu_s", "enrolling_s", "enrolling_cpu_s", "peak_rss_bytes")
    figures = [value for name in names if (value := record.median(name)) is not None]
    numbers = [value for value in whole.values() if isinstance(value, int) and value > 0]
    processes = record.subject.get("processes", 1)
    is_whole = len(figures) == len(names) and len(numbers) == len(whole)
    if not is_whole or not isinstance(processes, int) or processes < 1:
        return None
    devices, cohort, update_bytes = numbers
    round_s, round_cpu_s, enrolling_s, enrolling_cpu_s, rss_bytes = figures
    return Seen(
        devices,
        cohort,
        update_bytes,
        processes,
        round_s,
        round_cpu_s,
        enrolling_s,
        enrolling_cpu_s,
        rss_bytes,
        beside_of(record),
    )


def beside_of(record: Record) -> float | None:
    """Processor time of the store's servers for each second of the coordinator's."""
    samples = record.details.get("samples", [])
    if len(samples) < 2 or "database" not in samples[-1].get("shares_s", {}):
        return None
    first, last = samples[0], samples[-1]
    servers = ("database", "object store")
    theirs = [
        last["shares_s"][name] - first.get("shares_s", {}).get(name, 0.0)
        for name in servers
        if name in last["shares_s"]
    ]
    own_s = float(last["cpu_s"] - first["cpu_s"])
    return sum(theirs) / own_s if own_s > 0.0 else None

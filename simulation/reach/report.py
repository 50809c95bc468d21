"""What a fleet needs by its size: a table, what breaks first, and the same for machines."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from edge_client.tables import Column, Table, seconds, size
from simulation.reach.model import Break, Model, Place
from simulation.reach.taken import POLL_S, Taken

PER = 100_000  # devices, for what a day costs
FIRST = 3  # limits that are told
NOTES = (
    "measured: by the coordinator's own code on real rows, without HTTP; ~ before a figure: "
    "estimated, on the line through the sizes that were measured. processor: time of one core.",
    "estimated: from what a poll, a piece of work, an enrolment and a connection cost in fleets "
    "over HTTP and TLS, and from the figures above; processes have one core each and share a "
    "database.",
)
MEASURED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("opening the store", "open_s", seconds),
    ("the fleet's state in a process", "held_bytes", size),
    ("a look in which nothing is due, processor", "tick_cpu_s", seconds),
    ("closing a step and opening the next, processor", "step_cpu_s", seconds),
    ("a report, its commit included", "answer_s", seconds),
    ("what an idle device does next, p50", "next_p50_s", lambda value: micro(value)),
    ("... p99", "next_p99_s", lambda value: micro(value)),
    ("writing whom 30 s of polls heard of, processor", "save_cpu_s", seconds),
    ("... 2 s of polls, in random order", "share_cpu_s", seconds),
    ("reading whom other processes heard, processor", "refresh_cpu_s", seconds),
    ("the database", "database_bytes", size),
)


def needs(model: Model, one: Place, many: Place) -> list[tuple[str, Callable[[int], float], str]]:
    """Rows of what is estimated: name, figure by size, and its unit."""
    rounds = model.rounds
    return [
        (f"cores for polls, one every {POLL_S:g} s", model.polls, "cores"),
        (f"cores for rounds of {rounds.round_s:g} s", model.work, "cores"),
        ("cores for looks and steps, of one process", model.lead, "cores"),
        ("cores in all, one process with SQLite", lambda n: model.cores(n, one), "cores"),
        ("processes of one core, shared database", lambda n: ceil(model.processes(n)), "count"),
        ("resident memory of all of these", lambda n: model.memory_bytes(n, many), "bytes"),
        ("... of one of them", lambda n: model.memory_bytes(n, many) / model.processes(n), "bytes"),
        ("open files of one of them", lambda n: ceil(model.files(n, many)), "count"),
        ("over the network in a round", model.round_bytes, "bytes"),
        ("rows a second of who was heard of", lambda n: model.rows_per_s(n, True), "count"),
        ("enrolling all, one process", model.enrolling_s, "seconds"),
        ("core-hours of a day", lambda n: model.day_core_hours(n, many), "hours"),
    ]


def reach_table(model: Model, columns: Sequence[int], one: Place, many: Place) -> Table:
    """Figures by row, fleets by column."""
    rows = [
        [name, "measured", *(_measured(model, figure, n, say) for n in columns)]
        for name, figure, say in MEASURED
    ]
    rows += [
        [name, "estimated", *(said(figure(n), unit) for n in columns)]
        for name, figure, unit in needs(model, one, many)
    ]
    heads = [Column("figure", "word"), Column("how", "word")]
    return Table(
        [*heads, *(Column(f"{n:,}") for n in columns)],
        rows,
        f"fleets by their devices, cohorts of {model.rounds.cohort}",
        NOTES,
    )


def lines(model: Model, places: Sequence[Place], machine: str) -> Iterator[str]:
    """What breaks first in each place, what a day costs, and where the figures are from."""
    for place in places:
        told = [broken(one) for one in model.breaks(place)[:FIRST]]
        yield f"{place.name}, estimated: what breaks first: {'; then '.join(told)}"
    hours = model.day_core_hours(PER, places[-1])
    costs = model.costs
    beside = costs.beside
    more = "the database's own left out" if beside is None else "the database's own included"
    yield f"a day of {PER:,} devices, estimated: {hours:.0f} core-hours, {more}"
    yield (
        f"a poll {milli(costs.poll_s)}, a piece of work of {costs.update_bytes / 1e6:.2f} MB "
        f"{milli(costs.work_s)}, an enrolment {milli(costs.enrol_s)} of processor time; "
        f"{size(costs.connection_bytes)} of memory a connection, {size(costs.process_bytes)} a "
        f"process; fitted to {costs.source}"
    )
    yield machine


def broken(one: Break) -> str:
    """A limit in words."""
    return f"{one.what} at {about(one.devices)} devices (beyond: {one.beyond})"


def about(devices: float) -> str:
    """A number of devices to two figures: more would promise too much."""
    digits = len(str(int(devices)))
    return f"{round(devices, 2 - digits) if digits > 2 else round(devices):,.0f}"


def to_json(model: Model, columns: Sequence[int], places: Sequence[Place]) -> dict[str, Any]:
    """The same for machines."""
    one, many = places[0], places[-1]
    sizes = []
    for n in columns:
        found = {name: figure(n) for name, figure, _ in needs(model, one, many)}
        taken = model.growth.of(n)
        sizes.append(
            {
                "devices": n,
                "measured": None if taken is None else asdict(taken),
                "estimated": found | ({} if taken else _grown(model, n)),
            }
        )
    return {
        "sizes": sizes,
        "places": [
            asdict(place) | {"breaks": [asdict(one) for one in model.breaks(place)]}
            for place in places
        ],
        "costs": asdict(model.costs),
        "rounds": asdict(model.rounds),
        "core_hours_a_day_per_100000": model.day_core_hours(PER, many),
    }


def _grown(model: Model, devices: int) -> dict[str, float]:
    return {figure: model.growth.at(figure, devices) for _, figure, _ in MEASURED}


def _measured(model: Model, figure: str, devices: int, say: Callable[[float], str]) -> str:
    taken: Taken | None = model.growth.of(devices)
    if taken is not None:
        return say(float(getattr(taken, figure)))
    return f"~{say(model.growth.at(figure, devices))}"


def said(value: float, unit: str) -> str:
    """A figure in its unit."""
    if unit == "bytes":
        return size(value)
    if unit == "seconds":
        return seconds(value) if value < 1000 else f"{value:,.0f} s"
    if unit == "count":
        return f"{value:,.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def milli(value_s: float) -> str:
    """Milliseconds."""
    return f"{1e3 * value_s:.1f} ms"


def micro(value_s: float) -> str:
    """Microseconds."""
    return f"{1e6 * value_s:.0f} us"

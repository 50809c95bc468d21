"""A soak as a table, one column per process, and as a record."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from edge_client.tables import Column, Table, seconds, size
from profiling.instruments.conditions import conditions
from profiling.records.record import Figure, Record
from profiling.soak.measure import from_start
from profiling.soak.run import MOST_GROWTH_BYTES, Side, SoakRun, settled

LOOKS = "statm of /proc, once a second"
# Growth in a round that is none, when two soaks are compared: the bar's; of a folder, a block's.
LEVELS = {"rss_growth_bytes": float(MOST_GROWTH_BYTES), "disk_growth_bytes": 512.0}


def soak_table(run: SoakRun) -> Table:
    """Figures by row, processes by column."""
    rows: list[tuple[str, Callable[[Side], str]]] = [
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


def _cpu_s(one: Side, run: SoakRun) -> float:
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
        details={one.name: [asdict(look) for look in from_start(one.samples)] for one in run.sides},
    )


def to_json(run: SoakRun) -> dict[str, Any]:
    """A soak for machines; without the looks, which a file of records has."""
    plain = asdict(run) | {"round_s": run.round_s, "is_level": run.is_level}
    del plain["began_s"]
    for one in plain["sides"]:
        del one["samples"]
    for told, one in zip(plain["sides"], run.sides, strict=True):
        told |= {"peak_rss_bytes": one.peak_rss_bytes, "peak_disk_bytes": one.peak_disk_bytes}
    return plain

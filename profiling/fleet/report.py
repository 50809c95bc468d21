"""Fleet benchmarks as tables, one column per fleet, and as records."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from smidgen.edge_client.tables import Column, Table, seconds, size
from smidgen.profiling.fleet.run import LATE, ROUTES, SETTLED, FleetRun
from smidgen.profiling.instruments.environment import conditions
from smidgen.profiling.records.record import Figure, Record

SAID = {
    "connect": "connecting, TLS included",
    "enrol": "POST /v1/enrol",
    "membership": "POST .../membership",
    "poll": "GET /v1/work, beyond its wait",
    "heard": "work, after the first that heard",
    "adapter": "GET /v1/adapters/...",
    "update": "PUT .../update",
    "report": "POST .../report, beyond its wait",
}
LEVEL_BYTES = float(256 << 10)  # growth in a round that is none, when two short runs are compared
NOTES = (
    "All figures are measured; devices and coordinator share the machine. A round lasts from the "
    "first device that hears of its training to the next round's.",
    f"Growth: by least squares over looks taken once a second, after round {SETTLED}. Disk: blocks "
    "of the store's files.",
    "Several processes: RSS and files are the sum of all; pages that they share count in each.",
    "The devices' lag: how late their own event loop was, 99th percentile; latencies hold it.",
)


def fleet_table(runs: Sequence[FleetRun]) -> Table:
    """Figures by row, fleets by column."""
    rows: list[tuple[str, Callable[[FleetRun], str]]] = [
        ("outcome", lambda run: run.outcome),
        ("errors", lambda run: str(run.all_errors)),
        ("told to come again later", lambda run: str(run.held_back)),
        ("enrolled", lambda run: f"{run.enrolled} of {run.devices}"),
        ("enrolling all", lambda run: seconds(run.enrolling_s)),
        ("rounds measured", lambda run: f"{len(run.rounds_s)} of {run.rounds}"),
        ("a round, median", lambda run: seconds(_median(run.rounds_s))),
        ("a round, longest", lambda run: seconds(max(run.rounds_s, default=None))),
        ("updates that count", lambda run: f"{run.accepted} of {run.cohort * run.rounds}"),
        ("coordinator's processor time, enrolling", lambda run: seconds(run.enrolling_cpu_s)),
        ("its processor time in a round", lambda run: seconds(_per_round(run, run.cpu_s))),
        *_shares(runs),
        ("requests answered", lambda run: _per_s(run.requests_per_s)),
        ("its RSS before the first device", lambda run: size(run.rss_bytes[0])),
        ("its RSS with all enrolled", lambda run: size(run.rss_bytes[1])),
        ("its RSS at the end", lambda run: size(run.rss_bytes[2])),
        ("its RSS, highest", lambda run: size(run.peak_rss_bytes)),
        ("its RSS, growth in a round", lambda run: size(run.rss_slope_bytes)),
        (f"... in the last {LATE} rounds", lambda run: size(run.late_rss_slope_bytes)),
        ("its folder on disk at the end", lambda run: size(run.disk_bytes)),
        ("its folder, highest", lambda run: size(run.peak_disk_bytes)),
        ("its folder, growth in a round", lambda run: size(run.disk_slope_bytes)),
        ("its open files, most", lambda run: str(run.most_files)),
        ("devices' processor time, all", lambda run: seconds(run.devices_cpu_s)),
        ("devices' lag", lambda run: seconds(run.devices_lag_s)),
    ]
    return Table(
        [Column("figure", "word"), *(Column(_head(run)) for run in runs)],
        [[name, *(cell(run) for run in runs)] for name, cell in rows],
        f"a fleet on {_store(runs[0])}: updates of {runs[0].update_bytes / 1e6:.3f} MB, cohorts of "
        f"{runs[0].cohort}, {'TLS' if runs[0].is_tls else 'no TLS'}",
        NOTES,
    )


def requests_table(run: FleetRun) -> Table:
    """Requests of one fleet by route."""
    rows = [
        [SAID[route], str(one.count), seconds(one.p50_s), seconds(one.p99_s), seconds(one.max_s)]
        for route in ROUTES
        if (one := run.latencies.get(route)) is not None
    ]
    columns = [Column("request", "word"), *map(Column, ("count", "p50", "p99", "longest"))]
    most = sorted(run.errors.items(), key=lambda item: -item[1])[:5]
    notes = [f"error, {count} times: {what}" for what, count in most]
    return Table(columns, rows, f"requests of {_head(run)}", notes)


def _shares(runs: Sequence[FleetRun]) -> list[tuple[str, Callable[[FleetRun], str]]]:
    """Rows of processor time by process, where there are several."""

    def row(name: str) -> tuple[str, Callable[[FleetRun], str]]:
        return f"... of {name}", lambda run: seconds(_per_round(run, run.shares_s.get(name)))

    return [row(name) for name in dict.fromkeys(name for run in runs for name in run.shares_s)]


def _store(run: FleetRun) -> str:
    many = "one coordinator" if run.processes == 1 else f"{run.processes} coordinator processes"
    return f"{many} with {'a shared store' if run.is_shared else 'SQLite'}"


def _per_s(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f} a second"


def _head(run: FleetRun) -> str:
    return f"{run.devices} devices"


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _per_round(run: FleetRun, value: float | None) -> float | None:
    return None if value is None else value / len(run.rounds_s)


def fleet_record(run: FleetRun, base_id: str, session: str) -> Record:
    """A fleet as it is kept."""
    return Record(
        kind="fleet",
        subject={
            "devices": run.devices,
            "cohort": run.cohort,
            "rounds": run.rounds,
            "update_bytes": run.update_bytes,
            "processes": run.processes,
            "is_shared": run.is_shared,
            "is_tls": run.is_tls,
        },
        figures=_figures(run),
        conditions=replace(conditions(base_id), load_1m=run.load_1m),
        outcome=run.outcome,
        session=session,
        details={
            "errors": run.errors,
            "held_back": run.held_back,
            "latencies": {route: asdict(one) for route, one in run.latencies.items()},
            "samples": [asdict(one) for one in run.samples],
        },
    )


def _figures(run: FleetRun) -> dict[str, Figure]:
    clock, ticks, looks = "clock", "utime and stime of /proc", "statm of /proc, once a second"
    found: dict[str, tuple[tuple[float, ...], str]] = {
        "round_s": (run.rounds_s, clock),
        "enrolling_s": (_one(run.enrolling_s), clock),
        "enrolling_cpu_s": (_one(run.enrolling_cpu_s), ticks),
        "round_cpu_s": (_one(_per_round(run, run.cpu_s)), ticks),
        "peak_rss_bytes": ((float(run.peak_rss_bytes),), looks),
        "rss_growth_bytes": (_one(run.rss_slope_bytes), looks),
        "late_rss_growth_bytes": (_one(run.late_rss_slope_bytes), looks),
        "peak_disk_bytes": ((float(run.peak_disk_bytes),), "blocks of files"),
        "disk_growth_bytes": (_one(run.disk_slope_bytes), "blocks of files"),
        "most_open_files": ((float(run.most_files),), "/proc"),
        "errors": ((float(run.all_errors),), "answers"),
        "requests_per_s": (_one(run.requests_per_s), "answers"),
    }
    for route, one in run.latencies.items():
        found[f"{route}_p50_s"] = ((one.p50_s,), clock)
        found[f"{route}_p99_s"] = ((one.p99_s,), clock)
    return {
        name: Figure(
            values,
            how,
            better="higher" if name == "requests_per_s" else "lower",
            level=LEVEL_BYTES if name.endswith("growth_bytes") else 0.0,
        )
        for name, (values, how) in found.items()
        if values
    }


def _one(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


def fleet_json(run: FleetRun) -> dict[str, Any]:
    plain = asdict(run)
    del plain["samples"]
    return plain

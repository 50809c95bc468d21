"""Costs of devices, fitted to fleets that were measured."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edge_client.errors import WrongInput
from profiling.instruments.conditions import conditions
from profiling.records.file import append
from profiling.records.record import Figure, Plain, Record
from simulation.reach.costs import KNOWN, PAGE, Costs, Seen, fit, least_squares, seen_in
from simulation.reach.taken import POLL_S

COSTS = st.builds(
    Costs,
    poll_s=st.floats(1e-4, 1e-2),
    work_s=st.floats(1e-3, 1e-1),
    enrol_s=st.floats(1e-3, 1e-1),
    connection_bytes=st.floats(1e4, 1e6),
    process_bytes=st.floats(1e7, 1e9),
    update_bytes=st.just(786_432),
    beside=st.none(),
    source=st.just("here"),
)
SIZES = st.lists(st.integers(1_000, 20_000), min_size=2, max_size=5, unique=True)


def seen(costs: Costs, devices: int, round_s: float, processes: int = 1) -> Seen:
    """A fleet that costs exactly so much."""
    enrolling_s = 2.0 * devices * costs.enrol_s
    polls_s = costs.poll_s * devices / POLL_S
    return Seen(
        devices,
        200,
        costs.update_bytes,
        processes,
        round_s,
        400 * costs.work_s + polls_s * round_s,
        enrolling_s,
        devices * costs.enrol_s + polls_s / 2 * enrolling_s,
        processes * costs.process_bytes + devices * costs.connection_bytes,
    )


@settings(max_examples=40)
@given(COSTS, SIZES, st.data())
def test_fleets_that_follow_from_costs_give_them_back(
    costs: Costs, sizes: list[int], deal: st.DataObject
) -> None:
    assume(max(sizes) > 1.2 * min(sizes))
    fleets = [seen(costs, n, 10.0 + n / 200, deal.draw(st.integers(1, 3))) for n in sizes]
    # Memory of a process is told from that of a connection only where the two do not go together.
    shares = [one.devices / one.processes for one in fleets]
    assume(max(shares) > 1.2 * min(shares))
    found = fit(fleets, "here")
    for name in ("poll_s", "work_s", "enrol_s", "connection_bytes", "process_bytes"):
        assert getattr(found, name) == pytest.approx(getattr(costs, name), rel=1e-4), name


@given(st.lists(st.tuples(*[st.floats(-9, 9)] * 3), min_size=2, max_size=6))
def test_no_factor_is_below_nothing(rows: list[tuple[float, float, float]]) -> None:
    first, second, values = zip(*rows, strict=True)
    assert all(factor >= 0.0 for factor in least_squares([first, second], values))


def test_fleets_of_one_size_tell_nothing_apart() -> None:
    with pytest.raises(WrongInput, match="two sizes or more are expected, it has 1000"):
        fit([KNOWN[0], KNOWN[0]], "fleet.jsonl")
    with pytest.raises(WrongInput, match="fleets with one --adapter"):
        fit([KNOWN[0], replace(KNOWN[1], update_bytes=1)])


def test_the_known_figures_are_those_of_the_page() -> None:
    page, _, section = PAGE.partition(", ")
    text = (Path(__file__).parents[3] / page).read_text()
    assert f"## {section}\n" in text
    table = text.split(f"## {section}\n")[1].split("\n## ")[0]
    for one in KNOWN:
        each_ms = 1000 * one.enrolling_cpu_s / one.devices
        told = (f"{one.round_s} s", f"{one.round_cpu_s} s", f"{one.enrolling_s:g} s")
        assert all(f"| {figure} |" in table for figure in told), told
        assert f"| {each_ms:.1f} ms |" in table and f"| {one.rss_bytes / 2**20:.0f} MiB;" in table
        assert f"| {one.devices:,} |" in table


def record(one: Seen, outcome: str = "done", share_s: float = 0.0) -> Record:
    values = {
        "round_s": one.round_s,
        "round_cpu_s": one.round_cpu_s,
        "enrolling_s": one.enrolling_s,
        "enrolling_cpu_s": one.enrolling_cpu_s,
        "peak_rss_bytes": one.rss_bytes,
    }
    subject: dict[str, Plain] = {
        "devices": one.devices,
        "cohort": one.cohort,
        "update_bytes": one.update_bytes,
    }
    samples = [
        {"cpu_s": 1.0, "shares_s": {}},
        {"cpu_s": 11.0, "shares_s": {"database": share_s, "coordinator 1": 10.0}},
    ]
    return Record(
        "fleet",
        subject | {"processes": one.processes},
        {name: Figure((value,), "clock") for name, value in values.items()},
        conditions(),
        outcome,
        details={"samples": samples} if share_s else {},
    )


def test_fleets_are_read_from_records(tmp_path: Path) -> None:
    path = tmp_path / "fleet.jsonl"
    append(path, [record(KNOWN[0]), record(KNOWN[1], "ended"), record(KNOWN[2], share_s=4.0)])
    assert seen_in(path) == [KNOWN[0], replace(KNOWN[2], beside=0.4)]
    assert fit(seen_in(path)).beside == 0.4


def test_a_file_without_fleets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.jsonl"
    append(path, [record(KNOWN[1], "ended")])
    with pytest.raises(WrongInput, match="no fleet that came to its end"):
        seen_in(path)

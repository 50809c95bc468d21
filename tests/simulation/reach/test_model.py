"""What a fleet needs, and which limit it passes first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.client.settings import Settings
from simulation.reach import model
from simulation.reach.costs import KNOWN, fit
from simulation.reach.model import MOST_FILES, Model, Place, Rounds, passed_at
from simulation.reach.report import about, lines, reach_table, to_json
from simulation.reach.taken import POLL_S, Growth, Taken

FIRST = Taken(
    1_000, 200, 0.1, 2e6, 8e7, 1e-3, 0.02, 8e-3, 2e-5, 6e-5, 127, 8e-3, 2e-3, 4e-3, 5_000_000
)
LARGER = replace(
    FIRST,
    devices=100_000,
    open_s=6.0,
    held_bytes=1.5e8,
    step_cpu_s=0.6,
    save_cpu_s=1.4,
    share_cpu_s=0.2,
    refresh_cpu_s=0.4,
)
GROWTH = Growth([LARGER, FIRST])
MODEL = Model(fit(KNOWN), GROWTH, Rounds(200, 60.0))
GIB = float(2**30)
ONE = Place("one", 2.0, 8 * GIB, 1, False)
TWO = Place("two", 2.0, 8 * GIB, 2, True)
MANY = Place("many", 2.0, 8 * GIB, None, True)
DEVICES = st.floats(1, 1e7)


@given(st.floats(1e-6, 10), st.floats(0, 3), st.floats(0, 1e6))
def test_a_limit_is_found_where_the_model_passes_it(each: float, power: float, most: float) -> None:
    def need(devices: float) -> float:
        return each * float(devices**power)

    found = passed_at(need, most)
    if found is None:
        assert need(1e9) <= most
        return
    assert need(found) > most
    assert found == 1.0 or need(found * (1 - 1e-8)) <= most


@pytest.mark.parametrize("place", [ONE, TWO, MANY], ids=lambda place: place.name)
def test_what_breaks_is_told_in_order_and_at_its_place(place: Place) -> None:
    found = MODEL.breaks(place)
    assert [one.devices for one in found] == sorted(one.devices for one in found)
    limits = {name: (need, most) for name, need, most, _ in MODEL._limits(place)}
    for one in found:
        need, most = limits[one.what]
        assert need(one.devices) > most >= need(one.devices * (1 - 1e-6))


def test_one_process_runs_out_of_processor_time_then_of_files_then_of_memory() -> None:
    found = MODEL.breaks(ONE)
    names = ["processor time", "open files of a process", "memory"]
    assert [one.what for one in found][:3] == names
    assert found[1].devices == pytest.approx(MOST_FILES - 128)
    costs, devices = MODEL.costs, found[0].devices
    rest = MODEL.work(devices) + MODEL.lead(devices) + MODEL.presence(devices, False)
    assert costs.poll_s * devices / 25.0 + rest == pytest.approx(1.0, rel=1e-6)


@given(DEVICES, DEVICES)
def test_a_larger_fleet_needs_no_less(one: float, other: float) -> None:
    low, high = sorted((one, other))
    for need in (
        MODEL.polls,
        MODEL.lead,
        MODEL.listening,
        MODEL.processes,
        MODEL.round_bytes,
        lambda n: MODEL.memory_bytes(n, MANY),
        lambda n: MODEL.cores(n, MANY),
    ):
        assert need(low) <= need(high) * (1 + 1e-9)


@given(st.integers(1, 10_000_000))
def test_between_measured_sizes_a_figure_lies_between_theirs(devices: int) -> None:
    found = GROWTH.at("held_bytes", devices)
    if devices <= 100_000:
        assert FIRST.held_bytes <= found <= LARGER.held_bytes
    else:
        per_device = (LARGER.held_bytes - FIRST.held_bytes) / 99_000
        more = (devices - 100_000) * per_device
        assert found == pytest.approx(LARGER.held_bytes + more)
    assert GROWTH.of(1_000) is FIRST and GROWTH.of(5_000) is None
    assert GROWTH.at("tick_cpu_s", devices) == FIRST.tick_cpu_s


def test_one_size_alone_grows_in_proportion() -> None:
    assert Growth([FIRST]).at("held_bytes", 3_000) == pytest.approx(6e6)


def test_every_figure_says_whether_it_was_measured() -> None:
    table = reach_table(MODEL, [1_000, 100_000, 1_000_000], ONE, MANY)
    for _, how, *cells in table.rows:
        assert how in ("measured", "estimated")
        assert not any(cell.startswith("~") for cell in cells[:2])
        assert cells[2].startswith("~") == (how == "measured")
    said = list(lines(MODEL, [ONE, TWO, MANY], "here"))
    assert said[0].startswith("one, estimated: what breaks first: processor time at 6,")
    assert "core-hours" in said[3] and KNOWN and "docs/results/fleet.md" in said[4]


def test_machines_are_told_all_of_it() -> None:
    plain = to_json(MODEL, [1_000, 1_000_000], [ONE, TWO, MANY])
    small, large = plain["sizes"]
    assert small["measured"]["held_bytes"] == 2e6 and large["measured"] is None
    assert large["estimated"]["held_bytes"] == GROWTH.at("held_bytes", 1e6)
    assert plain["places"][0]["breaks"][0]["what"] == "processor time"


@pytest.mark.parametrize(
    ("devices", "said"), [(7, "7"), (65.4, "65"), (6543.2, "6,500"), (1_149_999.0, "1,100,000")]
)
def test_two_figures_are_told_of_a_limit(devices: float, said: str) -> None:
    assert about(devices) == said


def test_it_goes_by_the_times_and_bounds_that_the_coordinator_and_the_client_have() -> None:
    pytest.importorskip("fastapi")
    from coordinator.fleet import presence
    from coordinator.serving import app, server
    from coordinator.serving.http import guests

    assert (model.TICK_S, model.REST) == (app.TICK_S, app.REST)
    assert app.TICK_S / 2 == model.LONGEST_REST_S
    assert (model.SAVE_S, model.SHARE_S) == (presence.SAVE_S, presence.SHARE_S)
    assert (model.CLOCKS_S, model.REST) == (presence.CLOCKS_S, presence.REST)
    assert presence.LONGEST_REST_S == model.LONGEST_READ_REST_S
    assert (model.MOST_FILES, model.OWN_FILES) == (server.MOST_FILES, guests.OWN_FILES)
    assert Settings.wait_s == POLL_S

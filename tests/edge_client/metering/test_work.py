import threading
import time
from dataclasses import fields

import pytest

from smidgen.edge_client.metering import work
from smidgen.edge_client.metering.memory import reset_peak_rss
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.wire.reports import Cost

MIB = 1 << 20


def test_the_peak_is_that_of_the_whole_work_and_names_its_phase() -> None:
    meter = WorkMeter()
    with meter.phase("wait"):
        pass
    with meter.working():
        with meter.phase("load"):
            held = bytearray(b"x" * (96 * MIB))
            time.sleep(0.3)
            del held
        assert reset_peak_rss() or True  # as an engine's guard does when it is opened
        with meter.phase("train"):
            bytearray(b"x" * (8 * MIB))
    cost = meter.cost()
    assert cost.peak_phase == "load"
    assert cost.peak_anon_bytes is not None and cost.peak_anon_bytes > 90 * MIB
    assert cost.peak_rss_bytes and cost.peak_rss_bytes >= cost.peak_anon_bytes
    assert cost.minor_faults is not None and cost.minor_faults > 0
    assert set(cost.phases_s) == set(cost.cpu_s) == {"wait", "load", "train"}


def test_what_is_not_here_is_none() -> None:
    cost = WorkMeter().cost()
    assert cost.pss_bytes is None and cost.peak_anon_bytes is None
    assert (cost.tcp_up_bytes, cost.requests, cost.connections) == (0, 0, 0)


def test_figures_that_cannot_be_are_named() -> None:
    assert Cost(pss_bytes=-1).wrong() == ["pss_bytes"]
    assert Cost(cpu_s={"train": float("inf")}).wrong() == ["cpu_s"]
    assert Cost(hottest_c=-40.0).wrong() == [] == Cost().wrong()
    assert Cost(energy_j=-0.5, requests=3).sound() == Cost(requests=3)
    assert len(fields(Cost)) > 20


@pytest.mark.parametrize("name", ["read_heat", "energy_counter", "pss_bytes", "_disk_bytes"])
def test_an_instrument_that_breaks_costs_no_work(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise AttributeError(name)

    monkeypatch.setattr(work, name, broken)
    meter = WorkMeter()
    with meter.working():
        done = "done"
    assert done and meter.cost().wrong() == []


def test_a_thread_that_cannot_start_costs_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    meter = WorkMeter()
    with meter.working():
        pass
    assert meter.cost().peak_anon_bytes is None


def test_delivering_later_adds_what_it_moved() -> None:
    kept = Cost({"train": 2.0}, {"train": 1.0}, requests=2, tcp_up_bytes=100, peak_rss_bytes=7)
    later = Cost({"upload": 0.5, "wait": 9.0}, requests=1, payload_up_bytes=50, tcp_up_bytes=60)
    found = kept.delivered(later)
    assert found.phases_s == {"train": 2.0, "upload": 0.5}
    assert (found.requests, found.tcp_up_bytes, found.payload_up_bytes) == (3, 160, 50)
    assert found.peak_rss_bytes == 7


def test_meters_leave_no_thread_behind() -> None:
    before = threading.active_count()
    for _ in range(3):
        with WorkMeter().working():
            pass
    assert threading.active_count() == before

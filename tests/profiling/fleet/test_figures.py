"""What looks and latencies come to."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from smidgen.profiling.fleet.run import ProcessWatch, Sample, heard, latency, near, slope, together


def looks(values: list[int]) -> list[Sample]:
    return [Sample(float(at), value, 0.0, 0, 0) for at, value in enumerate(values)]


def test_99_of_a_hundred_requests_do_not_exceed_the_99th_percentile() -> None:
    found = latency([float(number) for number in range(100, 0, -1)])
    assert (found.count, found.p50_s, found.p99_s, found.max_s) == (100, 50.0, 99.0, 100.0)
    assert latency([3.0]).p99_s == 3.0


def test_latencies_of_several_processes_are_put_together() -> None:
    found = together([{"poll": [1.0], "report": [5.0]}, {"report": [7.0], "update": []}])
    assert {route: one.count for route, one in found.items()} == {"poll": 1, "report": 2}


def test_growth_counts_rounds_and_not_seconds_and_only_after_the_first() -> None:
    began_s = [0.0, 10.0, 20.0, 40.0, 60.0, 80.0]  # rounds of 20 s from the third on
    samples = looks([1000 - at if at < 20 else 3 * at for at in range(81)])
    assert slope(samples, "rss_bytes", began_s, first=2) == pytest.approx(60.0)
    assert slope(samples, "disk_bytes", began_s, first=2) == 0.0
    assert slope(samples, "rss_bytes", began_s, first=4) is None  # one round is none to judge by


def test_the_look_at_a_moment_is_the_last_one_before_it() -> None:
    assert near(looks([5, 6, 7]), 1.5).rss_bytes == 6
    assert near(looks([5, 6, 7]), -1.0).rss_bytes == 5


def test_rounds_begin_where_the_first_device_of_any_process_hears_of_them() -> None:
    one = {"0 evaluate": [1.0], "1 train": [3.0, 4.0], "2 train": [9.0]}
    other = {"1 train": [2.0], "2 train": [8.0]}
    steps = heard([one, other], [0.0, 15.0])
    assert steps.rounds_s == (6.0, 7.0)
    assert sorted(steps.after_s) == [0.0, 0.0, 0.0, 1.0, 1.0, 2.0]


def test_processes_below_the_coordinator_and_its_servers_are_told_apart(tmp_path: Path) -> None:
    busy = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"
    below = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r} + 'input()'])"
    python = [sys.executable, "-c"]
    with (
        subprocess.Popen([*python, below], stdin=subprocess.PIPE) as parent,
        subprocess.Popen([*python, f"{busy}input()"], stdin=subprocess.PIPE) as server,
    ):
        with ProcessWatch(parent.pid, tmp_path, {"database": server.pid}) as watch:
            end = time.monotonic() + 60
            while time.monotonic() < end and (
                not watch.samples or min(watch.samples[-1].shares_s.values()) < 0.3
            ):
                time.sleep(0.2)
        last = watch.samples[-1]
        for process in (parent, server):
            process.communicate(b"\n")
    assert set(last.shares_s) == {"coordinator 1", "database"}
    assert min(last.shares_s.values()) >= 0.3 and last.cpu_s >= last.shares_s["coordinator 1"]


def test_a_fleet_that_heard_of_nothing_has_no_rounds() -> None:
    assert heard([{}], [0.0]).rounds_s == ()

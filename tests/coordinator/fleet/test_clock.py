"""The time that a coordinator goes by, and what was noted by another clock before it started."""

import subprocess
import sys
import time
from pathlib import Path

from smidgen.coordinator.fleet.presence import FILE, Clock, now_of
from tests.end_to_end.disturbed.wall_clock import WallClock

JUMPS = """
import sys, time
from smidgen.coordinator.fleet.presence import Clock
clock = Clock(time.time())
for _ in range(2):
    sys.stdin.readline()
    print(clock.now_s(), time.time(), flush=True)
"""


def test_a_wall_clock_that_jumps_moves_no_time_of_the_coordinator(tmp_path: Path) -> None:
    wall = WallClock(tmp_path)
    line, pipe = [sys.executable, "-c", JUMPS], subprocess.PIPE
    environment = {**wall.environment, "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, env=environment) as child:
        assert child.stdin is not None and child.stdout is not None
        told = []
        for ahead_s in (0, -7200):
            wall.set(ahead_s)
            child.stdin.write("\n")
            child.stdin.flush()
            told.append([float(part) for part in child.stdout.readline().split()])
    (before, wall_before), (after, wall_after) = told
    assert wall_after < wall_before - 7000
    assert before <= after < before + 600


def test_other_processes_read_the_time_that_a_store_goes_by(tmp_path: Path) -> None:
    assert abs(now_of(tmp_path) - time.time()) < 60
    Clock(1000.0).note(tmp_path)
    assert 1000.0 <= now_of(tmp_path) < 1600.0
    note = tmp_path / FILE
    note.write_text(note.read_text().replace('"boot": "', '"boot": "before '))
    assert abs(now_of(tmp_path) - time.time()) < 60
    note.write_text("half of")
    assert abs(now_of(tmp_path) - time.time()) < 60

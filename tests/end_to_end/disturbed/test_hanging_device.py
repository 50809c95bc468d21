"""A device that hangs in the middle of its work: the others go on, and it comes back.

Its process is stopped with SIGSTOP, as a board that swaps or a card that died would stop it: its
connections stay open and nobody hears of it. The run's own deadline is ten minutes here, so what
closes a step without it is the deadline that the steps before led to: a minute, then two.
"""

import os
import re
import signal
import time

import pytest

from tests import command_line
from tests.end_to_end.conftest import Scene, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(1200)]

ROUNDS, EPOCHS = 40, 60
GOOD, HANGS = ("a", "b"), "c"
DEADLINE_S = 600.0  # of the run
WITHIN_S = 500.0
ASKED = re.compile(r"round (\d+) of \d+, (\w+)(?:, attempt \d+)?: asked ([\w, ]+);")
CLOSED = re.compile(r"round (\d+) of \d+, (\w+) closed after ([\d.]+) s: (\d) of (\d) done")


def asked(scene: Scene) -> list[tuple[int, str, set[str]]]:
    """Round, kind and devices of each step so far."""
    found = ASKED.findall(scene.log("coordinator"))
    return [(int(index), kind, set(names.split(", "))) for index, kind, names in found]


def closed(scene: Scene) -> list[tuple[int, str, float, str]]:
    """Round, kind, seconds and `2 of 3` of each step that is over."""
    found = CLOSED.findall(scene.log("coordinator"))
    return [(int(one[0]), one[1], float(one[2]), f"{one[3]} of {one[4]}") for one in found]


def told_of(scene: Scene, words: str) -> int:
    return scene.log("coordinator").count(words)


def misses(scene: Scene) -> int:
    (one,) = (one for one in scene.coordinator_json("status")["devices"] if one["name"] == HANGS)
    return int(one["misses"])


def said_of_it(scene: Scene, *command: str) -> str:
    store = str(scene.folder / "store")
    return command_line.smidgen("coordinator", *command, "--store", store).stdout


def test_a_device_that_hangs_in_its_work_is_waited_for_less_and_comes_back(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    began_s = time.monotonic()
    scene.create(ROUNDS, 3, EPOCHS)
    url = scene.serve()
    for name in (*GOOD, HANGS):
        scene.client(name, url, "--engine", "onnx")
    hanging = scene.fleet.processes[HANGS]
    wait_for(lambda: f"round 2 of {ROUNDS}: train" in scene.log(HANGS), scene.fleet.check, WITHIN_S)
    os.kill(hanging.pid, signal.SIGSTOP)
    try:
        # Twice it misses the step that it is asked in, and rests for one step, then for two.
        wait_for(lambda: misses(scene) == 1, scene.fleet.check, WITHIN_S)
        assert "silent 1" in said_of_it(scene, "status")
        assert "silent 1" in said_of_it(scene, "devices", "list")
        wait_for(lambda: misses(scene) == 2, scene.fleet.check, WITHIN_S)
        assert "silent 2" in said_of_it(scene, "status")
        before = len(closed(scene))
        wait_for(lambda: len(closed(scene)) >= before + 4, scene.fleet.check, WITHIN_S)
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
    steps = asked(scene)
    since = steps[[one[:2] for one in steps].index((2, "training")) :]
    missed = [one for one in closed(scene) if one[3] == "2 of 3"]
    assert len(missed) == 2 and missed[0][:2] == (2, "training")
    assert all(spent_s < DEADLINE_S / 2 for _, _, spent_s, _ in missed)
    assert missed[0][2] < missed[1][2]  # given longer the second time
    asked_in = [HANGS in names for _, _, names in since]
    assert asked_in[:5] == [True, False, True, False, False]
    for misses_so_far in ("1 step", "2 steps"):
        rests = f"{HANGS}: no answer in time; asked again after a rest of {misses_so_far}\n"
        assert told_of(scene, rests) == 1
    assert told_of(scene, f"{HANGS}: asked again after 1 step without an answer") == 1
    wait_for(lambda: misses(scene) == 0, scene.fleet.check, WITHIN_S)
    assert told_of(scene, f"{HANGS}: asked again after 2 steps without an answer") == 1
    assert told_of(scene, f"{HANGS}: answered again; asked as often as others") == 1
    answered = len(closed(scene))
    wait_for(lambda: len(closed(scene)) >= answered + 3, scene.fleet.check, WITHIN_S)
    assert {one[3] for one in closed(scene)[answered:]} == {"3 of 3"}
    assert "Traceback" not in "".join(map(scene.log, ("coordinator", *GOOD, HANGS)))
    with capsys.disabled():
        times = ", ".join(f"{spent_s:.0f} s" for _, _, spent_s, _ in missed)
        print(f"\nmissed steps closed after {times}; {time.monotonic() - began_s:.0f} s in all")

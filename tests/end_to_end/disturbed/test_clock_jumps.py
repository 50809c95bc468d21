"""The wall clock of a coordinator jumps by two hours: rounds close on time, and count who answers.

Boards without a battery have another time at each boot, and the right one some minutes later.
"""

import sys
import time

import pytest

from smidgen.coordinator.rounds.events import Answered, StepClosed, StepOpened
from smidgen.edge_client.client.connection import http_client, nobody
from tests.coordinator.devices import Device, joined
from tests.end_to_end.conftest import ANY_DISK, Scene, wait_for
from tests.end_to_end.disturbed.wall_clock import WallClock

HOURS_S = 2 * 3600
DEADLINE_S = 15.0
WITHIN_S = 90.0  # of a busy machine: two hours are not meant


def serve(scene: Scene, clock: WallClock, port: int = 0) -> str:
    """Start the coordinator with that wall clock; its URL."""
    (scene.fleet.logs / "coordinator.log").unlink(missing_ok=True)
    store = ("--store", str(scene.folder / "store"), "--port", str(port), *ANY_DISK)
    line = [sys.executable, "-m", "smidgen", "coordinator", "serve", *store]
    scene.fleet.own.start("coordinator", line, clock.environment)
    return scene.fleet.url_of("coordinator")


def closed(scene: Scene) -> list[tuple[str, int, int]]:
    """The steps that are over: what was asked of how many, and how many had answered."""
    found: list[tuple[str, int, int]] = []
    answers, opened = 0, None
    for event in scene.journal():
        if isinstance(event, StepOpened):
            opened, answers = event, 0
        elif isinstance(event, Answered):
            answers += 1
        elif isinstance(event, StepClosed):
            assert opened is not None
            found.append((opened.kind, len(opened.members), answers))
    return found


def until(scene: Scene, devices: list[Device], steps: int) -> None:
    """Wait for so many steps to be over; these devices go on asking, as devices do."""

    def is_over() -> bool:
        for device in devices:
            device.poll()
        time.sleep(0.5)
        return len(closed(scene)) >= steps

    wait_for(is_over, scene.fleet.check, WITHIN_S)


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("jump_s", [-HOURS_S, HOURS_S], ids=["back", "forward"])
def test_rounds_close_on_time_whatever_the_wall_clock_does(
    scene: Scene, jump_s: int, is_restarted: bool
) -> None:
    clock = WallClock(scene.folder)
    scene.create(2, 2, 1, "--deadline", str(DEADLINE_S))
    url = serve(scene, clock)

    def jump(ahead_s: int) -> None:
        clock.set(ahead_s)
        if is_restarted:
            scene.kill("coordinator")
            serve(scene, clock, int(url.rsplit(":", 1)[1]))
        else:
            time.sleep(2.5)  # two ticks of the rounds at least

    with http_client(url, nobody(), timeout=30) as http:
        a, b = (joined(http, scene.token, name) for name in "ab")
        works = [device.work() for device in (a, b)]
        jump(jump_s)  # in an evaluation that nobody has answered
        for device, work in zip((a, b), works, strict=True):
            device.do(work)
        until(scene, [a, b], 1)
        assert closed(scene) == [("evaluate", 2, 2)], "closed without those who were asked"
        a.do(a.work())
        assert b.work().kind == "train"  # it vanishes
        jump(0)
        until(scene, [a], 2)
        assert closed(scene)[1] == ("train", 2, 1)

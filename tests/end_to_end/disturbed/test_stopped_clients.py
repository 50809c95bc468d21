"""Clients that are told to end, and killed, at random moments: work kept, the same bytes, in time.

What happens when follows from `SMIDGEN_FAULT_SEED`, which a failure names.
"""

import random
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.guest.ceilings import minute_of
from smidgen.simulation.demo.setting import fleet
from tests.breadth import first_fast
from tests.end_to_end.conftest import CLIENTS, Scene, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]
WITHIN_S = 10.0  # the promise
EPOCHS, ENDINGS = 4000, 6  # training long enough to be left several times
GOING_ON = "going on with epoch"
LONG = ("--limits", "epochs=10000")


def end(scene: Scene, name: str, number: int = signal.SIGTERM) -> float:
    """Tell a client to end; the seconds that it took, which are few."""
    process = scene.fleet.processes.pop(name)
    began_s = time.monotonic()
    process.send_signal(number)
    code = process.wait(60)
    took_s = time.monotonic() - began_s
    assert code == (0 if number == signal.SIGTERM else 130), scene.log(name)[-2000:]
    assert took_s < WITHIN_S, f"{took_s:.1f} s"
    assert "Traceback" not in scene.log(name)
    return took_s


def test_a_client_that_waits_ends_at_once_when_told(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.create(1, len(CLIENTS), 1)
    url, took_s = scene.serve(), list[float]()
    for number in (signal.SIGTERM, signal.SIGINT):
        scene.client("a", url, "--engine", "onnx")
        wait_for(lambda: "waiting" in scene.log("a"), scene.fleet.check)
        time.sleep(0.3)  # its poll is on the way
        took_s.append(end(scene, "a", number))
        said = scene.log("a")
        (scene.fleet.logs / "a.log").unlink()
    assert said.strip().splitlines()[-1] == "smidgen client: stopped"
    with capsys.disabled():
        print(f"\nended while waiting: {', '.join(f'{s:.2f} s' for s in took_s)}")


def train_at_length(scene: Scene, engine: str) -> str:
    scene.create(1, len(CLIENTS), EPOCHS, "--deadline", "3600", scene.fixed_deadlines())
    url = scene.serve()
    for name in CLIENTS:
        scene.client(name, url, "--engine", engine, *LONG)
    return url


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, tiny_base: Base
) -> Callable[[str], bytes]:
    @cache
    def adapter(engine: str) -> bytes:
        folder = tmp_path_factory.mktemp("undisturbed")
        with fleet(folder / "logs", cores_each=1) as processes:
            scene = Scene(folder, tiny_base, processes)
            train_at_length(scene, engine)
            scene.finish()
            return scene.adapter()

    return adapter


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_told_to_end_and_killed_at_random_steps_it_ends_in_the_same_bytes(
    scene: Scene,
    undisturbed: Callable[[str], bytes],
    engine: str,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = undisturbed(engine)
    drawn, took_s, what = random.Random(seed), list[float](), list[str]()
    url = train_at_length(scene, engine)

    for before in range(ENDINGS):  # lives of `a` that began to train

        def trains(before: int = before) -> bool:
            """Whether this life has opened its engine for training, which torch takes long for."""
            log = scene.log("a")
            return min(log.count("round 1 of 1: train"), log.count("plan: ")) > before

        wait_for(trains, scene.fleet.check)
        time.sleep(drawn.uniform(0.05, 1.0))
        if "training: 6 texts, loss" in scene.log("a"):
            break
        way = drawn.choice(["term", "term", "term then kill", "kill"])
        what.append(way)
        if way == "term":
            took_s.append(end(scene, "a"))
        else:
            process = scene.fleet.processes.pop("a")
            if way == "term then kill":
                process.terminate()
                time.sleep(drawn.uniform(0, 0.05))  # into the writing of its steps
            process.kill()
            process.wait()
        scene.client("a", url, "--engine", engine, *LONG)
    scene.finish()
    goings_on = scene.log("a").count(GOING_ON)
    with capsys.disabled():
        times = ", ".join(f"{s:.2f}" for s in took_s)
        print(
            f"\n{engine}, SMIDGEN_FAULT_SEED={seed}: {', '.join(what)}; went on {goings_on} x; "
            f"SIGTERM took {times} s"
        )
    assert scene.adapter() == expected, f"SMIDGEN_FAULT_SEED={seed}"
    assert "does not fit" not in scene.log("a") and "Traceback" not in scene.log("a")
    assert goings_on >= (1 if "term" in what else 0)
    assert not list((scene.folder / "state" / "a" / "steps").glob("*.st"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", first_fast(["onnx", "torch"]))
def test_a_client_that_trains_ends_in_time_and_goes_on(
    scene: Scene, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = train_at_length(scene, engine)
    wait_for(lambda: "round 1 of 1: train" in scene.log("a"), scene.fleet.check)
    time.sleep(0.5)
    took_s = end(scene, "a")
    (kept,) = (scene.folder / "state" / "a" / "steps").glob("*.st")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "told to end" in scene.log("a") and "a: stopped" in scene.log("a")
    scene.client("a", url, "--engine", engine, *LONG)
    wait_for(lambda: GOING_ON in scene.log("a"), scene.fleet.check)
    took_s = max(took_s, end(scene, "a"))
    with capsys.disabled():
        print(f"\n{engine}: ended while training: {took_s:.2f} s")


# Hours


def window(minute: int, other: int) -> tuple[str, str]:
    """An option for the hours between two minutes of a day."""
    opens, closes = (f"{m % 1440 // 60:02}:{m % 60:02}" for m in (minute, other))
    return "--window", f"{opens}-{closes}"


def minute_now() -> int:
    return minute_of(time.localtime())


def told_to(manager: socket.socket) -> list[str]:
    """What the service manager has heard."""
    heard = []
    with suppress(BlockingIOError):
        while True:
            heard += manager.recv(4096, socket.MSG_DONTWAIT).decode().splitlines()
    return heard


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_a_client_whose_hours_end_in_its_training_pauses_and_ends_in_the_same_bytes(
    scene: Scene,
    undisturbed: Callable[[str], bytes],
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = undisturbed(engine)
    url = train_at_length(scene, engine)
    scene.kill("a")
    (scene.fleet.logs / "a.log").unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(scene.folder / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(scene.folder / "notify"))
        # Its training takes 17 s where nothing else runs; torch needs a while to begin.
        time.sleep(({"onnx": 49, "torch": 40}[engine] - time.localtime().tm_sec) % 60)
        now = minute_now()  # its hours end with this minute, and go on a minute later
        hours = *window(now - 9, now + 1), *window(now + 2, now + 99)
        scene.client("a", url, "--engine", engine, *LONG, *hours)
        heard = list[str]()

        def is_told(words: str) -> bool:
            heard.extend(told_to(manager))
            return words in scene.log("a")

        wait_for(lambda: is_told("paused: outside its hours"), scene.fleet.check)
        assert "round 1 of 1: train" in scene.log("a"), "it paused before it had begun"
        assert list((scene.folder / "state" / "a" / "steps").glob("*.st"))
        time.sleep(1)
        heard += told_to(manager)
        time.sleep(12)
        paused = told_to(manager)
        wait_for(lambda: is_told(GOING_ON), scene.fleet.check)
        scene.finish()
    assert scene.adapter() == expected
    assert "READY=1" in heard and any("STATUS=paused: outside" in one for one in heard)
    assert "WATCHDOG=1" in heard and set(paused) == {"WATCHDOG=1"}
    with capsys.disabled():
        print(f"\n{engine}: paused by its hours in its training, same bytes")


@pytest.mark.slow
def test_outside_its_hours_a_client_asks_for_nothing_and_ends_at_once_when_told(
    scene: Scene,
) -> None:
    scene.create(1, 1, 1)
    hours = window(minute_now() + 360, minute_now() + 480)
    scene.client("a", scene.serve(), *hours, "--engine", "onnx")
    wait_for(lambda: "paused: outside its hours until" in scene.log("a"), scene.fleet.check)
    time.sleep(1)
    assert "joined" not in scene.log("a") and "train" not in scene.log("a")
    assert end(scene, "a") < 2

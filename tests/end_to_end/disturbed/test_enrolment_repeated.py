"""Enrolment, disturbed at each of its moments: one device, one use of its token, the same bytes.

Each device draws its own key here. What it leads to is compared with a run to which nothing
happens, of devices with the same keys. `SMIDGEN_FAULT_SEED` replays what is drawn by chance.
"""

import asyncio
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from smidgen.edge_client.client.state import ClientState, Identity
from smidgen.edge_client.wire.fleet import device_id_of
from tests import command_line
from tests.end_to_end.conftest import Scene, wait_for
from tests.end_to_end.disturbed.faults import Faults, FaultyRelay
from tests.end_to_end.disturbed.test_cloned_state import devices_of
from tests.end_to_end.disturbed.test_fleet_faults import fill, port_of, small_disk, told

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(900)]

ROUNDS, EPOCHS = 2, 3
WITHIN_S = 300.0
KILLED = ("k0", "k1", "k2", "k3")
# Of a client's life: it starts; its request is out and was not heard; the coordinator works on it,
# or has answered and nobody hears; it has heard, and writes; it is one of the fleet.
MOMENTS = ("starting", "unheard", "on its way", "unanswered", "told", "enrolled")
LONGEST_PAUSE_S = 0.03  # between such a moment and the kill, where the process goes on meanwhile
CUTS = 5
ROOMS = (0, 4 << 10, 16 << 10, 60 << 10)  # bytes left on a device's disk: less than it asks for


class AtEnrolment(FaultyRelay):
    """A relay that lets all through, and strikes at one moment of an enrolment.

    Args:
        port: Where the coordinator listens.

    Attributes:
        cuts: Shares of their bytes after which the next answers to enrolments are cut.
        answered: Answers of the coordinator to enrolments, by status.
    """

    def __init__(self, port: int) -> None:
        super().__init__([port], Faults(), 0)
        self.cuts: list[float] = []
        self.answered: Counter[int] = Counter()
        self._moment, self._pause_s = "", 0.0
        self._strike: Callable[[], object] = lambda: None
        self._struck = threading.Event()

    def __enter__(self) -> "AtEnrolment":
        super().__enter__()
        return self

    def strike_at(self, moment: str, pause_s: float, strike: Callable[[], object]) -> None:
        """Do something at a moment of the next enrolment, once."""
        self._struck.clear()
        self._pause_s, self._strike, self._moment = pause_s, strike, moment

    def has_struck(self) -> bool:
        return self._struck.is_set()

    def _reach(self, moment: str) -> bool:
        if self._moment != moment:
            return False
        self._moment = ""
        self._strike()
        self._struck.set()
        return True

    async def _answer(self, request: bytes) -> tuple[bytes, int | None]:
        if not request.startswith(b"POST /v1/enrol "):
            return await super()._answer(request)
        if self._reach("unheard"):
            raise ConnectionResetError
        asking = self._in_background(self._ask(request))
        if self._moment == "on its way":
            await asyncio.sleep(self._pause_s)
            self._reach("on its way")
        answer = await asking
        self.answered[int(answer.split()[1])] += 1
        self._reach("unanswered")
        if self._moment == "told":
            self._loop.call_later(self._pause_s, self._reach, "told")
        return answer, int(self.cuts.pop() * len(answer)) if self.cuts else None


def begin(scene: Scene, devices: int) -> str:
    """Create a run of so many devices and serve it; its URL."""
    scene.create(ROUNDS, devices, EPOCHS, scene.fixed_deadlines())
    return scene.serve()


def once(scene: Scene) -> Scene:
    """The scene for one device, with a token that lets in one."""
    store = ("--store", str(scene.folder / "store"))
    line = ("coordinator", "tokens", "new", *store, "--uses", "1", "--json")
    return replace(scene, token=json.loads(command_line.smidgen(*line).stdout)["token"])


def start(scene: Scene, name: str, url: str, patience: str = "600") -> None:
    """Start a client, or start it again; nobody has drawn a key for it."""
    line = ("--until", "finished", "--engine", "onnx", "--patience", patience)
    scene.start_client(name, url, *line)


def key_in(scene: Scene, name: str) -> str:
    """The key in a device's state folder; empty where it has drawn none yet."""
    if not (scene.folder / "state" / name / "device.json").exists():
        return ""
    known = ClientState(scene.folder / "state" / name).identity()
    return known.key if known else ""


def ended(scene: Scene, name: str) -> tuple[int, str]:
    """How a client ended, and what it said in that life."""
    process = scene.fleet.processes.pop(name)
    code = process.wait(WITHIN_S)
    log = scene.fleet.logs / f"{name}.log"
    said = log.read_text()
    log.rename(log.with_suffix(f".{time.monotonic_ns()}"))
    return code, said


def check_one_each(scene: Scene, keys: dict[str, str]) -> None:
    """Each device is there once, by the name it asked for; each token was used once."""
    found = {one["name"]: one["device_id"] for one in devices_of(scene)}
    assert found == {name: device_id_of(key) for name, key in keys.items()}
    line = ("coordinator", "tokens", "list", "--store", str(scene.folder / "store"), "--json")
    told_of = json.loads(command_line.smidgen(*line).stdout)["tokens"]
    own = [one for one in told_of if one["uses"] == 1]
    assert [one["used"] for one in own] == [1] * len(keys)
    assert sum(one["used"] for one in told_of) == len(keys)
    for name in keys:
        logs = "".join(path.read_text() for path in scene.fleet.logs.glob(f"{name}.*"))
        assert "Traceback" not in logs
    assert "Traceback" not in scene.log("coordinator")


def undisturbed(scene: Scene, keys: dict[str, str]) -> bytes:
    """The final weights of devices with these keys, to which nothing happens."""
    url = begin(scene, len(keys))
    for name, key in keys.items():
        ClientState(scene.folder / "state" / name).keep_identity(Identity("", key))
        start(scene, name, url)
    scene.finish(WITHIN_S)
    return scene.adapter()


def keys_of(scene: Scene, names: Iterable[str]) -> dict[str, str]:
    keys = {name: key_in(scene, name) for name in names}
    assert all(keys.values()) and len({*keys.values()}) == len(keys)
    return keys


def took(began_s: float) -> str:
    return f"{time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}"


def fails_in_one_line(scene: Scene, name: str, code: int, what: str) -> None:
    """A client ends by itself, with this exit code and a line that says this."""
    found, said = ended(scene, name)
    assert found == code, said
    assert sum(what in line for line in said.splitlines()) == 1, said
    assert what in said.splitlines()[-1] and "Traceback" not in said, said


def enrolments(scene: Scene, name: str) -> int:
    """How often a client has said who it is."""
    return scene.log(name).count("enrolled as")


def kill_once(
    scene: Scene, name: str, relay: AtEnrolment, moment: str, chance: random.Random, most_s: float
) -> float:
    """Start a client and kill it at a moment; seconds between."""
    began_s, before = time.monotonic(), 0
    if moment == "enrolled":
        log = scene.fleet.logs / f"{name}.log"
        before = enrolments(scene, name) if log.exists() else 0
    start(scene, name, relay.url)
    if moment in ("starting", "enrolled"):
        if moment == "enrolled":
            wait_for(lambda: enrolments(scene, name) > before, scene.fleet.check, WITHIN_S)
        time.sleep(chance.uniform(0.0, most_s))
    else:
        pause_s = chance.uniform(0.0, LONGEST_PAUSE_S)
        relay.strike_at(moment, pause_s, scene.fleet.processes[name].kill)
        wait_for(relay.has_struck, within_s=WITHIN_S)
    scene.kill(name)
    return time.monotonic() - began_s


def test_kills_at_each_moment_of_an_enrolment_leave_one_device(
    scene: Scene, other_scene: Scene, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, began_s = random.Random(seed), time.monotonic()
    kills, keys = Counter[str](), dict[str, str]()
    url = begin(scene, len(KILLED))
    with AtEnrolment(port_of(url)) as relay, told(seed, capsys, "kills at enrolment") as lines:
        starting_s = 2.0  # until a client asks; known better as soon as one did
        for name in KILLED:
            own, drawn = once(scene), set[str]()
            for moment in chance.sample(MOMENTS, len(MOMENTS)):
                lasted_s = kill_once(own, name, relay, moment, chance, starting_s)
                starting_s = lasted_s if moment in MOMENTS[1:5] else starting_s
                kills[moment] += 1
                drawn |= {key_in(scene, name)} - {""}
                assert len(drawn) <= 1, f"another key after a kill: {moment}"
            start(own, name, relay.url)
            keys[name] = drawn.pop()
        lines.append(f"{sum(kills.values())} kills ({dict(kills)}), {took(began_s)}")
        scene.finish(WITHIN_S)
        lines.append(f"answers {dict(relay.answered)}, in all {took(began_s)}")
    assert keys == keys_of(scene, KILLED)
    check_one_each(scene, keys)
    assert scene.adapter() == undisturbed(other_scene, keys)


def test_answers_that_are_lost_after_the_commit_leave_one_device(
    scene: Scene, other_scene: Scene, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, began_s = random.Random(seed), time.monotonic()
    url = begin(scene, 2)
    with AtEnrolment(port_of(url)) as relay, told(seed, capsys, "lost answers") as lines:
        relay.cuts = [chance.random() for _ in range(CUTS)]
        start(once(scene), "patient", relay.url)
        wait_for(lambda: enrolments(scene, "patient") == 1, scene.fleet.check, WITHIN_S)
        assert not relay.cuts and relay.answered == {200: CUTS + 1}
        own = once(scene)
        for _ in range(CUTS):
            relay.cuts = [chance.random()]
            start(own, "restarted", relay.url, patience="0")
            fails_in_one_line(scene, "restarted", 1, relay.url)
        assert not relay.cuts and relay.answered == {200: 2 * CUTS + 1}
        start(own, "restarted", relay.url)
        scene.finish(WITHIN_S)
        lines.append(f"{2 * CUTS} answers cut, {took(began_s)}")
    keys = keys_of(scene, ("patient", "restarted"))
    check_one_each(scene, keys)
    assert scene.adapter() == undisturbed(other_scene, keys)


def test_a_full_disk_of_the_device_leaves_one_device(
    scene: Scene, other_scene: Scene, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, began_s = scene.folder / "state" / "a", time.monotonic()
    url = begin(scene, 1)
    own = once(scene)
    with (
        AtEnrolment(port_of(url)) as relay,
        small_disk(folder, "1m"),
        told(seed, capsys, "full disk of a device that enrols") as lines,
    ):
        for room in random.Random(seed).sample(ROOMS, len(ROOMS)):
            filler = fill(folder)
            os.truncate(filler, filler.stat().st_size - room)
            start(own, "a", relay.url)
            fails_in_one_line(scene, "a", 2, "No space left on device")
            filler.unlink()
        assert not relay.answered and not devices_of(scene) and not key_in(scene, "a")
        relay.strike_at("unanswered", 0.0, lambda: fill(folder))
        for _ in range(3):  # it is in the fleet, and cannot write that it is
            start(own, "a", relay.url)
            fails_in_one_line(scene, "a", 2, "No space left on device")
        assert relay.answered == {200: 3}
        keys = keys_of(scene, ("a",))
        check_one_each(scene, keys)
        filler.unlink()
        start(own, "a", relay.url)
        scene.finish(WITHIN_S)
        assert keys == keys_of(scene, ("a",))
        check_one_each(scene, keys)
        lines.append(f"{len(ROOMS)} starts before its key, 3 after, {took(began_s)}")
    assert scene.adapter() == undisturbed(other_scene, keys)


def test_a_full_disk_of_the_coordinator_is_waited_out_by_one_device(
    scene: Scene, other_scene: Scene, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, began_s = scene.folder / "store", time.monotonic()
    with small_disk(folder, "8m"), told(seed, capsys, "full disk at enrolment") as lines:
        url = begin(scene, 1)
        own = once(scene)
        filler = fill(folder)
        with AtEnrolment(port_of(url)) as relay:
            start(own, "a", relay.url)
            wait_for(lambda: relay.answered[507] == 1, scene.fleet.check, WITHIN_S)
            scene.kill("a")
            start(own, "a", relay.url)
            wait_for(lambda: relay.answered[507] == 3, scene.fleet.check, WITHIN_S)
            assert not enrolments(scene, "a") and relay.answered == {507: 3}
            filler.unlink()
            scene.finish(WITHIN_S)
            lines.append(f"answers {dict(relay.answered)}, {took(began_s)}")
        keys = keys_of(scene, ("a",))
        check_one_each(scene, keys)
        assert scene.adapter() == undisturbed(other_scene, keys)

"""All that may happen to a run at once, to real processes: the final weights stay the same bytes.

Kills at random moments, networks that cut, double and reorder, disks that are full. A seed says
what happens in which order; a failure names it, and `SMIDGEN_FAULT_SEED` replays it.
"""

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from smidgen.coordinator.rounds.events import Answered, StepClosed, StepOpened
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.wire.tensors import sha256
from smidgen.simulation.demo.setting import fleet
from tests.end_to_end.conftest import ANY_DISK, Scene, wait_for
from tests.end_to_end.disturbed.faults import FOREIGN, Faults, FaultyRelay

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(1200)]

CLIENTS = ("a", "b", "c")
ROUNDS, EPOCHS = 16, 20
KILLS = int(os.environ.get("SMIDGEN_KILLS", "50"))  # in all, over as many runs as it takes
LATE_ENOUGH = f"round {ROUNDS - 2} of {ROUNDS}"  # whoever is killed later may miss the end
LONGEST_PAUSE_S = 0.6  # between two kills: fifty in 15 s, before a quick machine is through
WITHIN_S = 600.0  # until a run is through that is disturbed no more
ROUGH = Faults(cut=0.01, twice=0.05, late=0.05, overtaken=0.03, held=0.05)
BETWEEN = Faults(cut=0.05, foreign=0.12, twice=0.02, late=0.02, overtaken=0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_base: Base) -> bytes:
    """The final weights of a run to which nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with fleet(folder / "logs", cores_each=1) as processes:
        scene = Scene(folder, tiny_base, processes)
        url = begin(scene)
        for name in CLIENTS:
            start(scene, name, url)
        scene.finish(WITHIN_S)
        return scene.adapter()


def begin(scene: Scene, *arguments: str) -> str:
    """Create the run and serve it; its URL."""
    scene.create(ROUNDS, len(CLIENTS), EPOCHS, *arguments, scene.fixed_deadlines())
    return scene.serve()


def start(scene: Scene, name: str, url: str) -> None:
    """Start a client, or start it again."""
    scene.client(name, url, "--engine", "onnx")


def restart_coordinator(scene: Scene, port: int) -> None:
    """Start the coordinator on the port that it had; nobody waits until it listens."""
    store = ("--store", str(scene.folder / "store"))
    line = ["coordinator", "serve", *store, "--port", str(port), "--exit-when-finished", *ANY_DISK]
    scene.fleet.start("coordinator", line)


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def check_journal(scene: Scene, acknowledged: set[str]) -> None:
    """Nothing acknowledged is lost, nothing is counted twice."""
    opened: StepOpened | None = None
    answered: Counter[str] = Counter()
    counted: Counter[tuple[int, str]] = Counter()  # updates by round and device
    for event in scene.journal():
        if isinstance(event, StepOpened):
            opened = event
            members = dict(opened.members)
            answers: list[Answered] = []
        elif isinstance(event, Answered):
            assert event.work_id in members
            answered[event.work_id] += 1
            answers.append(event)
        elif isinstance(event, StepClosed):
            assert opened is not None
            trained = [one for one in answers if one.update_sha256]
            counted.update((opened.round_index, members[one.work_id]) for one in trained)
    assert max(answered.values()) == 1
    assert acknowledged <= answered.keys()
    assert set(counted.values()) == {1} and len(counted) == ROUNDS * len(CLIENTS)


def kill_one(scene: Scene, url: str, port: int, chance: random.Random) -> str:
    """Kill a process and start it again; which."""
    victim = chance.choice(["coordinator", *CLIENTS])
    scene.kill(victim)
    if victim == "coordinator":
        restart_coordinator(scene, port)
    else:
        start(scene, victim, url)
    return victim


def kill_at_random(scene: Scene, url: str, port: int, chance: random.Random) -> Counter[str]:
    """Kill processes at random moments, and start each again at once; how often which.

    The first comes when the first round has begun.
    """
    kills: Counter[str] = Counter()
    for name in CLIENTS:
        start(scene, name, url)
    wait_for(lambda: "round 1 of" in scene.log("coordinator"), scene.fleet.check, WITHIN_S)
    while sum(kills.values()) < KILLS:
        time.sleep(chance.uniform(0.0, LONGEST_PAUSE_S))
        scene.fleet.check()
        ended = scene.fleet.processes["coordinator"].poll()
        assert ended is None, f"the run was over after {kills}: it needs more rounds"
        kills[kill_one(scene, url, port, chance)] += 1
    return kills


@contextmanager
def told(seed: int, capsys: pytest.CaptureFixture[str], what: str) -> Iterator[list[str]]:
    """Say at the end which seed it was, and what happened."""
    lines: list[str] = []
    try:
        yield lines
    finally:
        with capsys.disabled():
            print(f"\n{what}, SMIDGEN_FAULT_SEED={seed}: {'; '.join(lines)}")


def test_fifty_kills_at_random_moments_change_no_byte(
    scene: Scene, undisturbed: bytes, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = begin(scene)
    with FaultyRelay([port_of(url)], Faults(), seed) as relay, told(seed, capsys, "kills") as lines:
        kills = kill_at_random(scene, relay.url, port_of(url), random.Random(seed))
        lines.append(", ".join(f"{name} {count}" for name, count in sorted(kills.items())))
        rounds = sum(isinstance(event, StepClosed) for event in scene.journal())
        lines.append(f"{rounds} steps closed meanwhile")
        scene.finish(WITHIN_S)
        assert scene.adapter() == undisturbed
        check_journal(scene, relay.seen.acknowledged)
        assert rounds > 0, "the kills came too fast for anything to happen between them"


def test_a_network_that_cuts_doubles_and_reorders_changes_no_byte(
    scene: Scene, undisturbed: bytes, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = begin(scene)
    with FaultyRelay([port_of(url)], ROUGH, seed) as relay, told(seed, capsys, "network") as lines:
        for name in CLIENTS:
            start(scene, name, relay.url)
        scene.finish(WITHIN_S)
        lines.append(f"{relay.seen.requests} requests, {dict(relay.seen.faults)}")
        assert scene.adapter() == undisturbed
        check_journal(scene, relay.seen.acknowledged)
        assert not relay.seen.server_errors
        assert "Traceback" not in "".join(scene.log(name) for name in ("coordinator", *CLIENTS))
        happened = {what for what in relay.seen.faults if what}
        assert len(happened) >= 4


def test_kills_on_such_a_network_change_no_byte(
    scene: Scene, undisturbed: bytes, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = begin(scene)
    with FaultyRelay([port_of(url)], ROUGH, seed) as relay, told(seed, capsys, "both") as lines:
        kills = kill_at_random(scene, relay.url, port_of(url), random.Random(seed + 1))
        scene.finish(WITHIN_S)
        lines.append(f"{sum(kills.values())} kills, {dict(relay.seen.faults)}")
        assert scene.adapter() == undisturbed
        check_journal(scene, relay.seen.acknowledged)


@pytest.mark.timeout(1200 + 5 * KILLS)
def test_kills_cuts_and_answers_of_something_in_between_change_no_byte(
    tmp_path: Path,
    tiny_base: Base,
    undisturbed: bytes,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chance, kills, began_s, runs = random.Random(seed), Counter[str](), time.monotonic(), 0
    with told(seed, capsys, "kills, cuts and strangers") as lines:
        while sum(kills.values()) < KILLS:
            runs += 1
            before_s = time.monotonic()
            with fleet(tmp_path / f"{runs}" / "logs", cores_each=1) as processes:
                scene = Scene(tmp_path / f"{runs}", tiny_base, processes)
                url = begin(scene, "--deadline", "3600")
                with FaultyRelay([port_of(url)], BETWEEN, seed + runs) as relay:
                    here = kill_until_late(scene, relay.url, chance, KILLS - sum(kills.values()))
                    scene.finish(WITHIN_S)
                    seen = relay.seen
                    kills += here
                    lines.append(
                        f"run {runs}: {sum(here.values())} kills ({dict(here)}), "
                        f"{seen.requests} requests, {dict(seen.faults)}, {dict(seen.foreign)}, "
                        f"{time.monotonic() - before_s:.0f} s"
                    )
                    assert scene.adapter() == undisturbed
                    check_journal(scene, seen.acknowledged)
                    logs = "".join(scene.log(name) for name in ("coordinator", *CLIENTS))
                    assert "Traceback" not in logs and " failed (" not in logs
                    assert len(seen.foreign) > len(FOREIGN) // 2
        lines.append(
            f"{sum(kills.values())} kills in {time.monotonic() - began_s:.0f} s, final weights "
            f"{sha256(undisturbed)[:12]} each time"
        )


def kill_until_late(scene: Scene, url: str, chance: random.Random, most: int) -> Counter[str]:
    """Kill processes at random moments until a run is nearly through; how often which."""
    kills: Counter[str] = Counter()
    port = port_of(scene.fleet.url_of("coordinator"))
    for name in CLIENTS:
        start(scene, name, url)
    wait_for(lambda: "round 1 of" in scene.log("coordinator"), scene.fleet.check, WITHIN_S)
    while sum(kills.values()) < most and LATE_ENOUGH not in scene.log("coordinator"):
        time.sleep(chance.uniform(0.0, LONGEST_PAUSE_S))
        scene.fleet.check()
        kills[kill_one(scene, url, port, chance)] += 1
    return kills


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of its own in a folder; skips where only root could make it."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root alone")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take what is left of a disk; delete the file to give it back."""
    file = folder / ".nfs-filler"  # as if a server had left it: a client begins beside it
    with suppress(OSError), file.open("wb", buffering=0) as opened:
        while True:
            opened.write(bytes(4096))
    return file


def full_now_and_then(scene: Scene, folder: Path, chance: random.Random) -> int:
    """Fill a disk at random moments of a run, some seconds each; how often."""
    count = 0
    while count < 4 and scene.fleet.processes["coordinator"].poll() is None:
        time.sleep(chance.uniform(0.0, 1.5))
        filler = fill(folder)
        count += 1
        time.sleep(chance.uniform(0.5, 4.0))
        filler.unlink()
    return count


@pytest.mark.parametrize("side", ["coordinator", "device"])
def test_a_disk_that_is_full_at_random_moments_changes_no_byte(
    scene: Scene, undisturbed: bytes, seed: int, side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = scene.folder / ("store" if side == "coordinator" else "state/a")
    with small_disk(folder, "8m"), told(seed, capsys, f"full disk of the {side}") as lines:
        url = begin(scene)
        with FaultyRelay([port_of(url)], Faults(), seed) as relay:
            for name in CLIENTS:
                start(scene, name, relay.url)
            wait_for(lambda: "round 1 of" in scene.log("coordinator"), scene.fleet.check, WITHIN_S)
            times = full_now_and_then(scene, folder, random.Random(seed))
            lines.append(f"{times} times, answers of 5xx: {dict(relay.seen.server_errors)}")
            scene.finish(WITHIN_S)
            assert scene.adapter() == undisturbed
            check_journal(scene, relay.seen.acknowledged)

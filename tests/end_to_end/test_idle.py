"""A device between two rounds: it waits for the others and holds next to nothing."""

import re
import time
from pathlib import Path

import httpx
import pytest

from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.simulation.demo.messages import HOMES, write_client_folders
from tests.coordinator.devices import joined
from tests.end_to_end.conftest import Scene, wait_for

MOST_BYTES = 90_000_000


def bytes_of(pid: int, name: str) -> int:
    """A count from the kernel's status of a process, such as VmRSS."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def idle_bytes(scene: Scene, works: int) -> int:
    """What client `a` holds half a second after so many pieces of work."""
    wait_for(lambda: scene.log("a").count(" up, ") == works, scene.fleet.check)
    time.sleep(0.5)
    return bytes_of(scene.fleet.processes["a"].pid, "VmRSS")


@pytest.mark.slow
def test_a_client_that_waits_for_another_holds_little(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    home = write_client_folders(scene.folder / "devices", {"home": HOMES["home-1"]})[0]
    scene.base = open_base(EMBEDDED)
    task = ("--task", str(home / "task.toml"), "--adapter", "lora:8")
    scene.create(1, 2, 1, *task, "--batch", "16", "--tokens", "64")
    url = scene.serve()
    with httpx.Client(base_url=url, timeout=60.0) as http:
        other = joined(http, scene.token, "b")
        scene.client("a", url, "--engine", "onnx", "--data", str(home))
        other.do(other.work(wait_s=30.0))
        trained = idle_bytes(scene, works=2)  # it has trained, and the other has not
        other.do(other.work())
        evaluated = idle_bytes(scene, works=3)
    peak = bytes_of(scene.fleet.processes["a"].pid, "VmHWM")
    with capsys.disabled():
        held = f"{trained / 1e6:.1f} MB after training, {evaluated / 1e6:.1f} MB after evaluation"
        print(f"\nidle with the onnx engine: {held}; peak {peak / 1e6:.0f} MB")
    assert max(trained, evaluated) <= MOST_BYTES

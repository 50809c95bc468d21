"""`coordinator init`, `serve`, and the line that `create` prints, pasted on real devices."""

import shlex
import time
from pathlib import Path

import pytest

from smidgen.coordinator.trust.checks import own_address
from smidgen.edge_client.wire.pins import pin_of
from tests.end_to_end.conftest import Scene, wait_for

WITHIN_S = 120.0


def paste(scene: Scene, line: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a device by the pasted line, with a folder of its own for texts and for state."""
    token, program, *words = shlex.split(line)
    assert program == "smidgen"
    monkeypatch.setenv(*token.split("=", 1))
    words = [str(scene.data(name)) if word == "FOLDER" else word for word in words]
    scene.fleet.start(name, [*words, *own(scene, name)])
    monkeypatch.delenv("SMIDGEN_TOKEN")


def own(scene: Scene, name: str) -> list[str]:
    small = ("--base", str(scene.base.folder), "--engine", "onnx", "--until", "finished")
    return [*small, "--name", name, "--state", str(scene.folder / "state" / name)]


@pytest.mark.slow
def test_three_devices_serve_a_run_by_the_pasted_line(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.monotonic()
    made = scene.coordinator_json("init", "--host", own_address() or "127.0.0.1")
    scene.create(1, 3, 1)
    url = scene.serve()
    line = scene.line.replace(made["url"], url)  # its port is one that is free
    for name in ("a", "b"):
        paste(scene, line, name, monkeypatch)
    wait_for(lambda: "here: a, b" in scene.log("coordinator"), scene.fleet.check)
    scene.kill("a")  # and once more, as systemd would: neither token nor CA is said again
    (scene.fleet.logs / "a.log").unlink()
    texts = str(scene.data("a"))
    scene.fleet.start(
        "a", ["client", "run", "--coordinator", url, "--data", texts, *own(scene, "a")]
    )
    paste(scene, line, "c", monkeypatch)
    scene.finish()
    assert time.monotonic() - start < WITHIN_S
    assert "round 1 of 1, training" in scene.log("coordinator")
    for name in ("a", "b", "c"):
        kept = scene.folder / "state" / name / "ca.pem"
        assert pin_of(kept.read_bytes()) == made["ca"]
        assert "finished adapter" in scene.log(name)


@pytest.mark.slow
def test_a_device_of_another_coordinator_is_refused_in_one_line(scene: Scene) -> None:
    scene.coordinator_json("init", "--host", "127.0.0.1")
    scene.create(1, 1, 1)
    url = scene.serve()
    state = Path(own(scene, "a")[-1])
    ca = "sha256:" + "0" * 64
    where = ("--coordinator", url, "--data", str(scene.data("a")), "--token", scene.token)
    done = scene.smidgen("client", "run", *where, "--ca", ca, *own(scene, "a"), check=False)
    told = [said for said in done.stderr.splitlines() if said.startswith("smidgen ")]
    assert done.returncode == 2 and len(told) == 1 and ca in told[0]
    assert not (state / "ca.pem").exists()
    assert scene.coordinator_json("status")["devices"] == []

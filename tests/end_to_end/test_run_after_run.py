"""A device outlives a run: runs in a row, two at once, and a life that ends while it enrols."""

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.edge_client.client.state import ClientState, Identity
from tests.end_to_end.conftest import Scene, wait_for

WEIGHTS = "adapter_model.safetensors"


def serve_for_ever(scene: Scene) -> str:
    """Start a coordinator that does not end with its runs; its URL."""
    store = ("--store", str(scene.folder / "store"), "--port", "0")
    scene.fleet.start("coordinator", ["coordinator", "serve", *store])
    return scene.fleet.url_of("coordinator")


def exported(scene: Scene, run_id: str) -> bytes:
    out = scene.folder / f"exported-{run_id}"
    scene.coordinator_json("export", "--run", run_id, "--out", str(out))
    return (out / WEIGHTS).read_bytes()


def weights(folder: Path) -> bytes:
    return (folder / WEIGHTS).read_bytes()


@pytest.mark.slow
def test_a_device_serves_three_runs_in_a_row_and_waits_for_the_next(scene: Scene) -> None:
    scene.create(1, 1, 1, "--name", "first")
    state, runs = scene.folder / "state" / "a", {"first": scene.run_id}
    scene.start_client("a", serve_for_ever(scene), "--engine", "onnx")
    for number, name in enumerate(("first", "second", "third")):
        if number:
            scene.create(1, 1, 1, "--name", name, "--seed", str(number))
            runs[name] = scene.run_id
        wait_for(lambda: f"run {name} is finished" in scene.log("a"), scene.fleet.check)  # noqa: B023
        wait_for((state / "finished" / name / WEIGHTS).is_file, scene.fleet.check)
        assert weights(state / "adapter") == exported(scene, runs[name])
    for name, run_id in runs.items():
        assert weights(state / "finished" / name) == exported(scene, run_id)
    assert scene.log("a").count("enrolled as a") == 1
    wait_for(lambda: "no run wants this device now" in scene.log("a").split("third")[-1])
    assert scene.fleet.processes["a"].poll() is None and not list((state / "runs").iterdir())


@pytest.mark.slow
def test_a_device_serves_two_runs_at_once_by_turns_as_if_each_were_alone(scene: Scene) -> None:
    """Both runs say the same of the same texts, so what one left behind would show."""
    runs = []
    for name in ("left", "right"):
        scene.create(2, 1, 2, "--name", name)
        runs.append(scene.run_id)
    scene.client("a", scene.serve(), "--engine", "onnx")
    scene.finish()
    said = scene.log("a")
    assert "a: 2 runs finished" in said and "failed" not in said
    turns = [
        line.split()[-6] for line in said.splitlines() if ": train" in line and " of 2" in line
    ]
    assert {turn.strip(":") for turn in turns[:2]} == {"left", "right"}, said
    assert exported(scene, runs[0]) == exported(scene, runs[1])
    state = scene.folder / "state" / "a" / "finished"
    assert weights(state / "left") == weights(state / "right") == exported(scene, runs[0])


class Mute:
    """Carries requests to a coordinator and keeps its answers to itself."""

    def __init__(self, port: int) -> None:
        self._port, self.heard = port, threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._carry, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _carry(self) -> None:
        client, _ = self._listening.accept()
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            threading.Thread(target=self._listen_to, args=(server,), daemon=True).start()
            while part := client.recv(1 << 16):  # until the client is gone
                server.sendall(part)

    def _listen_to(self, server: socket.socket) -> None:
        if server.recv(1 << 16).startswith(b"HTTP/1.1 200"):
            self.heard.set()


@pytest.mark.slow
@pytest.mark.fault
def test_a_device_killed_while_it_enrols_is_the_same_device_afterwards(
    scene: Scene, other_scene: Scene
) -> None:
    scene.create(1, 1, 1)
    url = scene.serve()
    mute = Mute(int(url.rsplit(":", 1)[1]))
    scene.start_client("a", mute.url, "--engine", "onnx")
    wait_for(mute.heard.is_set, scene.fleet.check)
    scene.kill("a")
    mute.close()
    kept = ClientState(scene.folder / "state" / "a").identity()
    assert kept is not None and not kept.name  # the answer never came
    ClientState(scene.folder / "state" / "a").keep_identity(replace(kept, url=url))
    scene.start_client("a", url, "--engine", "onnx", "--until", "finished")
    scene.finish()
    devices = scene.coordinator_json("status")["devices"]
    assert [device["name"] for device in devices] == ["a"]
    known = ClientState(scene.folder / "state" / "a").identity()
    assert known is not None and (known.key, known.name) == (kept.key, "a")
    other_scene.create(1, 1, 1)
    same = ClientState(other_scene.folder / "state" / "a")
    same.keep_identity(Identity("", kept.key))
    other_scene.client("a", other_scene.serve(), "--engine", "onnx")
    other_scene.finish()
    assert scene.adapter() == other_scene.adapter()

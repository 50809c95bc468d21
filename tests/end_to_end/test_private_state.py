"""What a device keeps is its owner's alone, whatever the shell that starts it would let in."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smidgen.edge_client.client.state import ClientState, Identity
from tests.coordinator.devices import key_of
from tests.end_to_end.conftest import Scene

CLIENT = """
import sys
import smidgen
url, token, data, base, state = sys.argv[1:]
smidgen.run_client(url, data, token, base=base, state=state, name="a", engine="onnx")
"""


@contextmanager
def umask(mode: int) -> Iterator[None]:
    before = os.umask(mode)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def read_only(file: Path) -> Iterator[None]:
    """A file that nobody can change, as somebody else's; skips where only root could make it."""
    bind = ["mount", "--bind", str(file), str(file)]
    if os.geteuid() != 0 or subprocess.run(bind, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root alone")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(file)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(file)], check=True)


def open_to_others(folder: Path) -> dict[str, str]:
    """Everything that is not 0600, or 0700 of a folder, and its mode."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode & 0o777
        if mode != (0o700 if path.is_dir() else 0o600):
            found[str(path.relative_to(folder))] = f"{mode:o}"
    return found


def begin(scene: Scene) -> str:
    """Create and serve a run of one round, in which a device labels; its URL."""
    scene.create(1, 1, 2, "--adapter", "lora:2/top1", "--labelling", "--confidence", "0.5")
    (scene.data("a") / "unlabelled.csv").write_text("text\nrain\nthe gate\ncake with grandma\n")
    return scene.serve()


def kept(folder: Path) -> set[str]:
    """What a state folder holds, without the names of runs and blobs."""
    return {path.relative_to(folder).parts[0].split("-")[0] for path in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0o000, 0o022])
@pytest.mark.parametrize("way", ["command", "import"])
def test_what_a_device_keeps_is_its_owners_alone(scene: Scene, mask: int, way: str) -> None:
    url, folder = begin(scene), scene.folder / "state" / "a"
    with umask(mask):
        if way == "command":
            scene.start_client("a", url, "--until", "finished", "--engine", "onnx")
        else:
            told = (url, scene.token, str(scene.data("a")), str(scene.base.folder), str(folder))
            subprocess.run([sys.executable, "-c", CLIENT, *told], check=True, timeout=120)
    scene.finish()
    expected = {"device.json", "adapters", "outbox", "runs", "labels", "lock", "corrections.json"}
    assert expected | {"adapter", "finished", "activations"} <= kept(folder)
    assert not open_to_others(folder)
    if way == "command":
        out = scene.folder / "labels.jsonl"
        state, texts = ("--state", str(folder)), ("--data", str(scene.data("a")))
        with umask(mask):
            scene.smidgen("client", "labels", *state, *texts, "--out", str(out))
        assert out.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_state_that_others_may_read_is_closed_at_a_start(scene: Scene) -> None:
    url, folder = begin(scene), scene.folder / "state" / "a"
    ClientState(folder).keep_identity(Identity("", key_of("a")))
    old = folder / "activations" / "of-an-older-smidgen"
    old.mkdir(parents=True)
    (old / "one").write_bytes(b"activations")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    scene.client("a", url, "--engine", "onnx")
    scene.finish()
    assert not open_to_others(folder)
    assert scene.log("a").count(f"{folder} and 7 more were open to others; closed now") == 1


def test_what_cannot_be_closed_to_others_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, file = ClientState(tmp_path / "state"), tmp_path / "state" / "link.json"
    file.write_bytes(b"")
    file.chmod(0o644)
    with read_only(file), state.locked():
        assert f"others may read {file}, which is not ours to close" in caplog.text

"""Devices that fetch a run's base: killed in the middle, and in rounds afterwards, as processes."""

import os
import sys
from pathlib import Path

import pytest

from smidgen.edge_client.bases.packing import pack_random
from tests.edge_client.client.packs.packs import contents
from tests.end_to_end.conftest import ANY_DISK, Scene, wait_for
from tests.end_to_end.disturbed.test_stopped_clients import end

TASK = """
name = "pair"
labels = ["good", "bad"]
patterns = ["{text} [MASK]"]
"""
WEIGHTS = "weights.safetensors"


@pytest.fixture
def packed(scene: Scene) -> tuple[str, Path]:
    """A random model of a real shape, large enough to be caught on its way; its id and folder."""
    made = pack_random("roberta-base", 8, scene.folder / "pack")
    return made.manifest.pack_id, made.folder


def begin(scene: Scene, pack: Path, *served: str) -> str:
    """A run of one round on a pack, and its coordinator; its address."""
    (scene.folder / "task.toml").write_text(TASK)
    store = ("--store", str(scene.folder / "store"))
    created = scene.coordinator_json(
        "create",
        *("--task", str(scene.folder / "task.toml"), "--base", str(pack), "--adapter", "lora:2"),
        *("--rounds", "1", "--min-clients", "1", "--epochs", "1", "--tokens", "16"),
    )
    scene.token, scene.run_id = created["token"], created["run_id"]
    line = ["coordinator", "serve", *store, "--port", "0", "--exit-when-finished", *ANY_DISK]
    scene.fleet.start("coordinator", [*line, *served])
    return scene.fleet.url_of("coordinator")


def data(scene: Scene) -> Path:
    folder = scene.folder / "texts"
    folder.mkdir()
    (folder / "labelled.csv").write_text("text,label\ngood w20,good\nbad w30,bad\n")
    return folder


def client(scene: Scene, url: str, texts: Path, *more: str, until: str = "finished") -> None:
    """Start a client that may fetch; it ends with its run."""
    where = ("--coordinator", url, "--token", scene.token, "--data", str(texts), "--name", "pi")
    folders = ("--state", str(scene.folder / "pi"), "--packs", str(scene.folder / "packs"))
    line = ["client", "run", *where, *folders, "--until", until, "--engine", "onnx", *more]
    scene.fleet.start("pi", line)


@pytest.mark.slow
def test_a_fetch_that_was_killed_goes_on_and_its_device_takes_part(
    scene: Scene, packed: tuple[str, Path]
) -> None:
    base_id, pack = packed
    url, texts = begin(scene, pack, "--serve-packs"), data(scene)
    client(scene, url, texts)
    part = scene.folder / "packs" / f".{base_id}.fetching" / WEIGHTS
    wait_for(lambda: part.exists() and part.stat().st_size > 0, scene.fleet.check)
    scene.kill("pi")
    here = part.stat().st_size if part.exists() else 0
    client(scene, url, texts)
    scene.finish()
    assert contents(scene.folder / "packs" / base_id) == contents(pack)
    assert "licence: not said" in scene.log("pi")
    assert "1 piece of work done" in scene.log("pi") or "pieces of work done" in scene.log("pi")
    if 0 < here < (pack / WEIGHTS).stat().st_size:
        assert f"{WEIGHTS}: " in scene.log("pi") and "are here already" in scene.log("pi")


@pytest.mark.slow
def test_a_pack_comes_from_a_folder_where_the_coordinator_serves_none(
    scene: Scene, packed: tuple[str, Path]
) -> None:
    base_id, pack = packed
    url = begin(scene, pack)
    client(scene, url, data(scene), "--pack-mirror", str(pack.parent))
    scene.finish()
    assert contents(scene.folder / "packs" / base_id) == contents(pack)


def installed(folder: Path, version: str) -> Path:
    """A folder to be found first, with which smidgen says that it is of another version."""
    folder.mkdir()
    said = f"import smidgen\nsmidgen.__version__ = {version!r}\n"
    (folder / "sitecustomize.py").write_text(said)
    return folder


@pytest.mark.slow
def test_a_client_that_is_too_old_fetches_nothing_and_does_both_after_an_upgrade(
    scene: Scene, packed: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base_id, pack = packed
    url, texts = begin(scene, pack, "--serve-packs", "--minimum-client", "9.0"), data(scene)
    packs, identity = scene.folder / "packs", scene.folder / "pi" / "device.json"
    client(scene, url, texts, until="stopped")
    wait_for(lambda: "gives work to" in scene.log("pi"), scene.fleet.check)
    end(scene, "pi")
    client(scene, url, texts)
    assert scene.fleet.processes.pop("pi").wait(60) == 2
    said = "its coordinator gives work to 9.0 or newer: install that on this device and start"
    assert scene.log("pi").count(said) == 2 and "fetching its base" not in scene.log("pi")
    assert scene.log("pi").strip().endswith(f"its state stays in {scene.folder / 'pi'}")
    assert {path.name for path in packs.iterdir()} == {"lock"}
    key = identity.read_bytes()
    newer = installed(scene.folder / "newer", "9.0.1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(newer), *filter(None, sys.path)]))
    client(scene, url, texts)
    scene.finish()
    assert contents(packs / base_id) == contents(pack) and identity.read_bytes() == key
    assert "1 piece of work done" in scene.log("pi") or "pieces of work done" in scene.log("pi")

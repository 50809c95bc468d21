"""What follows a run on its devices: an adapter of their own, through kills, and which answers."""

import json
from pathlib import Path

import pytest

from smidgen.edge_client.client.state import ClientState, Identity
from smidgen.edge_client.personal.choice import chosen_in
from tests.coordinator.devices import key_of
from tests.end_to_end.conftest import Scene, wait_for

WEIGHTS = "adapter_model.safetensors"


def finished(scene: Scene, adapter: str, *options: str) -> Path:
    """A run of one device that makes an adapter of its own; its state folder."""
    scene.create(1, 1, 2, "--adapter", adapter)
    scene.client("a", scene.serve(), "--engine", "onnx", "--personal", *options)
    scene.finish()
    return scene.folder / "state" / "a"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "method"),
    [
        ("lora:2", "interpolated"),
        pytest.param("lora:4@q,k,v,o,up,down+generator", "fedp2eft", marks=pytest.mark.slow),
        pytest.param("lora:4@q,k,v,o,up,down+rates", "fedl2p", marks=pytest.mark.slow),
    ],
)
def test_a_device_makes_its_own_by_what_the_run_gave_and_answers_with_the_better_one(
    scene: Scene, adapter: str, method: str
) -> None:
    state = finished(scene, adapter, "--rank-budget", "1")
    folder, choice = chosen_in(state)
    assert choice.method == method and choice.test_examples == 6
    assert (choice.shared == "") == ("+" in adapter)
    own = state / "personal" / "adapter"
    assert (own / "adapter_config.json").is_file() and not (state / "personal/due.json").exists()
    better = (choice.accuracy or 0.0) > (choice.accuracy_shared or 0.0)
    assert folder == (own if better else state / choice.shared if choice.shared else None)
    moved = state.rename(state.with_name("moved"))
    again, _ = chosen_in(moved)
    assert (again is None) == (folder is None) and (again is None or again.is_dir())
    log = scene.log("a")
    assert f"its own adapter: {own}" in log and "of 6 test texts" in log
    done = scene.smidgen(
        *("client", "predict", "--personal", str(moved), "--base", str(scene.base.folder)),
        *("--task", str(scene.folder / "task.toml"), "--json", "lights on in the hall"),
    )
    assert f"({method})" in done.stderr and json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.fault
def test_killed_while_it_makes_one_a_device_makes_the_same_in_its_next_life(
    scene: Scene, other_scene: Scene
) -> None:
    """Its run is over: only what it wrote down tells it."""
    whole = finished(other_scene, "lora:2")
    scene.create(1, 1, 2, "--adapter", "lora:2")
    store = ("--store", str(scene.folder / "store"), "--port", "0")
    scene.fleet.start("coordinator", ["coordinator", "serve", *store])
    url = scene.fleet.url_of("coordinator")
    options = ("--engine", "onnx", "--personal")
    ClientState(scene.folder / "state" / "a").keep_identity(Identity("", key_of("a")))
    scene.start_client("a", url, *options)
    wait_for(lambda: "an adapter of this device's own is made" in scene.log("a"))
    scene.kill("a")
    own = scene.folder / "state" / "a" / "personal"
    assert (own / "due.json").exists() and not (own / "choice.json").exists()
    scene.start_client("a", url, *options)
    wait_for((own / "choice.json").exists, scene.fleet.check)
    wait_for(lambda: not (own / "due.json").exists(), scene.fleet.check)
    assert scene.end("a") == 0
    ours, theirs = (one / "adapter" / WEIGHTS for one in (own, whole / "personal"))
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.slow
def test_without_enough_texts_there_is_none_and_the_shared_adapter_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three labelled texts none can be kept aside to choose by."""
    texts = scene.data("a")
    few = texts / "labelled.csv"
    few.write_text("".join(few.read_text().splitlines(keepends=True)[:4]))
    monkeypatch.setattr(scene, "data", lambda name: texts)
    state = finished(scene, "lora:2")
    assert "no adapter of this device's own is made: " in scene.log("a")
    assert "a: run finished" in scene.log("a") and (state / "adapter" / WEIGHTS).is_file()
    base = ("--base", str(scene.base.folder))
    done = scene.smidgen("client", "predict", "--personal", str(state), *base, "x")
    assert "none of this device's own could be made after run hub (training): the" in done.stderr
    assert chosen_in(state)[0] == state / "finished" / "hub"

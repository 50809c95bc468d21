"""Devices that label their own texts: real processes, one of them killed, one without room."""

import csv
import json
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from smidgen.edge_client.bases.base import EMBEDDED, Base, open_base
from smidgen.simulation.demo.messages import DATA, Message, load_messages
from smidgen.simulation.demo.setting import fleet
from tests.end_to_end.conftest import Scene, wait_for
from tests.end_to_end.disturbed.test_stopped_clients import end

WRITERS = {"b": "hub-05", "c": "hub-09"}  # as English as those of the labels
LARGEST_FILE = 200_000  # that a device may write whose disk is full
CHUNKS = 15  # of the unlabelled texts of a device
LABELLING = """
[labelling]
keep_last = 0.3
confidence = 0.6
compute_share = 0.1
"""


def write(path: Path, messages: Sequence[Message], *columns: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [[getattr(message, column) for column in columns] for message in messages]
        csv.writer(file).writerows([columns, *rows])


def write_devices(folder: Path) -> None:
    """Device `a` holds every label and every test text; the others have unlabelled texts alone."""
    messages = [message for message in load_messages() if message.language == "en"]
    for part, split in (("labelled", "train"), ("test", "test")):
        some = [message for message in messages if message.split == split][::6]
        write(folder / "a" / f"{part}.csv", some, "text", "label")
    for name, device in WRITERS.items():
        own = [message for message in messages if message.device == device]
        write(folder / name / "unlabelled.csv", own[: 8 * CHUNKS], "text")


def begin(scene: Scene) -> str:
    """Create and serve a run in which three devices label; its URL."""
    write_devices(scene.folder / "own")
    scene.base = open_base(EMBEDDED)
    file = scene.folder / "run.toml"
    file.write_text(LABELLING)
    adapter = ("--adapter", "lora:8/top2", "--lr", "0.005", "--batch", "8")
    scene.create(2, 3, 4, "--task", str(DATA / "task.toml"), *adapter, str(file))
    return scene.serve()


def join(scene: Scene, name: str, url: str) -> None:
    data = str(scene.folder / "own" / name)
    cache = ("--cache-size", "0") if name == "c" else ()
    scene.client(name, url, "--engine", "onnx", "--data", data, *cache)


def figures(scene: Scene) -> list[dict[str, Any]]:
    """What the coordinator knows of each piece of work, but what it took."""
    out = scene.folder / "rounds.jsonl"
    scene.coordinator_json("figures", "--out", str(out))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    names = ("round_index", "kind", "device", "num_examples", "labelled", "pseudo_labels")
    return [
        {name: row[name] for name in (*names, "loss", "confidences", "failure")} for row in rows
    ]


def readings(scene: Scene, name: str) -> Any:
    state = ("--state", str(scene.folder / "state" / name))
    texts = ("--data", str(scene.folder / "own" / name))
    done = scene.smidgen("client", "labels", *state, *texts, "--json")
    return json.loads(done.stdout)["labels"]


def federate(scene: Scene, cut: Callable[[], object] | None = None) -> None:
    """Run it to its end; device `b` may be cut off while it labels, and starts again."""
    url = begin(scene)
    for name in ("a", *WRITERS):
        join(scene, name, url)
    if cut is not None:
        book = scene.folder / "state" / "b" / f"labels-{scene.run_id}.jsonl"
        wait_for(lambda: book.is_file() and '"Read"' in book.read_text(), scene.fleet.check)
        cut()
        assert 0 < book.read_text().count('"Read"') < CHUNKS
        join(scene, "b", url)
    scene.finish()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_base: Base) -> Scene:
    """The run to whose end nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with fleet(folder / "logs", cores_each=1) as processes:
        scene = Scene(folder, tiny_base, processes)
        federate(scene)
    return scene


def assert_is_the_same(scene: Scene, undisturbed: Scene) -> None:
    assert scene.adapter() == undisturbed.adapter()
    assert figures(scene) == figures(undisturbed)
    assert readings(scene, "b") == readings(undisturbed, "b")


@pytest.mark.slow
@pytest.mark.fault
def test_a_device_killed_while_it_labels_changes_no_byte(scene: Scene, undisturbed: Scene) -> None:
    federate(scene, lambda: scene.kill("b"))
    assert_is_the_same(scene, undisturbed)
    trained = [row for row in figures(scene) if row["kind"] == "train" and row["device"] != "a"]
    assert {row["device"] for row in trained} == {"b", "c"}
    assert all(0 < row["num_examples"] <= row["pseudo_labels"] for row in trained)
    assert any((scene.folder / "state" / "b" / "activations").rglob("*"))
    assert not (scene.folder / "state" / "c" / "activations").exists()


@pytest.mark.slow
@pytest.mark.fault
def test_a_device_told_to_end_while_it_labels_ends_in_time_and_changes_no_byte(
    scene: Scene, undisturbed: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    took_s = list[float]()
    federate(scene, lambda: took_s.append(end(scene, "b")))  # `end` holds it to ten seconds
    assert "told to end; what was done is kept" in scene.log("b")
    assert_is_the_same(scene, undisturbed)
    with capsys.disabled():
        print(f"\nended while labelling: {took_s[0]:.2f} s")


@pytest.mark.slow
def test_a_full_disk_and_a_damaged_file_stop_no_client(scene: Scene) -> None:
    scene.create(1, 3, 1, "--labelling", "--confidence", "0.5")
    url = scene.serve()
    file = f"labels-{scene.run_id}.jsonl"
    for name in ("b", "c"):
        (scene.folder / "state" / name).mkdir(parents=True)
        (scene.folder / "state" / name / "lock").touch()  # of a client that has been here
        (scene.data(name) / "unlabelled.csv").write_text("text\nrain\nthe gate\n")
    long = json.dumps({"event": "Revoked", "text_id": "x" * LARGEST_FILE})
    (scene.folder / "state" / "b" / file).write_text(f"{long}\n")
    (scene.folder / "state" / "c" / file).write_bytes(b'{"event": "\xff"}\n')
    for name in ("a", "b", "c"):
        scene.client(name, url, "--engine", "onnx")
    largest = (LARGEST_FILE, LARGEST_FILE)
    resource.prlimit(scene.fleet.processes["b"].pid, resource.RLIMIT_FSIZE, largest)
    scene.finish()
    work = {(row["device"], row["kind"]): row for row in figures(scene)}
    assert work["b", "label"]["failure"] == "disk"
    assert scene.log("b").count("round 1: labelling failed (disk)") == 1
    assert "File too large" in scene.log("b")
    assert work["c", "label"]["num_examples"] == 2 and work["a", "label"]["num_examples"] == 0
    assert scene.log("c").count("put aside as .bad") == 1
    assert "Traceback" not in scene.log("b") + scene.log("c")

"""After runs of every kind of task, and of a soft prompt with a head, a device has its own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.peft_folder import OWN_WEIGHTS, read_origin
from smidgen.edge_client.personal.choice import Choice, chosen_in
from tests.edge_client.commands.kinds.texts import masked_data, tagging_data
from tests.end_to_end.conftest import Scene


def finished(scene: Scene, adapter: str, *more: str) -> Choice:
    """A run of one device that makes an adapter of its own; which of the two answers."""
    scene.create(1, 1, 2, "--adapter", adapter, *more)
    scene.client("a", scene.serve(), "--engine", "onnx", "--personal")
    scene.finish()
    return chosen_in(scene.folder / "state" / "a")[1]


def answer(scene: Scene, text: str) -> dict[str, list[object]]:
    """What the device says of a text."""
    state = ("--personal", str(scene.folder / "state" / "a"), "--base", str(scene.base.folder))
    done = scene.smidgen("client", "predict", *state, "--engine", "onnx", "--json", text)
    assert "adapter" in done.stderr
    found: dict[str, list[object]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "written", "measure"),
    [("lora:2+head", tagging_data, "f1"), ("lora:2", masked_data, "perplexity")],
)
def test_its_own_is_made_and_compared_by_the_tasks_own_measure(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    adapter: str,
    written: Callable[[Path], Path],
    measure: str,
) -> None:
    texts = written(scene.folder / "texts")
    if measure == "perplexity":
        (texts / "unlabelled.txt").write_text("rain at nine\nsnow\nstorm\na door\nmail\n")
    else:
        (texts / "labelled.conll").write_text((texts / "test.conll").read_text() * 2)
    monkeypatch.setattr(scene, "data", lambda name: texts)
    choice = finished(scene, adapter, "--task", str(texts / "task.toml"))
    assert (choice.method, choice.measure, choice.test_examples) == ("interpolated", measure, 3)
    assert choice.score is not None and choice.score_shared is not None
    (told,) = answer(scene, "no heart failure")["answers"]
    assert isinstance(told, dict) and told["text"] == "no heart failure"


@pytest.mark.slow
def test_a_soft_prompt_with_a_head_is_trained_brought_home_and_asked(scene: Scene) -> None:
    choice = finished(scene, "prompt:3+head")
    state = scene.folder / "state" / "a"
    own = state / "personal" / "adapter"
    assert choice.method == "interpolated" and (own / OWN_WEIGHTS).is_file()
    assert read_origin(state / "adapter").adapter == "prompt:3+head"
    assert len(answer(scene, "storm at nine")["labels"]) == 1
    out = scene.folder / "exported"
    scene.coordinator_json("export", "--out", str(out))
    assert (out / OWN_WEIGHTS).read_bytes() == (state / "adapter" / OWN_WEIGHTS).read_bytes()
    again = scene.coordinator_json(
        "create",
        "--name",
        "on",
        "--from",
        str(out),
        "--task",
        str(scene.folder / "task.toml"),
        "--base",
        str(scene.base.folder),
    )
    assert again["run_id"]

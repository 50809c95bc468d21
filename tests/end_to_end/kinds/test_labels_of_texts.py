"""Several labels of a text and relations of two spans, over HTTP from training to one's own."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from smidgen.edge_client.personal.choice import chosen_in
from tests.end_to_end.conftest import TEXTS, Scene

MULTILABEL = """
name = "hub"
kind = "multilabel"
labels = ["security", "weather", "family"]
patterns = ["{text} . this is about [MASK] ."]
thresholds = { family = 0.4 }
"""
RELATION = """
name = "causes"
kind = "relation"
labels = ["weather", "family"]
patterns = ["{text} . this is about [MASK] ."]
"""
LABELLING = "[labelling]\nconfidence = 0.5\nis_gated = false\nearly_exit = false\n"


def write_several(folder: Path, name: str) -> None:
    """Texts of one or two labels, and some without any that are known."""
    labels = list(TEXTS)
    rows = [(text, label) for label, texts in TEXTS.items() for text in texts]
    for one, other in zip(labels, [*labels[1:], labels[0]], strict=True):
        rows.append((f"{TEXTS[one][0]} and {TEXTS[other][1]}", f"{one}|{other}"))
    write(folder / "labelled.csv", ("text", "label"), rows)
    flags = [(text, *(int(one in label) for one in labels)) for text, label in rows]
    write(folder / "test.csv", ("text", *labels), flags)
    write(folder / "unlabelled.csv", ("text",), [(f"today {text}",) for text, _ in rows])


def write_spans(folder: Path, name: str) -> None:
    """Texts with two spans, by their characters."""
    rows = []
    for label in ("weather", "family"):
        for text in TEXTS[label]:
            first, *_, last = text.split()
            spans = {"head": [0, len(first)], "tail": [len(text) - len(last), len(text)]}
            rows += [{"text": text, "label": label, **spans}] if first != last else []
    body = "".join(json.dumps(row) + "\n" for row in rows)
    for part in ("labelled", "test"):
        (folder / f"{part}.jsonl").write_text(body)


def write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["lora:4+head", "lora:4"])
def test_several_labels_are_trained_labelled_evaluated_and_made_one_s_own(
    scene: Scene, adapter: str
) -> None:
    scene.task, scene.write = MULTILABEL, write_several
    run = scene.folder / "run.toml"
    run.write_text(LABELLING)
    scene.create(2, 2, 10, "--adapter", adapter, str(run))
    url = scene.serve()
    for name in ("a", "b"):
        scene.client(name, url, "--engine", "onnx", "--personal", "--rank-budget", "1")
    scene.finish()
    status = scene.coordinator_json("status")
    assert status["kind"] == "multilabel" and status["accuracy_by_round"] == {}
    f1 = list(status["f1_by_round"].values())
    assert len(f1) == 3 and f1[-1] > f1[0]
    assert set(status["entities_by_round"]["2"]["by_type"]) == {"security", "weather", "family"}
    assert sum(status["pseudo_labels_by_round"].values()) > 0
    log = scene.log("coordinator")
    assert ", F1 " in log and not any(word in log for word in ("grandma", "storm"))
    state = scene.folder / "state" / "a"
    _, choice = chosen_in(state)
    assert choice.measure == "f1_micro" and not choice.failure and choice.score is not None
    known = ("--base", str(scene.base.folder), "--json")
    done = scene.smidgen("client", "predict", "--personal", str(state), *known, TEXTS["weather"][0])
    (told,) = json.loads(done.stdout.splitlines()[-1])["labels"]
    assert set(told.split("|")) <= {"", "security", "weather", "family"}


@pytest.mark.slow
def test_relations_are_trained_and_evaluated(scene: Scene) -> None:
    scene.task, scene.write = RELATION, write_spans
    scene.create(2, 2, 4, "--adapter", "lora:2")
    url = scene.serve()
    for name in ("a", "b"):
        scene.client(name, url, "--engine", "onnx")
    scene.finish()
    status = scene.coordinator_json("status")
    assert status["kind"] == "relation" and len(status["accuracy_by_round"]) == 3
    adapter = scene.folder / "adapter"
    scene.adapter()
    known = ("--adapter", str(adapter), "--base", str(scene.base.folder))
    marked = "[E1] storm [/E1] at [E2] nine [/E2]"
    done = scene.smidgen("client", "predict", *known, marked, "--json")
    assert json.loads(done.stdout.splitlines()[-1])["labels"][0] in ("weather", "family")
    bare = scene.smidgen("client", "predict", *known, "storm at nine", check=False)
    assert bare.returncode == 2 and "text 1: `head`: no span" in bare.stderr

"""Several labels of a text: read, decided, scored and trained."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.counts import scores_of
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.kinds.multilabel import counts_of, losses_of
from smidgen.edge_client.tasks.task import Task, task_from_mapping, task_toml
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.written import write_csv
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, engine_of

pytestmark = pytest.mark.few

LABELS = ("security", "weather", "family")
TASK = Task(
    "hub",
    LABELS,
    ("{text} . [MASK]",),
    {label: label for label in LABELS},
    kind="multilabel",
    options={"thresholds": {"family": 0.25}},
)
TEXTS = [
    Example("the front door opened in the storm", label="security|weather"),
    Example("dinner with grandma", label="family"),
    Example("rain today", label="weather"),
    Example("take the pills", label=""),
]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.csv", "text,label\nx,family|security\ny,[]\nz,\n"),
        ("a.csv", 'text,label\nx,"[""security"", ""family""]"\ny,[]\n'),
        ("a.csv", "text,security,weather,family\nx,1,0,1\ny,0,0,0\n"),
        ("a.csv", "text,labels\nx,security | family\ny,[]\nz, \n"),
        (
            "a.jsonl",
            '{"text": "x", "labels": ["family", "security"]}\n{"text": "y", "labels": []}\n',
        ),
        ("a.jsonl", '{"text": "x", "label": "security|family"}\n{"text": "y", "label": []}\n'),
        (
            "a.jsonl",
            '{"text": "z", "label": null}\n{"text": "w", "label": ""}\n'
            '{"text": "x", "label": "security|family"}\n{"text": "y", "label": "[]"}\n',
        ),
    ],
)
def test_labels_of_a_text_are_read_as_files_have_them(tmp_path: Path, name: str, body: str) -> None:
    path = tmp_path / name
    path.write_text(body)
    found = read_file(path, TASK, labelled=True)
    assert [example.label for example in found] == ["security|family", ""]


@pytest.mark.parametrize(
    "body",
    [
        "text,label\nx,sport\n",
        "text,security,weather,family\nx,2,0,0\n",
        "text,security,weather,family\nx,1,,0\n",  # nobody has said whether
    ],
)
def test_a_label_that_is_not_the_task_s_is_left_out(tmp_path: Path, body: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(body)
    with pytest.raises(DataError, match=r"is not one of|is neither 0 nor 1"):
        read_file(path, TASK, labelled=True)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.csv", "text,label\nx,family|security\n"),
        ("a.jsonl", '{"text": "x", "label": ["family", "security"]}\n'),
        ("a.jsonl", '{"text": "y", "label": 1}\n{"text": "x", "label": ["family"]}\n'),
    ],
)
def test_where_one_label_is_expected_several_name_the_kind(
    tmp_path: Path, name: str, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / name
    path.write_text(
        f'{body}{{"text": "z", "label": "family"}}\n' if "json" in name else body + "z,family\n"
    )
    found = read_file(path, replace(TASK, kind="labels", options={}), labelled=True)
    assert [example.text for example in found] == ["z"]
    assert 'kind = "multilabel"' in caplog.text


def test_lists_of_names_are_nobody_s_export(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "label": ["family"]}\n{"text": "y"}\n')
    assert len(read_file(path, TASK, labelled=True)) == 1
    assert "doccano" not in caplog.text and "no `label`" in caplog.text


def test_a_task_file_names_thresholds_by_label() -> None:
    table = {"name": "t", "kind": "multilabel", "labels": ["a", "b"], "patterns": ["{text} [MASK]"]}
    task = task_from_mapping(table | {"thresholds": {"b": 0.3}}, "task.toml")
    assert task.options == {"thresholds": {"b": 0.3}} and "thresholds = { " in task_toml(task)
    for wrong in ({"c": 0.5}, {"a": 1}, {"a": "x"}, 0.5):
        with pytest.raises(TaskError, match="thresholds"):
            task_from_mapping(table | {"thresholds": wrong}, "task.toml")
    with pytest.raises(TaskError, match=r"no `\|`"):
        task_from_mapping(table | {"labels": ["a|b", "c"]}, "task.toml")


def test_each_label_is_told_from_its_threshold_on() -> None:
    row = np.log(np.array([0.9, 0.4, 0.3]))
    decision = kind_of(TASK).decide(TASK, row)
    assert decision.label == "security|family"
    assert decision.confidence == pytest.approx(0.3) and LABELS[decision.of] == "family"


def test_f1_is_scikit_learn_s() -> None:
    """Values of sklearn.metrics.f1_score(gold, told, average=...) of version 1.5."""
    gold = np.array([[1, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]])
    told = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1]])
    found = scores_of(counts_of([np.stack(pair) for pair in zip(gold, told, strict=True)]))
    assert found.strict == pytest.approx(2 * 3 / (4 + 5))
    assert found.by_type == pytest.approx((1.0, 0.5, 2 / 3))
    assert found.macro == pytest.approx((1.0 + 0.5 + 2 / 3) / 3)
    assert found.weighted == pytest.approx((1.0 + 2 * 0.5 + 2 / 3) / 4)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=5), st.integers(0, 31))
def test_losses_from_log_probabilities_are_binary_cross_entropies(
    logits: list[float], bits: int
) -> None:
    gold = np.array([[bits >> place & 1 for place in range(len(logits))]])
    row = -np.logaddexp(0, -np.array([logits]))
    expected = np.logaddexp(0, np.where(gold > 0, -1, 1) * np.array([logits])).mean()
    assert losses_of(row, gold)[0] == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("adapter", ["lora:4+head", "lora:4"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_learns_several_labels_of_a_text(
    tiny_base: Base, kind: str, adapter: str
) -> None:
    engine = engine_of(kind, tiny_base, TASK, adapter, lr=0.02)
    before = evaluate(engine, TEXTS)
    train(engine, TEXTS, Training(batch=4, epochs=80, lr=0.02, tokens=48), seed=1)
    after = evaluate(engine, TEXTS)
    assert after.loss < before.loss / 2 and after.accuracy == 1.0
    assert after.entities is not None and scores_of(after.entities).strict == 1.0
    assert kind_of(TASK).figure(after) == 1.0 and after.num_examples == len(TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_whose_labels_nobody_knows_changes_no_gradient(tiny_base: Base, kind: str) -> None:
    engine = engine_of(kind, tiny_base, TASK, "lora:4+head")
    unknown = Example("rain today")
    prompts = engine.encoder.prompts([unknown])
    loss, gradients = engine.gradients(engine.encoder.batch(prompts))
    assert loss == 0.0 and all(not tensor.any() for tensor in gradients.values())


def test_answers_are_written_as_files_have_them(tiny_base: Base, tmp_path: Path) -> None:
    from tests.command_line import smidgen  # a process of its own

    (tmp_path / "task.toml").write_text(task_toml(TASK))
    for part in ("labelled", "test"):
        write_csv(tmp_path / f"{part}.csv", TEXTS)
    known = ("--base", str(tiny_base.folder), "--engine", "onnx", "--json")
    out = str(tmp_path / "adapter")
    told = ("--data", str(tmp_path), "--adapter", "lora:4+head", "--epochs", "40", "--lr", "0.02")
    done = smidgen("client", "train", *told, "--out", out, *known)
    assert json.loads(done.stdout.splitlines()[-1])["measure"] == "f1_micro"
    done = smidgen("client", "evaluate", "--data", str(tmp_path), "--adapter", out, *known)
    scores = json.loads(done.stdout.splitlines()[-1])
    assert set(scores["f1"]) == {"micro", "macro", "weighted"} and len(scores["labels"]) == 3
    file = ("--file", str(tmp_path / "test.csv"), "--out", str(tmp_path / "out.csv"))
    smidgen("client", "predict", "--adapter", out, *file, *known)
    again = read_file(tmp_path / "out.csv", TASK, labelled=True)
    assert [one.label for one in again] == [one.label for one in TEXTS]
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert "sigmoid()" in card and "softmax" not in card.split("def predict")[1].split("def ")[0]

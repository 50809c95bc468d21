import json
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.commands.patterns import score_patterns, with_first
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.tasks.ready_tasks import READY
from smidgen.edge_client.tasks.task import Task, read_task, task_toml
from smidgen.edge_client.texts.written import write_csv
from tests.command_line import Done, smidgen
from tests.edge_client.engine.engines import KINDS, TEXTS, engine_of

PATTERNS = (
    "[MASK] : {text}",
    "{text} . this is about [MASK] .",
    "[MASK] : {text}",
    "{text} [MASK]",
)


@pytest.fixture
def asked(hub_task: Task) -> Task:
    return Task("hub", hub_task.labels, PATTERNS, hub_task.verbalizer)


@pytest.fixture
def data(tmp_path: Path, asked: Task) -> Path:
    write_csv(tmp_path / "labelled.csv", TEXTS)
    (tmp_path / "task.toml").write_text(task_toml(asked))
    return tmp_path


def patterns(base: Base, data: Path, *more: str) -> Done:
    given = ["patterns", "--data", str(data), "--base", str(base.folder), *more]
    return smidgen("client", *given)


def test_patterns_come_by_accuracy_and_then_as_they_were_given(
    tiny_base: Base, asked: Task
) -> None:
    def opened(task: Task) -> Engine:
        return engine_of(KINDS[0], tiny_base, task, "lora:4")

    scores = score_patterns(opened, asked, TEXTS)
    assert sorted(pattern for pattern, _ in scores) == sorted(PATTERNS)
    order = [(-score.accuracy, PATTERNS.index(pattern)) for pattern, score in scores]
    assert order == sorted(order)
    best, score = scores[0]
    assert score == evaluate(opened(with_first(asked, best)), TEXTS)


def test_the_best_pattern_is_written_first(tiny_base: Base, data: Path, asked: Task) -> None:
    done = patterns(tiny_base, data, "--write", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["examples"] == 6 and answer["written"] == str(data / "task.toml")
    best = answer["patterns"][0]["pattern"]
    assert read_task(data / "task.toml") == with_first(asked, best)
    assert read_task(data / "task.toml").patterns[0] == best


def test_few_texts_are_said_to_be_few_and_nothing_is_written(tiny_base: Base, data: Path) -> None:
    before = (data / "task.toml").read_bytes()
    done = patterns(tiny_base, data)
    assert "zero-shot on 6 labelled texts" in done.stdout
    assert "with fewer than 8 texts the choice means little" in done.stdout
    assert (data / "task.toml").read_bytes() == before


def test_a_ready_made_task_does_not_replace_ones_own(tiny_base: Base, data: Path) -> None:
    done = patterns(tiny_base, data, "--task", "agnews", "--write")
    assert done.exit_code == 2
    assert "task.toml by --task agnews; leave --task out" in done.stderr


def test_the_ready_made_tasks_are_listed() -> None:
    done = smidgen("client", "tasks", "--json")
    listed = json.loads(done.stdout)
    assert list(listed) == list(READY)
    assert listed["yelp-f"]["verbalizer"]["5"] == "great"
    assert "xglue-nc" in smidgen("client", "tasks").stdout


def test_a_task_that_is_asked_by_no_pattern_is_refused(tiny_base: Base, data: Path) -> None:
    (data / "task.toml").write_text(task_toml(Task("drugs", ("Drug",), kind="tagging")))
    done = patterns(tiny_base, data)
    assert done.exit_code == 2 and "kind tagging is asked by no pattern" in done.stderr

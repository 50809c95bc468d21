from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.tasks.ready_tasks import READY, find_task
from smidgen.edge_client.tasks.task import Task, task_toml
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import Tokens
from tests.conftest import shared

# Figures in docs/results were measured with these.
FIRST = {
    "agnews": "a [MASK] news : {text}",
    "mnli": "{text_a} ? [MASK] , {text_b}",
    "yahoo": "a [MASK] question : {text}",
    "yelp-f": "it was [MASK] . {text}",
    "masakhanews": "a [MASK] news : {text}",
    "xnli": "{text_a} ? [MASK] , {text_b}",
    "xglue-nc": "a [MASK] news : {text}",
}


def test_every_ready_made_task_keeps_its_first_pattern() -> None:
    assert {name: task.patterns[0] for name, task in READY.items()} == FIRST


@pytest.mark.parametrize("task", READY.values(), ids=lambda task: task.name)
def test_every_ready_made_word_is_one_token_of_the_embedded_base(task: Task) -> None:
    ids = Tokens(open_base(EMBEDDED).folder).label_word_ids(task)
    assert [len(word) for word in ids] == [1] * len(task.labels)


@pytest.mark.parametrize("task", READY.values(), ids=lambda task: task.name)
def test_every_ready_made_task_can_be_asked_of_a_causal_language_model(task: Task) -> None:
    base = shared("models", "smollm2-135m-instruct")
    tokens = Tokens(base, is_causal=True)
    assert task.asked(is_causal=True) == task.patterns[-1:] and task.asked() == task.patterns[:1]
    assert len(tokens.label_word_ids(task)) == len(task.labels)
    texts = Example("a game", "a match")
    assert tokens.text_of(tokens.cloze(task.patterns[-1], texts, 64).ids).endswith((":", "was"))


def test_a_file_wins_over_a_ready_made_task_of_its_name(tmp_path: Path) -> None:
    assert find_task("agnews", tmp_path) is READY["agnews"]
    own = Task("own", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})
    (tmp_path / "agnews").write_text(task_toml(own))
    assert find_task("agnews", tmp_path) == own


def test_a_folder_of_that_name_does_not_win(tmp_path: Path) -> None:
    (tmp_path / "agnews").mkdir()
    assert find_task("agnews", tmp_path) is READY["agnews"]


def test_a_task_that_is_neither_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"no task file at .*agnew; .*--task FILE or one of agnews,"
    ):
        find_task("agnew", tmp_path)

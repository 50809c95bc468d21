from pathlib import Path

import pytest

from edge_client.tasks import Task, TaskError, read_task, task_from_mapping

WORDS = {"good": "great", "bad": "terrible"}


@pytest.mark.parametrize(
    ("pattern", "lack"),
    [
        ("{text}", "exactly one"),
        ("[MASK] [MASK] {text}", "exactly one"),
        ("[MASK] : nothing", "{text} once"),
        ("[MASK] {text} {text}", "{text} once"),
        ("[MASK] {text} {text_b}", "{text} once"),
    ],
)
def test_a_pattern_without_one_mask_and_one_text_is_named(pattern: str, lack: str) -> None:
    with pytest.raises(TaskError, match=lack.replace("{", r"\{").replace("}", r"\}")):
        Task("t", ("good", "bad"), (pattern,), WORDS)


def test_a_pair_pattern_is_allowed() -> None:
    Task("t", ("good", "bad"), ("{text_a} ? [MASK] , {text_b}",), WORDS)


def test_a_label_without_a_word_is_named() -> None:
    with pytest.raises(TaskError, match="no word for 'bad'"):
        Task("t", ("good", "bad"), ("[MASK] {text}",), {"good": "great"})


def test_two_labels_with_one_word_are_refused() -> None:
    with pytest.raises(TaskError, match="share one label word"):
        Task("t", ("good", "bad"), ("[MASK] {text}",), {"good": "great", "bad": "great"})


def test_labels_are_their_own_words_by_default() -> None:
    task = task_from_mapping({"labels": ["a", "b"], "patterns": ["[MASK] {text}"]}, "here")
    assert task.words() == ("a", "b")


def test_an_unknown_key_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text('labels = ["a", "b"]\npatterns = ["[MASK] {text}"]\ncolour = 1\n')
    with pytest.raises(TaskError, match=r"task.toml: unknown key 'colour'"):
        read_task(path)


def test_a_missing_task_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="--task FILE"):
        read_task(tmp_path / "task.toml")

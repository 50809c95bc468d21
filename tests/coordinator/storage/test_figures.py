import json
from pathlib import Path
from typing import Any

import pytest

from smidgen.coordinator.rounds.scoring import Score
from smidgen.coordinator.storage.reports import (
    accuracies,
    means,
    perplexities,
    pseudo_labels,
    scores_by_round,
    write_jsonl,
)
from smidgen.edge_client.tasks.task import Task

LABELS = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})
TAGGING, MASKED = Task("t", ("Drug", "Dose"), kind="tagging"), Task("t", kind="mlm")


def row(**fields: Any) -> dict[str, Any]:
    plain = {"round_index": 1, "kind": "evaluate", "outcome": "done", "is_late": False}
    return plain | {"num_examples": 1, "accuracy": None, "loss": None} | fields


def test_accuracy_is_over_texts_not_over_devices() -> None:
    table = [row(num_examples=30, accuracy=1.0), row(num_examples=10, accuracy=0.0)]
    assert accuracies(table) == {1: 0.75}


def test_late_failed_and_empty_rows_do_not_count() -> None:
    table = [
        row(accuracy=0.5),
        row(accuracy=1.0, is_late=True),
        row(accuracy=1.0, outcome="failed"),
        row(accuracy=1.0, num_examples=0),
        row(accuracy=1.0, kind="train"),
        row(round_index=2),
    ]
    assert accuracies(table) == {1: 0.5}
    assert means(table, "train", "accuracy") == {1: 1.0}
    assert accuracies([]) == {}


def test_pseudo_labels_are_counted_by_the_round_that_follows() -> None:
    table = [
        row(kind="label", pseudo_labels=3),
        row(kind="label", pseudo_labels=2),
        row(kind="label", pseudo_labels=9, is_late=True),
        row(kind="label", pseudo_labels=9, outcome="failed"),
        row(kind="train", pseudo_labels=9),
        row(kind="label", round_index=3, pseudo_labels=4),
    ]
    assert pseudo_labels(table) == {1: 5, 3: 4}


def test_a_row_is_a_line(tmp_path: Path) -> None:
    table = [row(device_id="a"), row(device_id="b", loss=0.5)]
    write_jsonl(table, tmp_path / "new" / "rounds.jsonl")
    lines = (tmp_path / "new" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == table


def found(there: int, told: int, strict: int) -> dict[str, Any]:
    """What a device says whose texts hold nothing of the second type."""
    columns = {"there": (there, 0), "found": (told, 0), "strict": (strict, 0)}
    return columns | {"typed": strict, "partial_halves": 2 * strict}


def test_tagging_has_f1_by_round_and_by_type() -> None:
    table = [
        row(accuracy=0.9, num_examples=50, entities=found(3, 3, 3)),
        row(accuracy=0.9, num_examples=50, entities=found(5, 1, 1)),
        row(accuracy=0.9, num_examples=50, entities=found(9, 9, 9), is_late=True),
        row(round_index=2, kind="train", entities=None),
    ]
    gave = scores_by_round(TAGGING, table, {1: Score(8, 12, 0.01, 0.6)})
    assert gave["f1_by_round"] == {1: 8 / 12} and gave["accuracy_by_round"] == {}
    assert gave["f1_error_by_round"] == {1: 0.01} and gave["f1_median_by_round"] == {1: 0.6}
    assert gave["entities_by_round"][1]["by_type"] == {"Drug": 8 / 12, "Dose": None}
    assert gave["perplexity_by_round"] == gave["accuracy_error_by_round"] == {}


def test_masked_words_have_a_perplexity_and_an_accuracy_by_round() -> None:
    table = [row(accuracy=0.5, loss=1.0, num_examples=10), row(accuracy=0.5, loss=2.0)]
    gave = scores_by_round(MASKED, table, {1: Score(6, 11)})
    assert gave["accuracy_by_round"] == {1: 0.5} and gave["f1_by_round"] == {}
    # Of two devices one counts for no more than a few times the other.
    assert gave["perplexity_by_round"][1] == pytest.approx(2.718281828 ** (5 / 4))


def test_a_loss_that_no_perplexity_is_of_is_left_out() -> None:
    assert perplexities([row(loss=3e38)], MASKED) == {}
    assert perplexities([row(loss=1.0)], LABELS) == {}

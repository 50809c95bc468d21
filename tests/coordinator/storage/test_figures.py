import json
from pathlib import Path
from typing import Any

from coordinator.storage.figures import accuracies, means, pseudo_labels, write_jsonl


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

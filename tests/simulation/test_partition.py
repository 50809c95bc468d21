from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from edge_client.tasks import Task
from edge_client.texts import DataError, read_folder
from simulation.partition import write_split

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})


def write(path: Path, count: int) -> Path:
    rows = [f"text {number},{'ab'[number % 2]}" for number in range(count)]
    path.write_text("\n".join(["text,label", *rows]))
    return path


def test_labels_are_dealt_out_evenly_and_tests_are_disjoint(tmp_path: Path) -> None:
    folders = write_split(
        tmp_path / "out", write(tmp_path / "d.csv", 60), None, TASK, 4, labels=16, seed=1
    )
    data = [read_folder(folder, TASK.labels) for folder in folders]
    for device in data:
        assert Counter(example.label for example in device.labelled) == {"a": 2, "b": 2}
    texts = [e.text for device in data for e in (*device.labelled, *device.test)]
    assert len(texts) == len(set(texts)) == 60


def test_equal_seeds_write_equal_files(tmp_path: Path) -> None:
    data = write(tmp_path / "d.csv", 60)
    written = []
    for name, seed in (("x", 1), ("y", 1), ("z", 2)):
        folders = write_split(tmp_path / name, data, None, TASK, 2, 8, seed)
        written.append((folders[1] / "labelled.csv").read_bytes())
    assert written[0] == written[1] != written[2]


def test_too_few_texts_of_a_label_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds 2 texts of 'a', 4 needed"):
        write_split(tmp_path / "o", write(tmp_path / "d.csv", 4), None, TASK, 2, 8, seed=1)

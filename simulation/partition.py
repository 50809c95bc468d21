"""One labelled file dealt out to clients, for trying smidgen on one's own data."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge_client.tasks import Task
from edge_client.texts import DataError, Example, read_file


def write_split(
    out: Path, data: Path, test: Path | None, task: Task, clients: int, labels: int, seed: int
) -> list[Path]:
    """Deal labelled texts out to client folders, equally many of each label to each client.

    Args:
        out: Folder for `client-1`, `client-2` ...
        data: Labelled file to draw from.
        test: Labelled file to test on; None takes what is left of `data`.
        task: Its labels.
        clients: Number of clients.
        labels: Labelled texts in total, as equal over the labels as can be.
        seed: For the draws; equal arguments write equal files.

    Raises:
        DataError: Fewer texts of a label than are to be dealt out.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    examples = read_file(data, task.labels, labelled=True)
    order = generator.permutation(len(examples)).tolist()
    by_label = {label: [i for i in order if examples[i].label == label] for label in task.labels}
    dealt: list[int] = []
    for number, (label, found) in enumerate(by_label.items()):
        share = labels // len(task.labels) + (number < labels % len(task.labels))
        if len(found) < share:
            raise DataError(f"{data} holds {len(found)} texts of {label!r}, {share} needed")
        dealt += found[:share]
    left = sorted(set(order) - set(dealt))
    rest = [examples[index] for index in left] if test is None else []
    tests = rest if test is None else read_file(test, task.labels, labelled=True)
    tests = [tests[index] for index in generator.permutation(len(tests))]
    folders = []
    for client in range(clients):
        folder = out / f"client-{client + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        mine = [examples[index] for index in dealt[client::clients]]
        _write(folder / "labelled.csv", mine)
        _write(folder / "test.csv", tests[client::clients])
        folders.append(folder)
    return folders


def _write(path: Path, examples: Sequence[Example]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "text_b", "label", "language"])
        writer.writerows([e.text, e.text_b, e.label, e.language] for e in examples)

"""What `client predict` and `client evaluate` share: a count on stderr, and files of answers."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from edge_client.api.labeller import Answer
from edge_client.errors import demand
from edge_client.outputs import check_out_file, new_file
from edge_client.texts.tasks import Task

RESULTS = (".csv", ".jsonl")


@contextmanager
def progress(is_shown: bool) -> Iterator[Callable[[], None]]:
    """A count of texts on stderr, where people look at it; call what is given after each."""
    columns = SpinnerColumn(), TextColumn("{task.completed} texts"), TimeElapsedColumn()
    is_off = not is_shown or not sys.stderr.isatty()
    with Progress(
        *columns, console=Console(stderr=True), disable=is_off, transient=True
    ) as counted:
        task = counted.add_task("texts", total=None)
        yield lambda: counted.advance(task)


def check_results(out: Path | None, source: Path | None) -> None:
    """Refuse a file of results that cannot be written, or would replace what is read."""
    if out is None:
        return
    is_same = source is not None and source.exists() and out.exists() and out.samefile(source)
    demand(not is_same, f"--out {out} is the file that is read; give another name")
    check_out_file("--out", out, RESULTS, sign="confidence")


@contextmanager
def results(
    out: Path | None, task: Task, *, is_gold: bool, has_id: bool
) -> Iterator[Callable[[Answer], None]]:
    """Writes an answer per text as CSV or JSONL; without `out`, nothing.

    Args:
        out: The file, whose ending says the format.
        task: Its labels, each with a column of its probability.
        is_gold: Whether texts have a label of their own, which is written too.
        has_id: Whether ids are written to CSV.
    """
    if out is None:
        yield lambda answer: None
        return
    with new_file("--out", out) as file:
        if out.suffix == ".jsonl":
            yield lambda answer: _write_json(file, _row(answer, task, is_gold))
            return
        texts = ["text", "text_b"] if _is_pair(task) else ["text"]
        labels = [f"p({label})" for label in task.labels]
        gold = ["label", "read_as"] if is_gold else ["label"]
        writer = csv.writer(file)
        writer.writerow([*(["id"] if has_id else []), *texts, *gold, "confidence", *labels])

        def write(answer: Answer) -> None:
            row = _row(answer, task, is_gold)
            told = [row.get(name, "") for name in (*texts, *gold, "confidence")]
            own = [answer.found.id] if has_id else []
            writer.writerow([*own, *told, *row["probabilities"].values()])

        yield write


def _is_pair(task: Task) -> bool:
    return any("{text_b}" in pattern for pattern in task.patterns)


def _row(answer: Answer, task: Task, is_gold: bool) -> dict[str, Any]:
    read_as, example = task.labels[answer.index], answer.example
    told = {"label": example.label, "read_as": read_as} if is_gold else {"label": read_as}
    return {
        **({"id": answer.found.id} if answer.found.id else {}),
        "text": example.text,
        **({"text_b": example.text_b} if example.text_b else {}),
        **told,
        "confidence": answer.confidence,
        "probabilities": answer.probabilities(task.labels),
    }


def _write_json(file: TextIO, row: dict[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")

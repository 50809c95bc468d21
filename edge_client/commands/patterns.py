"""`smidgen client tasks` and `client patterns`: what can be asked, and how it is asked best."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import open_base
from edge_client.commands.pattern_choice import ENOUGH, PatternScore, score_patterns, with_first
from edge_client.engine.budgeted import BudgetedEngine, open_within
from edge_client.files import write_atomically
from edge_client.texts.examples import read_folder
from edge_client.texts.ready_tasks import READY
from edge_client.texts.tasks import Task, TaskError, task_toml
from edge_client.wire.messages import Training


def tell_tasks(is_json: bool) -> None:
    """Print the tasks that `--task` knows by name."""
    if is_json:
        print(json.dumps({name: asdict(task) for name, task in READY.items()}))
        return
    table = Table("--task", "labels (words)", "patterns", box=SIMPLE_HEAD)
    for name, task in READY.items():
        words = [_both(label, task.verbalizer[label]) for label in task.labels]
        table.add_row(name, ", ".join(words), "\n".join(task.patterns))
    Console(markup=False).print(table)


def _both(label: str, word: str) -> str:
    return label if label == word else f"{label} ({word})"


def tell_patterns(
    task: Task, data: Path, base: str, engine: str, file: Path | None, is_json: bool
) -> None:
    """Ask the labelled texts of a folder by every pattern of a task, and print who is right.

    Args:
        task: Whose patterns.
        data: See `read_folder`.
        base: Folder, hub name or `embedded`.
        engine: `auto`, `torch` or `onnx`.
        file: Gets the task with the best pattern first; None: nothing is written.
        is_json: One JSON object in place of a table.

    Raises:
        TaskError: There are no labelled texts, a pattern leaves no room for one, or `file` cannot
            be written.
        DataError: The texts cannot be read.
    """
    examples = read_folder(data, task.labels).labelled
    if not examples:
        raise TaskError(f"{data} holds no labelled texts to choose a pattern by")
    open_one = partial(_open, base, engine)
    scores = score_patterns(open_one, task, examples)
    if file is not None:
        best = with_first(task, scores[0].pattern)
        try:
            write_atomically(file, task_toml(best).encode())
        except OSError as error:
            raise TaskError(f"{file} cannot be written: {error.strerror}") from error
    if is_json:
        answer = {"examples": len(examples), "patterns": [asdict(score) for score in scores]}
        print(json.dumps(answer | {"written": str(file) if file else None}))
        return
    _print(scores, len(examples), file)


def _open(base: str, engine: str, task: Task) -> BudgetedEngine:
    opened, spec = open_base(base), parse_adapter("lora:1")  # whose first values change nothing
    return open_within(engine, opened, task, spec, Training(), None)


def _print(scores: Sequence[PatternScore], count: int, file: Path | None) -> None:
    table = Table(title=f"zero-shot on {count} labelled texts", box=SIMPLE_HEAD)
    table.add_column("pattern")
    table.add_column("accuracy", justify="right")
    table.add_column("loss", justify="right")
    for score in scores:
        table.add_row(score.pattern, f"{score.accuracy:.3f}", f"{score.loss:.3f}")
    console = Console(markup=False)
    console.print(table)
    if count < ENOUGH:
        console.print(f"with fewer than {ENOUGH} texts the choice means little")
    if file is not None:
        console.print(f"written {file}", soft_wrap=True)

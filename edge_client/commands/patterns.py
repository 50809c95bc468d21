"""`smidgen client tasks` and `client patterns`: what can be asked, and how it is asked best."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.api.labeller import task_file, task_for
from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.commands.console import (
    BaseOption,
    DataOption,
    DelimiterOption,
    DeviceOption,
    EncodingOption,
    EngineOption,
    JsonOption,
    LabelColumnOption,
    TaskOption,
    TextColumnOption,
)
from smidgen.edge_client.engine.budgeted import open_within, ready_engine
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.errors import demand
from smidgen.edge_client.files import write_atomically
from smidgen.edge_client.formats.source import Dialect
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.plan import AUTO
from smidgen.edge_client.tables import Column, Table, share, show
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.ready_tasks import READY
from smidgen.edge_client.tasks.scores import Evaluation
from smidgen.edge_client.tasks.task import Task, task_toml
from smidgen.edge_client.texts.examples import Example, read_folder
from smidgen.edge_client.texts.prompts.patterns import TaskError, ends_with_mask
from smidgen.edge_client.wire.training import Training

PATTERNS = "patterns, with | between"
ENOUGH = 8  # texts below which a difference is chance


def tasks(json_output: JsonOption = False) -> None:
    """List the ready-made tasks, which `--task` knows by name."""
    if json_output:
        print(json.dumps({name: asdict(task) for name, task in READY.items()}))
        return
    rows = []
    for name, task in READY.items():
        words = [_both(label, task.verbalizer[label]) for label in task.labels]
        rows.append([name, ", ".join(words), " | ".join(task.patterns)])
    columns = [Column("--task", "word"), *(Column(n, "text") for n in ("labels (words)", PATTERNS))]
    show(Table(columns, rows))


def _both(label: str, word: str) -> str:
    return label if label == word else f"{label} ({word})"


def patterns(
    data: DataOption,
    task: TaskOption = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    device: DeviceOption = CPU,
    write: Annotated[
        bool, typer.Option("--write", help="Put the best one first in the task.toml.")
    ] = False,
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    json_output: JsonOption = False,
) -> None:
    """Ask this device's labelled texts by each pattern of a task: which one is right most often?"""
    computer = ready_engine(engine, device)
    chosen, file = task_for(task, data), _own_task_file(task, data) if write else None
    demand(
        kind_of(chosen).has_patterns,
        f"task {chosen.name!r} of kind {chosen.kind} is asked by no pattern; one of labels is",
        TaskError,
    )
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    examples = read_folder(data, chosen, dialect).labelled
    if not examples:
        raise TaskError(f"{data} holds no labelled texts to choose a pattern by")
    is_causal = open_base(base).shape.is_decoder
    fit = tuple(filter(ends_with_mask, chosen.patterns if is_causal else ()))
    judged = replace(chosen, patterns=fit or chosen.patterns)
    scores = score_patterns(partial(_open, base, computer, device), judged, examples)
    if file is not None:
        _write(file, with_first(chosen, scores[0][0]))
    if json_output:
        found = [
            {"pattern": pattern, "accuracy": score.accuracy, "loss": score.loss}
            for pattern, score in scores
        ]
        answer = {"examples": len(examples), "patterns": found}
        print(json.dumps(answer | {"written": str(file) if file else None}))
        return
    _print(scores, len(examples), file)


def _own_task_file(path: Path | None, data: Path) -> Path:
    """The task file to write: the one that was read, or a new one for a ready-made task."""
    if path is not None and path.is_file():
        return path
    file = task_file(data)
    if path is not None and file.exists():
        raise TaskError(f"--write would replace {file} by --task {path}; leave --task out")
    return file


def _write(file: Path, task: Task) -> None:
    try:
        write_atomically(file, task_toml(task).encode())
    except OSError as error:
        raise TaskError(f"{file} cannot be written: {error.strerror}") from error


def score_patterns(
    open_engine: Callable[[Task], Engine], task: Task, examples: Sequence[Example]
) -> list[tuple[str, Evaluation]]:
    """Ask every pattern alone; the most accurate first, then the given order.

    Args:
        open_engine: Gives an engine for a task of one pattern; each is closed before the next.
        task: The task whose patterns are asked.
        examples: Labelled texts.

    Raises:
        TrainingError: No texts.
    """
    scores = []
    for pattern in task.patterns:
        engine = open_engine(replace(task, patterns=(pattern,), ensemble=False))
        try:
            score = evaluate(engine, examples)
        finally:
            engine.close()
        scores.append((pattern, score))
    return sorted(scores, key=lambda scored: -scored[1].accuracy)


def with_first(task: Task, pattern: str) -> Task:
    """The task with one of its patterns first, the others in their order behind it."""
    others = [other for other in task.patterns if other != pattern]
    return replace(task, patterns=(pattern, *others))


def _open(base: str, engine: str, device: str, task: Task) -> Engine:
    opened, spec = open_base(base), parse_adapter("lora:1")  # whose first values change nothing
    return open_within(engine, opened, task, spec, Training(), None, device=device)


def _print(scores: Sequence[tuple[str, Evaluation]], count: int, file: Path | None) -> None:
    columns = [Column("pattern", "text"), Column("accuracy"), Column("loss")]
    rows = [[one, share(score.accuracy), f"{score.loss:.3f}"] for one, score in scores]
    notes = [f"with fewer than {ENOUGH} texts the choice means little"] if count < ENOUGH else []
    show(Table(columns, rows, f"zero-shot on {count} labelled texts", notes))
    if file is not None:
        print(f"written {file}")

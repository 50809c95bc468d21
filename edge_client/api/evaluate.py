"""Scoring an adapter on labelled texts.

scoring = open_scoring("texts", "adapter")  # what `evaluate` does, for who wants each answer
scores = scoring.score(print)
"""

import math
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from edge_client.adapters.peft_folder import is_exported
from edge_client.api.given import Asked, Place, place, place_or_none, task_file
from edge_client.api.labeller import Answer, Labeller, Left, answers, open_labeller
from edge_client.api.prior import with_prior
from edge_client.bases.base import EMBEDDED
from edge_client.engine.scores import Confusion, LabelScores
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.texts.dialect import Dialect, find
from edge_client.texts.examples import Found, every_row, files_of
from edge_client.texts.rows import DataError


@dataclass(frozen=True)
class Scores:
    """How an adapter reads labelled texts.

    Attributes:
        accuracy: Share of texts read as what they are, 0 to 1.
        loss: Mean cross-entropy in nats.
        texts: Texts scored.
        left_out: Numbers of the rows that gave no text.
        labels: Count, precision, recall and F1 of each label, in label order.
        confusion: Counts of texts by label and by what they are read as.
        data: The file they are from.
        notes: How the file was read, and why rows were left out, in words without a text.
    """

    accuracy: float
    loss: float
    texts: int
    left_out: tuple[int, ...]
    labels: tuple[LabelScores, ...] = field(repr=False)
    confusion: Confusion = field(repr=False)
    data: Path = field(repr=False)
    notes: tuple[str, ...] = field(repr=False)


def evaluate(
    data: Place,
    adapter: Place | None = None,
    *,
    task: Asked | None = None,
    base: Place = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    text_column: str = "",
    label_column: str = "",
    delimiter: str = "",
    encoding: str = "",
    prior: Place | None = None,
) -> Scores:
    """Score an adapter (or the base alone) on labelled texts: test.* of a folder, or a file.

        smidgen.evaluate("texts/test.csv", "adapter").accuracy

    Args:
        data: Folder with a test.*, or a labelled file.
        adapter: Exported adapter folder, or one that PEFT itself saved; None: the base alone.
        task: Labels and patterns where the adapter is not an export: by default the task.toml
            beside the texts. An export has its own, whose labels one that is named must have.
        base: Folder, hub name or `embedded`.
        engine: `auto`, `torch` or `onnx`.
        device: `cpu`, or `cuda` for the torch engine on a CUDA device.
        memory_budget: Such as `512M`; `auto`: 60 % of what is available now.
        text_column: Column with the text, or two of a pair, `a,b`; `text` by default.
        label_column: Column with the label; `label` by default.
        delimiter: Between the columns of CSV and TSV.
        encoding: Of the file; UTF-8 by default.
        prior: A file of texts, about equally many of each label: what the adapter says of texts
            anyway, which is taken off each answer.

    Raises:
        WrongInput: Texts, adapter, task or base do not fit each other.
        Failed: The engine could not do it.
    """
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    scoring = open_scoring(data, adapter, task, base, engine, memory_budget, dialect, device, prior)
    with closing(scoring.labeller.engine):
        return scoring.score()


@dataclass(frozen=True)
class Scoring:
    """Labelled texts and an opened adapter that is to read them.

    Attributes:
        labeller: The adapter.
        file: The texts.
        dialect: How the file is written down.
        has_id: Whether its rows have ids.
    """

    labeller: Labeller
    file: Path
    dialect: Dialect
    has_id: bool

    def score(self, on_answer: Callable[[Answer], None] = lambda answer: None) -> Scores:
        """Label every text and compare.

        Args:
            on_answer: Told each answer.

        Raises:
            DataError: There is no text that can be used.
        """
        left, notes = Left(), list[str]()
        texts = every_row(self.file, self.labeller.task.labels, True, notes, self.dialect)
        table, loss = _compared(self.labeller, texts, left, on_answer)
        told = [f"read with {', '.join(notes)}"] * bool(notes) + [str(left)] * bool(left.lines)
        return Scores(
            accuracy=table.accuracy or 0.0,
            loss=loss,
            texts=table.total,
            left_out=tuple(left.lines),
            labels=tuple(table.scores()),
            confusion=table,
            data=self.file,
            notes=tuple(told),
        )


def open_scoring(
    data: Place,
    adapter: Place | None,
    task: Asked | None,
    base: Place,
    engine: str,
    memory_budget: str,
    dialect: Dialect,
    device: str = CPU,
    prior: Place | None = None,
) -> Scoring:
    """Look at the texts, then open the adapter; see `evaluate`."""
    folder = place(data)
    file = file_of(folder)
    first = next(every_row(file, (), True, [], dialect), None)
    has_id = first is not None and find(list(first.row), "id") is not None
    own, opened = task_file(folder), place_or_none(adapter)
    is_wanted = opened is None or not is_exported(opened)  # an export has a task of its own
    chosen = task or (own if is_wanted and own.is_file() else None)
    labeller = open_labeller(opened, chosen, str(base), engine, memory_budget, device)
    balanced = with_prior(labeller, place_or_none(prior), dialect)
    return Scoring(balanced, file, dialect, has_id)


def file_of(data: Path) -> Path:
    """The labelled texts to score on.

    Raises:
        DataError: A folder without test texts.
    """
    found = files_of(data)
    if data.is_file():
        return data
    if "test" not in found:
        others = " or ".join(str(path) for part, path in found.items() if part == "labelled")
        hint = f", or give --data {others}, whose texts may have been trained on" if others else ""
        raise DataError(f"{data} holds no test.*; put a test.csv with columns text,label{hint}")
    return found["test"]


def _compared(
    labeller: Labeller, texts: Iterable[Found], left: Left, on_answer: Callable[[Answer], None]
) -> tuple[Confusion, float]:
    task, gold, read, losses = labeller.task, list[int](), list[int](), list[float]()
    index = {label: number for number, label in enumerate(task.labels)}
    for answer in answers(labeller, texts, left):
        gold.append(index[answer.example.label or ""])
        read.append(answer.index)
        losses.append(-float(answer.log_probabilities[gold[-1]]))
        on_answer(answer)
    if not gold:
        raise DataError(f"there is no labelled text to score on; {left}")
    return Confusion.of(task.labels, gold, read), math.fsum(losses) / len(losses)

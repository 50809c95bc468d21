"""Scoring an adapter on texts whose answers are known: labels, tags of words, or masked words.

scoring = open_scoring("texts", "adapter")  # what `evaluate` does, for who wants each answer
scores = scoring.score(print)
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge_client.adapters.peft_folder import is_exported
from edge_client.api.given import Asked, Place, place, place_or_none, task_file
from edge_client.api.labeller import Labeller, kind_asked, open_labeller
from edge_client.api.predict import with_prior
from edge_client.bases.base import EMBEDDED
from edge_client.formats.dialect import Dialect, find
from edge_client.formats.opened import DataError
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.tasks.kind import TaskKind, kind_of
from edge_client.tasks.scores import Scores
from edge_client.texts.accounting import Accounting
from edge_client.texts.examples import every_row
from edge_client.texts.parts import PARTS, Labels, files_of


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
    """Score an adapter (or the base alone) on test.* of a folder, or on a file.

        smidgen.evaluate("texts/test.csv", "adapter").accuracy

    An adapter that tags words is scored by their entities; one for masked words by its perplexity
    at words that are masked, always the same of the same texts.

    Args:
        data: Folder with a test.*, or a file of texts with labels or tags; of masked words of any.
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

    def score(self, on_answer: Callable[[Any], None] = lambda answer: None) -> Scores:
        """Ask every text and compare.

        Args:
            on_answer: Told each answer, but of masked words, where all texts are asked at once.

        Raises:
            DataError: There is no text that can be used.
        """
        accounting = Accounting()
        texts = every_row(self.file, self.labeller.task, True, accounting.notes, self.dialect)
        kind = kind_of(self.labeller.task)
        scores = kind.scores(self.labeller, texts, accounting, on_answer)
        notes = [f"read with {', '.join(accounting.notes)}"] * bool(accounting.notes)
        notes += [str(accounting)] * bool(accounting.left_out)
        lines, rows = tuple(accounting.lines), accounting.as_json()
        return replace(scores, left_out=lines, data=self.file, notes=tuple(notes), rows=rows)


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
    chosen, opened = _task_beside(data, adapter, task), place_or_none(adapter)
    kind = kind_asked(opened, chosen)
    file = file_of(place(data), kind)
    every = every_row(file, Labels((), kind.files), True, [], dialect)
    first = next((row for row in every if row.example is not None), None)
    has_id = first is not None and find(list(first.row), "id") is not None
    labeller = open_labeller(opened, chosen, str(base), engine, memory_budget, device)
    balanced = with_prior(labeller, place_or_none(prior), dialect)
    return Scoring(balanced, file, dialect, has_id)


def scored_file(data: Place, adapter: Place | None, task: Asked | None) -> Path:
    """The texts that `open_scoring` finds.

    Raises:
        DataError: A folder without test texts.
    """
    chosen = _task_beside(data, adapter, task)
    return file_of(place(data), kind_asked(place_or_none(adapter), chosen))


def _task_beside(data: Place, adapter: Place | None, task: Asked | None) -> Asked | None:
    """The task that is named, or the one beside the texts where an adapter has none of its own."""
    own, opened = task_file(place(data)), place_or_none(adapter)
    is_wanted = opened is None or not is_exported(opened)
    return task or (own if is_wanted and own.is_file() else None)


def file_of(data: Path, kind: TaskKind) -> Path:
    """The texts to score on, whose answers are known; of `mlm` it may be a folder of files.

    Raises:
        DataError: A folder without test texts.
    """
    found = files_of(data, kind.files)
    if data.is_file():
        return data
    if "test" not in found:
        trained = PARTS[:2] if kind.files.wants == "text" else PARTS[:1]
        others = " or ".join(str(path) for part, path in found.items() if part in trained)
        hint = f", or give --data {others}, whose texts may have been trained on" if others else ""
        raise DataError(f"{data} holds no test.*; {kind.files.tests}{hint}")
    return found["test"]

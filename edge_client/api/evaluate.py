"""Scoring an adapter on texts whose answers are known: labels, tags of words, or masked words."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from smidgen.edge_client.adapters.peft_folder import is_exported
from smidgen.edge_client.api.given import Asked, Place, place, place_or_none, task_file
from smidgen.edge_client.api.labeller import kind_asked, open_labeller
from smidgen.edge_client.api.predict import with_prior
from smidgen.edge_client.bases.base import EMBEDDED, BaseName
from smidgen.edge_client.formats.dialect import Dialect, find
from smidgen.edge_client.formats.opened import DataError
from smidgen.edge_client.outputs import check_other
from smidgen.edge_client.planning.cuda.accelerator import CPU
from smidgen.edge_client.planning.sizes import AUTO
from smidgen.edge_client.tasks.kind import TaskKind, kind_of
from smidgen.edge_client.tasks.scores import Scores
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import every_row
from smidgen.edge_client.texts.parts import PARTS, Labels, files_of


def evaluate(
    data: Place,
    adapter: Place | None = None,
    *,
    task: Asked | None = None,
    base: BaseName = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    text_column: str = "",
    label_column: str = "",
    delimiter: str = "",
    encoding: str = "",
    prior: Place | None = None,
    out: Place | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Scores:
    """Score an adapter (or the base alone) on test.* of a folder, or on a file.

        smidgen.evaluate("texts/test.csv", "adapter").accuracy

    Texts are scored label by label, tagged words by their entities, and masked words by perplexity,
    language by language where the file names any; the same words of the same texts are masked.

    Args:
        data: Folder with a test.*, or a file of texts with labels or tags; for masked words, any
            texts.
        adapter: Exported adapter folder, or one saved by PEFT itself; default: the base alone.
        task: A task.toml or the name of a ready-made task; default: the task.toml next to the
            texts. An exported adapter has its own task; one given here must have the same labels.
        base: Base model: folder, GGUF file, hub name or `embedded`.
        engine: `torch`, `onnx`, or `auto`: torch if it is installed.
        device: `cpu`, or `cuda` with the torch engine.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available, with `cuda` on a
            discrete card of its memory.
        text_column: Column with the text, or two for pairs, `a,b`; default `text`. In CoNLL, the
            column of the words, by name or number.
        label_column: Column with the label; default `label`. In CoNLL, the column of the tags, by
            name or number.
        delimiter: Separator of CSV and TSV columns, such as `;` or `tab`.
        encoding: Encoding of the file, such as `latin-1`; default UTF-8.
        prior: File of texts, about equally many of each label: the adapter's average bias on them
            is subtracted from each answer.
        out: File for the answer to each text: .csv or .jsonl; for tags .jsonl or .conll.
        advance: Called after each text.

    Raises:
        WrongInput: Texts, adapter, task or base do not fit each other.
        Failed: The engine could not do it.
    """
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    own, opened = task_file(place(data)), place_or_none(adapter)
    has_none = opened is None or not is_exported(opened)
    chosen = task or (own if has_none and own.is_file() else None)
    file, target = file_of(place(data), kind_asked(opened, chosen)), place_or_none(out)
    check_other(target, file)
    every = every_row(file, Labels((), kind_asked(opened, chosen).files), True, [], dialect)
    first = next((row for row in every if row.example is not None), None)
    has_id = first is not None and find(list(first.row), "id") is not None
    labeller = open_labeller(opened, chosen, str(base), engine, memory_budget, device)
    with closing(labeller.engine):
        labeller = with_prior(labeller, place_or_none(prior), dialect)
        kind, accounting = kind_of(labeller.task), Accounting()
        kind.check_results(target)
        with kind.results(target, labeller.task, has_id=has_id) as write:

            def on_answer(answer: Any) -> None:
                write(answer)
                advance()

            texts = every_row(file, labeller.task, True, accounting.notes, dialect)
            scores = kind.scores(labeller, texts, accounting, on_answer)
    notes = [f"read with {', '.join(accounting.notes)}"] * bool(accounting.notes)
    notes += [str(accounting)] * bool(accounting.left_out)
    lines, rows = tuple(accounting.lines), accounting.as_json()
    return replace(scores, left_out=lines, data=file, notes=tuple(notes), rows=rows, kind=kind.name)


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

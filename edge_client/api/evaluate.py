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
        data: Folder with a test.*, or a file of texts with labels or tags; of masked words of any.
        adapter: Exported adapter folder, or one that PEFT itself saved; None: the base alone.
        task: A task.toml or the name of a ready-made task, where the adapter is not an export; by
            default the task.toml beside the texts. An export keeps to its own, whose labels one
            that is named must have.
        base: Folder, GGUF file, hub name or `embedded`.
        engine: `torch`, `onnx`, or `auto` for torch where it is installed.
        device: `cpu`, or `cuda` for the torch engine on a CUDA device.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available now. On a card
            with memory of its own, of that.
        text_column: Column with the text, or two of a pair, `a,b`; `text` by default. Of CoNLL
            the words', by name or number.
        label_column: Column with the label; `label` by default. Of CoNLL the tags', by name or
            number.
        delimiter: Between the columns of CSV and TSV, such as `;` or `tab`.
        encoding: Encoding of the file, such as `latin-1`; UTF-8 by default.
        prior: A file of texts, about equally many of each label: what the adapter says of texts
            anyway, which is taken off each answer.
        out: File for each text's answer: .csv or .jsonl; of tags .jsonl or .conll.
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

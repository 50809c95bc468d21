"""Answers to texts, and their score: labels, tags of words, guesses of masked words.

The prior of an adapter's answers is what it says of texts anyway, whichever they are. Devices with
few kinds of labels leave an adapter lopsided: it says one label of most texts. How much more a text
speaks for a label than texts do is often right still.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.adapters.peft_folder import is_exported
from smidgen.edge_client.api.labeller import (
    Asked,
    Labeller,
    Place,
    adapter_or_own,
    kind_asked,
    open_labeller,
    place,
    place_or_none,
    task_file,
)
from smidgen.edge_client.bases.base import EMBEDDED, BaseName
from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.source import NO_TEXT, DataError, Dialect, find
from smidgen.edge_client.outputs import check_other
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.plan import AUTO
from smidgen.edge_client.tasks.kind import TaskKind, kind_of
from smidgen.edge_client.tasks.kinds.asked_words import TOP, FilledText, check_top, guessings
from smidgen.edge_client.tasks.kinds.classification import Answer, answers
from smidgen.edge_client.tasks.kinds.tag_answers import TaggedText, taggings
from smidgen.edge_client.tasks.scores import Scores
from smidgen.edge_client.texts.accounting import Accounting, tell
from smidgen.edge_client.texts.examples import Example, Found, every_row
from smidgen.edge_client.texts.parts import PARTS, Labels, files_of, read_as

FEWEST = 8  # texts; fewer say more of themselves than of the adapter


def with_prior(labeller: Labeller, file: Path | None, dialect: Dialect) -> Labeller:
    """The labeller with the prior of a file's texts taken off its answers.

    It helps where the file has about equally many texts of each label, and takes away what is true
    where it has not. Labels in the file are not read.

    Args:
        labeller: Whose answers they are.
        file: Texts of the kind that will be labelled; None leaves the labeller as it is.
        dialect: How the file is written down.

    Raises:
        WrongInput: No such file, or fewer than 8 texts in it.
    """
    if file is None:
        return labeller
    kind = kind_of(labeller.task)
    demand(kind.is_one_label, f"--prior is for labels of texts; the task is of kind {kind.name}")
    demand(file.is_file(), f"--prior {file}: there is no such file")
    plain = replace(labeller, prior=())
    accounting, labels = Accounting(), Labels(labeller.task.labels, labeller.task.files)
    texts = every_row(file, labels, False, accounting.notes, dialect)
    total, count = np.zeros(len(labeller.task.labels)), 0
    for answer in answers(plain, texts, accounting):
        total, count = total + answer.log_probabilities, count + 1
    tell(f"--prior {file}", accounting)
    demand(
        count >= FEWEST,
        f"--prior {file}: {FEWEST} texts or more are expected, of all labels; it has {count}",
    )
    return replace(labeller, prior=tuple((total / count).tolist()))


Text = str | tuple[str, str]  # of a pair, both


@dataclass(frozen=True)
class Prediction:
    """How a text is read.

    Attributes:
        label: The most probable label.
        confidence: Its probability, 0 to 1.
        probabilities: Each label's; they sum to 1.
        text: The text; of a pair the first.
        text_b: The second text of a pair, or empty.
    """

    label: str
    confidence: float
    probabilities: dict[str, float] = field(repr=False)
    text: str
    text_b: str = field(default="", repr=False)


def predict(
    texts: Iterable[Text],
    adapter: Place | None = None,
    *,
    personal: Place | None = None,
    task: Asked | None = None,
    base: BaseName = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    prior: Place | None = None,
) -> list[Prediction]:
    """Label texts with an adapter, or with the base alone (zero-shot).

        smidgen.predict(["rain at nine"], "adapter")[0].label

    Args:
        texts: The texts; for a task of pairs, tuples of two.
        adapter: Exported adapter folder, or one saved by PEFT itself; default: the base alone.
        personal: State folder of a client instead: uses its personal or its shared adapter,
            whichever is right more often on its test texts.
        task: A task.toml or the name of a ready-made task. An exported adapter has its own task;
            one given here must have the same labels.
        base: Base model: folder, GGUF file, hub name or `embedded`.
        engine: `torch`, `onnx`, or `auto`: torch if it is installed.
        device: `cpu`, or `cuda` with the torch engine.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available, with `cuda` on a
            discrete card of its memory.
        prior: File of texts, about equally many of each label: the adapter's average bias on them
            is subtracted from each answer.

    Raises:
        WrongInput: An empty text or something else than a text, no such adapter, or one of
            another base or kind; no task is known, or it has other labels than the adapter.
        Failed: The engine could not do it.
    """
    found = found_texts(texts)
    folder = adapter_or_own(place_or_none(adapter), place_or_none(personal))
    labeller = open_labeller(folder, task, str(base), engine, memory_budget, device)
    with closing(labeller.engine):
        labeller.check_function("smidgen.predict")
        lacking = next((f.line for f in found if f.example and not f.example.text_b), 0)
        demand(
            not (labeller.needs_pairs and lacking),
            f"text {lacking}: the task asks of two texts; give a tuple of two",
        )
        found = [_read_as(labeller, one) for one in found]
        labeller = with_prior(labeller, place_or_none(prior), Dialect())
        return [_prediction(answer, labeller) for answer in answers(labeller, found, Accounting())]


def _read_as(labeller: Labeller, found: Found) -> Found:
    assert found.example is not None, "each text is one"
    text = read_as(labeller.task, found.example.text, f"text {found.line}")
    return replace(found, example=replace(found.example, text=text))


def found_texts(texts: Iterable[Text], *, has_pairs: bool = True) -> list[Found]:
    """Texts of a list, by their numbers from 1.

    Args:
        texts: The texts.
        has_pairs: Whether one may be a tuple of two.

    Raises:
        WrongInput: One is empty, holds what UTF-8 cannot, or is something else than a text; or
            they are one text.
    """
    demand(not isinstance(texts, str), "texts: a list of texts is expected, came one text")
    return [_found(number, text, has_pairs) for number, text in enumerate(texts, start=1)]


def _found(number: int, text: Text, has_pairs: bool) -> Found:
    pair = (text, "") if isinstance(text, str) else text
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and (has_pairs or pair is not text)
    expected = "a text or a tuple of two" if has_pairs else "a text"
    demand(
        is_pair and all(isinstance(one, str) for one in pair),
        f"text {number}: {expected} is expected, came {type(text).__name__}",
    )
    first, second = pair
    demand(
        not any(map(NO_TEXT.search, pair)),
        f"text {number} holds half of a surrogate pair, which is no text; decode it without them",
    )
    demand(first.strip() != "", f"text {number} is empty; there is nothing to label in it")
    return Found(number, {}, Example(first, text_b=second))


def _prediction(answer: Answer, labeller: Labeller) -> Prediction:
    decision = kind_of(labeller.task).decide(labeller.task, answer.log_probabilities)
    return Prediction(
        label=decision.label,
        confidence=round(decision.confidence, 4),
        probabilities=answer.probabilities(labeller.task.labels),
        text=answer.example.text,
        text_b=answer.example.text_b,
    )


def fill(
    texts: Iterable[str],
    adapter: Place | None = None,
    *,
    personal: Place | None = None,
    task: Asked | None = None,
    base: BaseName = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    top: int = TOP,
) -> list[FilledText]:
    """Guess what stands in the `[MASK]`s of texts; of texts without one, tell the perplexity.

        smidgen.fill(["rain at [MASK] ."], "adapter")[0].guesses

    Args:
        texts: The texts. Of a long one the first tokens are read.
        adapter: Exported adapter folder, or one saved by PEFT itself; default: the base alone.
        personal: State folder of a client instead: uses its personal or its shared adapter,
            whichever has the lower perplexity on its test texts.
        task: A task that asks for masked words; an exported adapter has its own.
        base: Base model: folder, GGUF file, hub name or `embedded`.
        engine: `torch`, `onnx`, or `auto`: torch if it is installed.
        device: `cpu`, or `cuda` with the torch engine.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available, with `cuda` on a
            discrete card of its memory.
        top: Guesses for each mask.

    Raises:
        WrongInput: An empty text, something else than a text, or one with a mask too far behind, no
            such adapter, one of another base, or one for something else.
        Failed: The engine could not do it.
    """
    check_top(top)
    found, accounting = found_texts(texts, has_pairs=False), Accounting()
    folder = adapter_or_own(place_or_none(adapter), place_or_none(personal))
    labeller = open_labeller(folder, task, str(base), engine, memory_budget, device)
    with closing(labeller.engine):
        labeller.check_function("smidgen.fill")
        told = [one.told for one in guessings(labeller, found, accounting, top)]
    demand(not accounting.left_out, f"texts: {accounting}")
    return told


def tag(
    texts: Iterable[str],
    adapter: Place | None = None,
    *,
    personal: Place | None = None,
    task: Asked | None = None,
    base: BaseName = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
) -> list[TaggedText]:
    """Tag the words of texts, and find the entities in them.

        smidgen.tag(["naloxone reverses it"], "adapter")[0].entities

    Args:
        texts: The texts, however long.
        adapter: Exported adapter folder, or one that PEFT itself saved.
        personal: A client's state folder instead: with the adapter of its own, or the shared one,
            whichever finds more on its test texts.
        task: The types of the entities; an exported adapter has its own.
        base: Base model: folder, GGUF file, hub name or `embedded`.
        engine: `torch`, `onnx`, or `auto`: torch if it is installed.
        device: `cpu`, or `cuda` with the torch engine.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available, with `cuda` on a
            discrete card of its memory.

    Raises:
        WrongInput: An empty text or something else than a text, no such adapter, one of another
            base, or one that tags nothing.
        Failed: The engine could not do it.
    """
    found = found_texts(texts, has_pairs=False)
    folder = adapter_or_own(place_or_none(adapter), place_or_none(personal))
    labeller = open_labeller(folder, task, str(base), engine, memory_budget, device)
    with closing(labeller.engine):
        labeller.check_function("smidgen.tag")
        return [one.text(labeller.task) for one in taggings(labeller, found, Accounting())]


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

"""The prior of an adapter's answers: what it says of texts anyway, whichever they are.

Devices with few kinds of labels leave an adapter lopsided: it says one label of most texts. How
much more a text speaks for a label than texts do is often right still.

Labelling texts: one `Prediction` per text, in their order.

`smidgen.fill`: masked words of texts guessed by a base, with or without an adapter.

`smidgen.tag`: the words of texts tagged, and the entities in them.
"""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from smidgen.edge_client.api.given import Asked, Place, place_or_none
from smidgen.edge_client.api.labeller import Labeller, adapter_or_own, open_labeller
from smidgen.edge_client.bases.base import EMBEDDED, BaseName
from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.dialect import Dialect
from smidgen.edge_client.formats.opened import NO_TEXT
from smidgen.edge_client.planning.cuda.accelerator import CPU
from smidgen.edge_client.planning.sizes import AUTO
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.kinds.guesses import TOP, FilledText, check_top, guessings
from smidgen.edge_client.tasks.kinds.label_answers import Answer, answers
from smidgen.edge_client.tasks.kinds.tag_answers import TaggedText, taggings
from smidgen.edge_client.texts.accounting import Accounting, tell
from smidgen.edge_client.texts.examples import Example, Found, every_row
from smidgen.edge_client.texts.parts import Labels, read_as

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

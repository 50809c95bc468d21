"""Masked words of texts guessed by a base, with or without an adapter, and how well it knows texts.

A text with `[MASK]` in it is asked for the words that may stand there. One without is asked for
tokens of its own that are masked: the exponential of their mean loss is its perplexity. Which ones
are masked hangs on the text alone.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from edge_client.api.given import Asked, Place, place_or_none
from edge_client.api.labeller import Labeller, adapter_or_own, open_labeller, pieces
from edge_client.api.predict import found_texts
from edge_client.bases.base import EMBEDDED
from edge_client.engine.scoring.measure import perplexity
from edge_client.errors import demand
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.texts.accounting import Accounting
from edge_client.texts.examples import Example, Found
from edge_client.texts.tasks import MASK

TOP, MOST = 5, 100  # guesses for each mask
TIMES = 8  # a text is masked, each time other tokens of it


@dataclass(frozen=True)
class Guess:
    """A word that may stand in a mask, or a piece of one, and its probability, 0 to 1."""

    word: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """What a text's masks may hold, or how well a text without masks is known.

    Attributes:
        text: The text.
        guesses: Of each `[MASK]` the likeliest words, the likeliest first.
        filled: The text with the likeliest word in each mask.
        perplexity: Of a text without masks; else None.
        tokens: Tokens that were asked for.
    """

    text: str
    guesses: tuple[tuple[Guess, ...], ...]
    filled: str
    perplexity: float | None
    tokens: int


@dataclass(frozen=True)
class Guessing:
    """How one text is read.

    Attributes:
        found: The text, where it stands and its id.
        example: The text.
        told: What is known of it.
    """

    found: Found
    example: Example
    told: FilledText


def fill(
    texts: Iterable[str],
    adapter: Place | None = None,
    *,
    personal: Place | None = None,
    task: Asked | None = None,
    base: Place = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    top: int = TOP,
) -> list[FilledText]:
    """Guess what stands in the `[MASK]`s of texts; of texts without one, tell the perplexity.

        smidgen.fill(["rain at [MASK] ."], "adapter")[0].guesses

    Args:
        texts: The texts. Of a long one the first tokens are read.
        adapter: Exported adapter folder, or one that PEFT itself saved; None: the base alone.
        personal: A client's state folder instead: with the adapter of its own, or the shared one,
            whichever has the lower perplexity on its test texts.
        task: A task of kind `mlm`; an exported adapter has its own.
        base: Folder, hub name or `embedded`.
        engine: `auto`, `torch` or `onnx`.
        device: `cpu`, or `cuda` for the torch engine on a CUDA device.
        memory_budget: Such as `512M`; `auto`: 60 % of what is available now.
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
        labeller.check_kind("mlm", "smidgen.fill")
        told = [one.told for one in guessings(labeller, found, accounting, top)]
    demand(not accounting.left_out, f"texts: {accounting}")
    return told


def check_top(top: int) -> None:
    """Refuse a number of guesses.

    Raises:
        WrongInput: See `MOST`.
    """
    demand(1 <= top <= MOST, f"--top {top}: 1 to {MOST} is expected")


def guessings(
    labeller: Labeller, texts: Iterable[Found], accounting: Accounting, top: int = TOP
) -> Iterator[Guessing]:
    """Read texts in their order; others (no text, a mask too far) are counted."""
    engine = labeller.engine
    for piece in pieces(labeller, texts, accounting):
        for found, example in piece:
            if MASK not in example.text:
                losses, _ = engine.judge([example] * TIMES)
                surprise = perplexity(float(losses.mean(dtype=np.float64)))
                told = FilledText(example.text, (), example.text, surprise, len(losses))
                yield Guessing(found, example, told)
                continue
            asked = engine.encoder.tokens.gaps(example.text, engine.encoder.limit)
            if len(asked.places) < example.text.count(MASK):
                far = f"a {MASK} behind the first {engine.encoder.limit} tokens, which are read"
                accounting.read -= 1
                accounting.lines.append(found.line)
                accounting.leave_out("columns", f"line {found.line}: {far}")
                continue
            guesses = tuple(_likeliest(labeller, row, top) for row in engine.guess(asked))
            filled = _filled(example.text, [one[0].word for one in guesses])
            told = FilledText(example.text, guesses, filled, None, len(guesses))
            yield Guessing(found, example, told)


def _likeliest(labeller: Labeller, row: np.ndarray, top: int) -> tuple[Guess, ...]:
    tokens = labeller.engine.encoder.tokens
    ordinary = np.array(tokens.ordinary_ids)
    best = ordinary[np.argsort(-row[ordinary], kind="stable")[:top]]
    return tuple(
        Guess(tokens.word_of(id_), round(math.exp(float(row[id_])), 4)) for id_ in best.tolist()
    )


def _filled(text: str, words: list[str]) -> str:
    for word in words:
        text = text.replace(MASK, word, 1)
    return text

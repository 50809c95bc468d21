"""Masked language modelling: masked words of texts, predicted by the base's own head.

Devlin et al. 2019, arXiv:1810.04805. It needs no labels, so all of a device's texts are trained on.
Masks are drawn anew for each epoch and position in a list of texts, independently of other texts
and of batches.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from smidgen.edge_client.tasks.kind import Inputs, Opened, Sentences
from smidgen.edge_client.tasks.kinds.asked_words import TOP, AskedWords, GuessTelling, check_top
from smidgen.edge_client.tasks.scores import Measure
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.examples import Example, joined
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.prompts.patterns import MASK
from smidgen.edge_client.texts.tokens import Prompt, Tokens

Pieces: TypeAlias = tuple[list[int], list[int]]  # a text's ids, and of each the number of its word
MASKED, CHANGED = 0.8, 0.1  # of the tokens that are asked for; the rest stays as it is


def masked(
    tokens: Tokens,
    masking: Masking,
    examples: Sequence[Example],
    limit: int,
    draw: int,
    first: int = 0,
) -> list[Prompt]:
    """Texts as a language model reads them, cut to `limit` tokens, some of them asked for.

    Law: of a text of n tokens max(1, share x n) are asked for, rounded; of whole words as many as
    fit into that, and one token at least. A text without tokens is one unknown one.

    Args:
        tokens: The base's tokenizer.
        masking: How many, and whether whole words.
        examples: The texts; of a pair both are read, one behind the other.
        limit: Tokens of an input, specials included.
        draw: Seed of what is chosen.
        first: Place of the first of them, where they are a part of a list.
    """
    pieces = (pieces_of(tokens, example, limit) for example in examples)
    return masked_in(tokens, masking, pieces, draw, first)


def pieces_of(tokens: Tokens, example: Example, limit: int) -> Pieces:
    """A text as it is before any of it is masked, without specials; see `masked`."""
    return tokens.pieces(joined(example), tokens.plain_room(limit))


def masked_in(
    tokens: Tokens, masking: Masking, pieces: Iterable[Pieces], draw: int, first: int = 0
) -> list[Prompt]:
    """As `masked`, of texts that are tokenized already; these stay as they are."""
    return [
        _masked(tokens, masking, one, np.random.default_rng([draw, row]))
        for row, one in enumerate(pieces, first)
    ]


def most_masked(masking: Masking, limit: int) -> int:
    """Tokens asked for in a text of so many; of `limit`, specials included, none has more."""
    return max(1, round(masking.share * limit))


def _masked(
    tokens: Tokens, masking: Masking, pieces: Pieces, generator: np.random.Generator
) -> Prompt:
    ids, words = list(pieces[0]), pieces[1]
    groups = _words(words) if masking.whole_words else [[place] for place in range(len(ids))]
    chosen = _chosen(groups, most_masked(masking, len(ids)), generator)
    answers = [ids[place] for place in chosen]
    for place in chosen:
        how = generator.random()
        if how < MASKED:
            ids[place] = tokens.mask_id
        elif how < MASKED + CHANGED:
            ids[place] = int(tokens.ordinary_ids[generator.integers(len(tokens.ordinary_ids))])
    return tokens.framed(ids, chosen, answers)


def _words(words: Sequence[int]) -> list[list[int]]:
    """Places of each word's tokens."""
    found: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        found.setdefault(word, []).append(place)
    return list(found.values())


def _chosen(groups: Sequence[list[int]], count: int, generator: np.random.Generator) -> list[int]:
    """Places of `count` tokens at most, in drawn order of their words; ascending, at least one."""
    found: list[int] = []
    for group in (groups[row] for row in generator.permutation(len(groups))):
        if len(found) + len(group) <= count:
            found += group
        if len(found) == count:
            break
    if not found:  # every word is longer than that: a part of one is asked for
        found = min(groups, key=len)[:count]
    return sorted(found)


class MaskedWords(AskedWords):
    """See `TaskKind`.

    A coordinator goes by accuracy: it sums up what devices say, and a share, unlike a loss, has an
    end. A device compares adapters by perplexity, which tells smaller differences apart.
    """

    name = "mlm"
    measure = Measure(
        key="accuracy",
        word="accuracy",
        said="{} of the devices' masked words were guessed right",
        asked="masked words",
        note="accuracy, perplexity: of masked words, over the devices' test texts that were asked",
        own="perplexity",
        name="perplexity",
        beside="accuracy at masked tokens",
        cells="masked tokens that were guessed, in %; not perplexity",
    )
    files = Files(
        kind="mlm",
        wants="text",
        lacks="put an unlabelled.txt with a text on each line there, or a folder unlabelled of "
        ".txt files with paragraphs",
        what="a folder with unlabelled.txt or unlabelled/*.txt",
        tests="put a test.txt with a text on each line",
    )
    card = Sentences(
        answers="It guesses words that are masked in a text, by the base's own head.",
        limits="It writes no text from left to right; it guesses single words from those around "
        "them.",
        call="fill",
        example=f"a {MASK} text",
        auto="",
        pipeline="fill-mask",
    )
    function = "smidgen.fill"
    asked = "masked tokens"
    is_drawn = True

    def places(self, task: Task, tokens: int) -> int:
        return most_masked(task.masking, tokens)

    def prompts(
        self, inputs: Inputs, examples: Sequence[Example], draw: int, first: int
    ) -> list[Prompt]:
        return masked(inputs.tokens, inputs.task.masking, examples, inputs.limit, draw, first)

    def by_draw(self, inputs: Inputs, examples: Sequence[Example]) -> Callable[[int], list[Prompt]]:
        distinct = dict.fromkeys(examples)
        known = {one: pieces_of(inputs.tokens, one, inputs.limit) for one in distinct}
        read = [known[one] for one in examples]
        return lambda draw: masked_in(inputs.tokens, inputs.task.masking, read, draw)

    def asked_in_words(self, task: Task) -> str:
        kind = "tokens, in whole words," if task.masking.whole_words else "tokens"
        return f"It was asked for {task.masking.share:.0%} of the {kind} of each training text."

    def show(self, opened: Opened, top: int | None = None) -> GuessTelling:
        check_top(TOP if top is None else top)
        return GuessTelling(opened, TOP if top is None else top)


KIND = MaskedWords()

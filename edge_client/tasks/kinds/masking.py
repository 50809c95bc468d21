"""Words masked in texts, for a base that is to guess them (Devlin et al. 2019, arXiv:1810.04805).

Which tokens are asked for is drawn anew for each draw and each place in a list of texts, and hangs
on nothing else: a text that others are put before has other words masked, but neither what stands
at other places has a say, nor how texts come to be in batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from edge_client.tasks.task import Masking
from edge_client.texts.examples import Example
from edge_client.texts.tokens import Prompt, Tokens

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
    text = f"{example.text} {example.text_b}" if example.text_b else example.text
    return tokens.pieces(text, tokens.plain_room(limit))


def masked_in(
    tokens: Tokens, masking: Masking, pieces: Iterable[Pieces], draw: int, first: int = 0
) -> list[Prompt]:
    """As `masked`, of texts that are tokenized already; these stay as they are."""
    return [
        _masked(tokens, masking, one, np.random.default_rng([draw, row]))
        for row, one in enumerate(pieces, first)
    ]


def most_masked(masking: Masking, limit: int) -> int:
    """Tokens that are asked for in a text of `limit` tokens, specials included: none has more."""
    return _count(masking, limit)


def _count(masking: Masking, tokens: int) -> int:
    return max(1, round(masking.share * tokens))


def _masked(
    tokens: Tokens, masking: Masking, pieces: Pieces, generator: np.random.Generator
) -> Prompt:
    ids, words = list(pieces[0]), pieces[1]
    groups = _words(words) if masking.whole_words else [[place] for place in range(len(ids))]
    chosen = _chosen(groups, _count(masking, len(ids)), generator)
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
    for group in _in_drawn_order(groups, generator):
        if len(found) + len(group) <= count:
            found += group
        if len(found) == count:
            break
    if not found:  # every word is longer than that: a part of one is asked for
        found = min(groups, key=len)[:count]
    return sorted(found)


def _in_drawn_order(
    groups: Sequence[list[int]], generator: np.random.Generator
) -> Iterator[list[int]]:
    return (groups[index] for index in generator.permutation(len(groups)))

"""Texts that are longer than what is read of them, of tasks without patterns.

What lies behind the end is neither trained on nor tagged, so whoever has such texts should know. It
is said on the device alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edge_client.texts.batches import Encoder
from edge_client.texts.examples import ClientData, Example
from edge_client.texts.tagging import words_of

LOOKED_AT = 2_000  # texts of a part: whoever has millions does not wait until all are tokenized


@dataclass(frozen=True)
class Cut:
    """How much of a text is read.

    Attributes:
        tokens: What it has, about: of a very long one by its beginning.
        read: How many of these are read.
    """

    tokens: int
    read: int


def cut_of(encoder: Encoder, example: Example) -> Cut | None:
    """Where a text is cut; None if it is read to its end, or its task has patterns.

    Law: of `tagging` a text is cut if and only if a word of it gets no answer.
    """
    if encoder.task.kind == "labels":
        return None
    before, after = encoder.tokens.frame
    room = encoder.limit - len(before) - len(after)
    if encoder.task.kind == "tagging":
        words = words_of(example)
        pieces = encoder.tokens.words(words, room)
        if len(pieces) == len(words):
            return None
        read = sum(map(len, pieces))
        return Cut(max(read + 1, encoder.tokens.count(" ".join(words), room)), read)
    text = f"{example.text} {example.text_b}" if example.text_b else example.text
    tokens = encoder.tokens.count(text, room)
    return Cut(tokens, room) if tokens > room else None


def cuts_in_words(encoder: Encoder, data: ClientData, tokens: int) -> Iterator[str]:
    """A line for each part of a device's texts in which some are cut: how many, and the first.

    Of a part no more than its first texts are looked at.

    Args:
        encoder: Reads them.
        data: The texts.
        tokens: What the run allows; the base may allow less.
    """
    for what, texts in (("train", data.labelled), ("test", data.test)):
        cuts = [(one, cut) for one in texts[:LOOKED_AT] if (cut := cut_of(encoder, one))]
        if cuts:
            few = len(texts) <= LOOKED_AT
            looked_at = f"{len(texts)}" if few else f"the first {LOOKED_AT:,} of {len(texts):,}"
            yield _in_words(what, looked_at, cuts, can_more=encoder.limit >= tokens)


def _in_words(what: str, texts: str, cuts: Sequence[tuple[Example, Cut]], *, can_more: bool) -> str:
    first, cut = cuts[0]
    more = ", or give more --tokens" if can_more else "; this base reads no longer ones"
    return (
        f"{len(cuts)} of {texts} texts to {what} on are longer than what is read: the first, "
        f"{first.file}, line {first.line}, has about {cut.tokens} tokens, of which {cut.read} are "
        f"read; split them into shorter ones{more}"
    )

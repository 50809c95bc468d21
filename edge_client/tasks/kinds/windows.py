"""Texts whose words are tagged: each word is asked at its first token.

What a word is, the file says, or it is found in the text: letters and digits in a row, or any other
character that is not a space. A tokenizer may split a word further; what its other tokens would be
called is not asked, as in Devlin et al. 2019 (arXiv:1810.04805, section 5.3).

A text that is too long is cut, or read in windows that overlap, where every word is to be tagged.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from edge_client.formats.annotation.spans import WORD
from edge_client.tasks.task import Task
from edge_client.texts.examples import Example
from edge_client.texts.tokens import Prompt, Tokens

OVERLAP = 4  # a window shares one of so many words with the next


def words_of(example: Example) -> tuple[str, ...]:
    """A text's words: those that its file tells apart, else those found in it."""
    return example.words or tuple(WORD.findall(example.text)) or (example.text,)


def places_of(example: Example) -> list[tuple[int, int]]:
    """Of each word, in `words_of`'s order, where it begins and ends in the text, in characters.

    Words of a file that are not in its text in their order have their place in the words with
    spaces between them, which is what such a text is.
    """
    found, end = [], 0
    for word in words_of(example):
        start = example.text.find(word, end)
        if start < 0:
            return _spaced(words_of(example))
        end = start + len(word)
        found.append((start, end))
    return found


def _spaced(words: Sequence[str]) -> list[tuple[int, int]]:
    ends = list(accumulate(len(word) + 1 for word in words))
    return [(end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True)]


def windows(tokens: Tokens, words: Sequence[str], limit: int) -> list[range]:
    """Parts of a text, each of as many whole words as fit, that overlap by about a quarter.

    Laws: each word is in one of them; none lies within another; a text that fits is one window.

    Args:
        tokens: The base's tokenizer.
        words: The text's, at least one.
        limit: Tokens of an input, specials included.
    """
    before, after = tokens.frame
    room, found, start = limit - len(before) - len(after), list[range](), 0
    while not found or found[-1].stop < len(words):
        count = len(tokens.words(words[start : start + max(room, 1)], room))
        if found and start + count <= found[-1].stop:  # its words are longer: begin behind it
            start = found[-1].stop
            continue
        found.append(range(start, start + count))
        start = found[-1].stop - count // OVERLAP
    return found


def parts_read(found: Sequence[range]) -> list[range]:
    """Which words each window tells the tags of: of two that overlap, each the half that it begins.

    So a word is told by the window that has more words around it.

    Law: put one behind the other they are all words, each once.
    """
    cuts = [(one.stop + next_.start) // 2 for one, next_ in pairwise(found)]
    starts, stops = [found[0].start, *cuts], [*cuts, found[-1].stop]
    return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]


def tagged(tokens: Tokens, task: Task, examples: Sequence[Example], limit: int) -> list[Prompt]:
    """Texts as a tagger reads them, cut behind the last whole word that fits into `limit` tokens.

    Args:
        tokens: The base's tokenizer.
        task: Its tags.
        examples: The texts.
        limit: Tokens of an input, specials included.
    """
    index = {tag: number for number, tag in enumerate(task.tags)}
    room, found = tokens.plain_room(limit), []
    for example in examples:
        ids, places = list[int](), []
        for pieces in tokens.words(words_of(example), room):
            places.append(len(ids))
            ids += pieces
        answers = [index[tag] for tag in example.tags[: len(places)]] or [-1] * len(places)
        found.append(tokens.framed(ids, places, answers))
    return found

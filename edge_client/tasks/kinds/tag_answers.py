"""Tagging answers: one tag per word, taken at its first token; on a screen, in files and as JSON.

Words are the file's, or found in the text: runs of letters and digits, or any other character that
is not a space. Further tokens of a word are ignored (Devlin et al. 2019, arXiv:1810.04805, section
5.3).

For training, long texts are cut. For prediction they are read in overlapping windows of whole
words, so that every word gets a tag: where two windows cover a word, the one with more context
around it counts. So an entity shorter than the overlap is read whole by one of them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.formats.annotation.answers import WORD, Proposal
from smidgen.edge_client.outputs import check_out_file, new_file
from smidgen.edge_client.tables import shown
from smidgen.edge_client.tasks.counts import spans, tags_of
from smidgen.edge_client.tasks.kind import Engine, Opened
from smidgen.edge_client.tasks.scores import Skipped, pieces, write_json
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, Found
from smidgen.edge_client.texts.tokens import Prompt, Tokens


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
        start = found[-1].stop - count // 4  # a window shares one of so many words with the next
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
        for ids_of_word in tokens.words(words_of(example), room):
            places.append(len(ids))
            ids += ids_of_word
        answers = [index[tag] for tag in example.tags[: len(places)]] or [-1] * len(places)
        found.append(tokens.framed(ids, places, answers))
    return found


FORMATS = (".jsonl", ".conll")
# What a file of these answers begins with, and none that people tag themselves.
SIGNS = {".jsonl": '{"entities": [', ".conll": "# smidgen"}


@dataclass(frozen=True)
class Entity:
    """An entity in a text.

    Attributes:
        type: One of the task's labels.
        text: Its words as they stand in the text.
        start: The first of its words, from 0.
        end: The word behind its last.
        start_character: Where it begins in the text, in characters from 0.
        end_character: Where it ends.
        probability: That all its words have the tags that they got, 0 to 1.
    """

    type: str
    text: str
    start: int
    end: int
    start_character: int
    end_character: int
    probability: float


@dataclass(frozen=True)
class TaggedText:
    """A text, a tag of each of its words, and the entities that these tell.

    Attributes:
        text: The text; of words from a file these with spaces between them.
        tokens: Its words.
        tags: Of each word: `O`, or `B-` or `I-` and a type; `I-` goes on with an entity.
        entities: What the tags tell, in the text's order.
    """

    text: str
    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class Tagging:
    """How a text's words are read.

    Attributes:
        found: The text, where it stands and its id.
        example: The text.
        rows: Log-probabilities of each word's tags, (words, tags).
    """

    found: Found
    example: Example
    rows: np.ndarray

    def told(self, task: Task) -> tuple[str, ...]:
        """The likeliest tags; one that goes on with nothing begins."""
        likeliest = [task.tags[index] for index in self.rows.argmax(axis=1).tolist()]
        return tags_of(spans(likeliest), len(likeliest))

    def text(self, task: Task) -> TaggedText:
        """For people."""
        example, tags, places = self.example, self.told(task), places_of(self.example)
        text, sure = example.text, self.rows.max(axis=1).astype(np.float64)
        entities = []
        for start, end, label in spans(tags):
            begin, stop = places[start][0], places[end - 1][1]
            probability = round(math.exp(float(sure[start:end].sum())), 4)
            entities.append(Entity(label, text[begin:stop], start, end, begin, stop, probability))
        return TaggedText(text, words_of(example), tags, tuple(entities))


def taggings(opened: Opened, texts: Iterable[Found], accounting: Accounting) -> Iterator[Tagging]:
    """Tag texts in their order; those without a text go to `accounting`."""
    for piece in pieces(texts, accounting):
        rows = _tagged(opened.engine, [example for _, example in piece])
        for (found, example), one in zip(piece, rows, strict=True):
            yield Tagging(found, example, one)


def _tagged(engine: Engine, examples: Sequence[Example]) -> list[np.ndarray]:
    """Rows of all words of each text."""
    inputs = engine.encoder
    parts, asked = [], list[Example]()
    for example in examples:
        words = words_of(example)
        parts.append(windows(inputs.tokens, words, inputs.limit))
        asked += [_window(words, part) for part in parts[-1]]
    answers = iter(engine.tag(asked))
    found = []
    for part in parts:
        told = zip(part, parts_read(part), strict=True)
        rows = [next(answers)[read.start - one.start : read.stop - one.start] for one, read in told]
        found.append(np.concatenate(rows))
    return found


def _window(words: Sequence[str], part: range) -> Example:
    chosen = tuple(words[part.start : part.stop])
    return Example(" ".join(chosen), words=chosen)


@dataclass(frozen=True)
class TagTelling:
    """See `Formatter`.

    Attributes:
        opened: The adapter.
    """

    opened: Opened
    done: str = "tagged"
    can_propose: bool = True

    def check(self, out: Path | None) -> None:
        check(out)

    def answers(self, texts: Iterable[Found], accounting: Accounting) -> Iterator[Tagging]:
        return taggings(self.opened, texts, accounting)

    def results(
        self, out: Path | None, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Tagging | Skipped], None]]:
        return results(out, self.opened.task, is_gold=False)

    def proposal(self, answer: Tagging) -> Proposal:
        told = answer.text(self.opened.task)
        spans = [(one.start_character, one.end_character, one.type) for one in told.entities]
        least = min((one.probability for one in told.entities), default=None)
        return Proposal(told.text, spans=tuple(spans), score=least, id=answer.found.id)

    def line(self, answer: Tagging) -> str:
        return marked(answer.text(self.opened.task))

    def counted(self, answer: Tagging) -> Sequence[str]:
        return [entity.type for entity in answer.text(self.opened.task).entities]

    def collected(self, kept: Sequence[Tagging]) -> dict[str, Any]:
        return {"answers": [asdict(answer.text(self.opened.task)) for answer in kept]}

    def summary(self, counts: Mapping[str, int]) -> dict[str, Any]:
        return {"entities": {label: counts.get(label, 0) for label in self.opened.task.labels}}


def check(out: Path | None) -> None:
    """Refuse a file of answers that cannot be written."""
    if out is not None:
        check_out_file("--out", out, FORMATS, sign=SIGNS.get(out.suffix, ""))


def marked(text: TaggedText) -> str:
    """A text in one line, its entities in brackets with their type and probability."""
    parts, end = [], 0
    for entity in text.entities:
        said = f"{entity.text} | {entity.type} {entity.probability:.2f}"
        parts += [text.text[end : entity.start_character], f"[{said}]"]
        end = entity.end_character
    return shown("".join([*parts, text.text[end:]]))


@contextmanager
def results(
    out: Path | None, task: Task, *, is_gold: bool
) -> Iterator[Callable[[Tagging | Skipped], None]]:
    """Writes the tags of each text as JSONL or CoNLL's columns; without `out`, nothing.

    Args:
        out: The file, whose ending says the format.
        task: Its tags.
        is_gold: Whether texts have tags of their own, which are written too, before those told.
    """
    if out is None:
        yield lambda answer: None
        return
    with new_file("--out", out) as file:
        if out.suffix == ".jsonl":
            yield lambda answer: write_json(
                file,
                answer.as_json("entities", "text", "tokens", "tags")
                if isinstance(answer, Skipped)
                else _row(answer, task, is_gold),
            )
            return
        file.write(f"{SIGNS['.conll']}: a word{', its tag' * is_gold} and what it is read as\n")

        def write(answer: Tagging | Skipped) -> None:
            if isinstance(answer, Skipped):
                file.write(f"# left out: {answer.reason}\n\n")
                return
            told = answer.text(task)
            columns = [told.tokens, *([answer.example.tags] if is_gold else []), told.tags]
            file.writelines("\t".join(row) + "\n" for row in zip(*columns, strict=True))
            file.write("\n")

        yield write


def _row(answer: Tagging, task: Task, is_gold: bool) -> dict[str, Any]:
    told = asdict(answer.text(task))
    first = {"entities": told.pop("entities")}  # by which a file of ours is known
    if is_gold:
        told |= {"tags": answer.example.tags, "read_as": told["tags"]}
    return first | ({"id": answer.found.id} if answer.found.id else {}) | told

"""Texts whose words an adapter tags, and the entities in them.

A long text is read in windows of whole words that overlap, so that every word gets a tag: where two
windows tell one, the one counts that has more words around it. So an entity at the edge of a window
is read whole by one of the two, if it is shorter than the overlap.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from edge_client.api.given import Asked, Place, place_or_none
from edge_client.api.labeller import Labeller, adapter_or_own, open_labeller, pieces
from edge_client.api.predict import found_texts
from edge_client.bases.base import EMBEDDED
from edge_client.engine.scoring.entities import spans, tags_of
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.texts.accounting import Accounting
from edge_client.texts.examples import Example, Found
from edge_client.texts.tagging import parts_read, places_of, windows, words_of
from edge_client.texts.tasks import Task


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
            known = (label, text[begin:stop], start, end, begin, stop)
            entities.append(Entity(*known, probability))
        return TaggedText(text, words_of(example), tags, tuple(entities))


def tag(
    texts: Iterable[str],
    adapter: Place | None = None,
    *,
    personal: Place | None = None,
    task: Asked | None = None,
    base: Place = EMBEDDED,
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
        base: Folder, hub name or `embedded`.
        engine: `auto`, `torch` or `onnx`.
        device: `cpu`, or `cuda` for the torch engine on a CUDA device.
        memory_budget: Such as `512M`; `auto`: 60 % of what is available now.

    Raises:
        WrongInput: An empty text or something else than a text, no such adapter, one of another
            base, or one that tags nothing.
        Failed: The engine could not do it.
    """
    found = found_texts(texts, has_pairs=False)
    folder = adapter_or_own(place_or_none(adapter), place_or_none(personal))
    labeller = open_labeller(folder, task, str(base), engine, memory_budget, device)
    with closing(labeller.engine):
        labeller.check_kind("tagging", "smidgen.tag")
        return [one.text(labeller.task) for one in taggings(labeller, found, Accounting())]


def taggings(
    labeller: Labeller, texts: Iterable[Found], accounting: Accounting
) -> Iterator[Tagging]:
    """Tag texts in their order; those without a text go to `accounting`."""
    for piece in pieces(labeller, texts, accounting):
        rows = _tagged(labeller, [example for _, example in piece])
        for (found, example), one in zip(piece, rows, strict=True):
            yield Tagging(found, example, one)


def _tagged(labeller: Labeller, examples: Sequence[Example]) -> list[np.ndarray]:
    """Rows of all words of each text."""
    encoder = labeller.engine.encoder
    parts, asked = [], list[Example]()
    for example in examples:
        words = words_of(example)
        parts.append(windows(encoder.tokens, words, encoder.limit))
        asked += [_window(words, part) for part in parts[-1]]
    answers = iter(labeller.engine.tag(asked))
    found = []
    for part in parts:
        told = zip(part, parts_read(part), strict=True)
        rows = [next(answers)[read.start - one.start : read.stop - one.start] for one, read in told]
        found.append(np.concatenate(rows))
    return found


def _window(words: Sequence[str], part: range) -> Example:
    chosen = tuple(words[part.start : part.stop])
    return Example(" ".join(chosen), words=chosen)

"""Batches in parts: each answer goes with its text."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.encoder import TOGETHER, Encoder
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Prompt, Tokens

COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


def batch_of(counts: list[int]) -> Batch:
    """So many answers of each text, told apart by their labels."""
    rows, answers = len(counts), sum(counts)
    texts = np.repeat(np.arange(rows), counts)
    ids = np.arange(rows * 3).reshape(rows, 3)
    weights = np.arange(answers, dtype=np.float32)
    labels = np.arange(answers)
    return Batch(ids, np.ones_like(ids), labels % 3, labels, weights, None, texts)


@given(COUNTS, st.integers(1, 6))
def test_parts_hold_each_answer_once_and_beside_its_text(counts: list[int], size: int) -> None:
    whole = batch_of(counts)
    assert whole.texts is not None and whole.weights is not None
    seen = list[int]()
    for start in range(0, len(counts), size):
        part = whole.some(slice(start, start + size))
        assert part.texts is not None and part.weights is not None
        assert np.array_equal(part.ids, whole.ids[start : start + size])
        for label, text, weight in zip(part.labels, part.texts, part.weights, strict=True):
            assert whole.texts[label] == start + text and weight == label
        seen += part.labels.tolist()
    assert seen == list(range(sum(counts)))


@given(st.integers(1, 6), st.data())
def test_one_answer_of_each_text_stays_that(rows: int, data: st.DataObject) -> None:
    whole = batch_of([1] * rows)
    one = Batch(whole.ids, whole.attention, whole.mask_positions, whole.labels, whole.weights)
    picked = sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1)))
    assert one.some(picked).labels.tolist() == whole.some(picked).labels.tolist() == picked
    assert one.some(picked).texts is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_some_are_padded_to_the_longest_of_them(lengths: list[int], data: st.DataObject) -> None:
    attention = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    zeros = np.zeros(len(lengths), np.int64)
    whole = Batch(attention * 7, attention, zeros, zeros, segments=attention)
    picked = sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1)))
    part, width = whole.some(picked), max(lengths[row] for row in picked)
    assert part.ids.shape == (len(picked), width) and part.segments is not None
    assert part.attention.sum(axis=1).tolist() == [lengths[row] for row in picked]
    assert (part.ids == part.attention * 7).all() and (part.segments == part.attention).all()


class Counting(Tokens):
    """A tokenizer that knows how many texts it was given."""

    given = 0

    def pieces(self, text: str, room: int) -> Any:
        self.given += 1
        return super().pieces(text, room)

    def words(self, *asked: Any) -> Any:
        self.given += 1
        return super().words(*asked)

    def plain(self, *asked: Any) -> Any:
        self.given += 1
        return super().plain(*asked)


KINDS = [
    Task("notes", kind="mlm"),
    Task("drugs", ("Drug",), kind="tagging"),
    Task("t", ("mail", "power"), ("[MASK] {text}",), {"mail": "mail", "power": "power"}),
]


@pytest.mark.parametrize("task", KINDS, ids=lambda task: task.kind)
def test_texts_are_tokenized_once_however_often_they_come_and_are_drawn(
    tiny_base: Base, task: Task
) -> None:
    tokens, texts = Counting(tiny_base.folder), [Example("the front door"), Example("rain")]
    encoder, repeated = Encoder(tokens, task, False, 24), texts * 50
    by_draw = encoder.by_draw(repeated)
    found = [by_draw(draw) for draw in (3, 4)]
    assert tokens.given == len(texts)
    assert found == [encoder.prompts(repeated, draw) for draw in (3, 4)]


@pytest.mark.parametrize("task", KINDS, ids=lambda task: task.kind)
def test_texts_that_are_tokenized_some_at_a_time_give_the_batches_of_all_at_once(
    tiny_base: Base, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(Tokens(tiny_base.folder), task, task.kind == "labels", 24)
    words = ["the", "front", "door", "opened", "at", "noon", "and", "rain", "came"]
    texts = [Example(" ".join(words[: 1 + row % 9])) for row in range(TOGETHER + 50)]
    whole, asked = encoder.prompts(texts, 3), list[int]()

    def noted(self: Encoder, examples: list[Example], *more: int) -> list[Prompt]:
        asked.append(len(examples))
        return prompts(self, examples, *more)

    prompts = Encoder.prompts
    monkeypatch.setattr(Encoder, "prompts", noted)
    seen = list[int]()
    for rows, batch in encoder.by_length(texts, 4, 24, draw=3):
        wanted = encoder.batch([whole[row] for row in rows])
        assert (batch.ids == wanted.ids).all() and (batch.labels == wanted.labels).all()
        assert (batch.mask_positions == wanted.mask_positions).all()
        seen += rows
    assert sorted(seen) == list(range(len(texts)))
    assert asked == [TOGETHER, 50]

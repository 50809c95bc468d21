import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.engine.trainer import epoch_batches, in_turn
from edge_client.texts.tokens import Prompt


@given(st.lists(st.integers(1, 500), max_size=200), st.integers(1, 33), st.integers(0, 2**63 - 1))
def test_an_epoch_sees_every_text_once(lengths: list[int], batch: int, seed: int) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    batches = epoch_batches(lengths, batch, generator)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    assert all(1 <= len(rows) <= batch for rows in batches)


def test_batches_hold_texts_of_similar_length() -> None:
    lengths = [10, 500] * 32
    batches = epoch_batches(lengths, 8, np.random.Generator(np.random.PCG64(0)))
    padded = sum(max(lengths[row] for row in rows) * len(rows) for rows in batches)
    assert padded == pytest.approx(sum(lengths), rel=0.01)


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
def test_in_as_many_epochs_as_patterns_each_asks_every_text_once(
    texts: int, patterns: int, first: int
) -> None:
    asked = [[Prompt([text], pattern) for text in range(texts)] for pattern in range(patterns)]
    epochs = [in_turn(asked, epoch) for epoch in range(first, first + patterns)]
    for text, prompts in enumerate(zip(*epochs, strict=True)):
        assert all(prompt.ids == [text] for prompt in prompts)
        assert sorted(prompt.mask_position for prompt in prompts) == list(range(patterns))
    assert in_turn(asked, 3)[0].mask_position == 3 % patterns

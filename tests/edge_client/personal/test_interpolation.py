"""Between the shared adapter and one's own."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.personal.interpolation import ALPHAS, At, kept_aside, mixed, nearest
from smidgen.edge_client.tasks.scores import Evaluation, TrainingError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.messages import WireError

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=6)

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})


@given(st.data())
def test_the_ends_are_the_adapters_and_equal_ones_stay(data: st.DataObject) -> None:
    shared = {"a": np.array(data.draw(NUMBERS), np.float32)}
    own = {"a": np.array(data.draw(NUMBERS.map(lambda one: one)), np.float32)}
    if own["a"].shape != shared["a"].shape:
        with pytest.raises(WireError):
            mixed(own, shared, 0.5)
        return
    assert mixed(own, shared, 0.0)["a"].tobytes() == shared["a"].tobytes()
    assert mixed(own, shared, 1.0)["a"].tobytes() == own["a"].tobytes()
    for alpha in ALPHAS:
        found = mixed(own, shared, alpha)["a"]
        assert found.dtype == np.float32
        assert np.array_equal(mixed(shared, shared, alpha)["a"], shared["a"])


@given(st.randoms(), st.lists(st.integers(0, 3), min_size=21, max_size=21))
def test_the_alpha_that_is_right_most_often_is_chosen_whatever_the_order(
    draw: Any, right: list[int]
) -> None:
    way = [
        At(alpha, Evaluation(4, hits / 4, 1.0)) for alpha, hits in zip(ALPHAS, right, strict=True)
    ]
    best = nearest(way, TASK)
    assert right[ALPHAS.index(best)] == max(right)
    assert best == min(
        alpha for alpha, hits in zip(ALPHAS, right, strict=True) if hits == max(right)
    )
    assert nearest(draw.sample(way, len(way)), TASK) == best


@given(st.integers(4, 40), st.integers(0, 99))
def test_each_text_is_trained_on_or_kept_aside(count: int, seed: int) -> None:
    texts = [Example(str(number)) for number in range(count)]
    train, aside = kept_aside(texts, seed)
    assert sorted([*train, *aside], key=lambda one: int(one.text)) == texts
    assert len(aside) >= 2 and len(train) >= 2
    assert (train, aside) == kept_aside(texts, seed)


def test_too_few_texts_are_one_line() -> None:
    with pytest.raises(TrainingError, match="3 labelled texts: a part is kept aside"):
        kept_aside([Example(str(number)) for number in range(3)], 1)

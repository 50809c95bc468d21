"""What both sides compute of control variates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edge_client.wire.control import Held, change_of
from edge_client.wire.tensors import AdapterState, encode_adapter

NUMBERS = st.floats(-8, 8, width=32).map(lambda number: round(number * 16) / 16)
TENSORS = arrays(np.float32, (3,), elements=NUMBERS)
STEPS = st.integers(1, 64)


def file(tensor: np.ndarray) -> bytes:
    return encode_adapter({"a": tensor})


@given(TENSORS, TENSORS, st.lists(TENSORS, min_size=1, max_size=8))
def test_after_training_a_variate_is_the_mean_of_the_gradients(
    c: np.ndarray, own: np.ndarray, gradients: list[np.ndarray]
) -> None:
    held, lr = Held(file(c), file(own)), 0.5
    moved = sum((-lr * (one + held.shift()["a"]) for one in gradients), np.zeros(3, np.float32))
    if not moved.any():
        return  # a tensor that rested keeps its variate
    after = held.own_after({"a": moved}, len(gradients), lr)["a"]
    np.testing.assert_allclose(after, np.mean(gradients, axis=0), atol=1e-4)


@given(TENSORS, TENSORS, TENSORS, STEPS)
def test_what_the_coordinator_adds_is_what_the_device_does(
    c: np.ndarray, own: np.ndarray, delta: np.ndarray, steps: int
) -> None:
    held = Held(file(c), file(own))
    after = held.own_after({"a": delta}, steps, 0.1)["a"]
    change = change_of({"a": c}, {"a": delta}, steps, 0.1)["a"]
    np.testing.assert_allclose(after, own + change, rtol=1e-6, atol=1e-5)


def test_without_variates_nothing_is_added() -> None:
    assert Held().shift() == {}
    assert Held(file(np.ones(3, np.float32)), None).shift() == {}  # lost


def test_a_first_variate_counts_from_zero() -> None:
    held, delta = Held(), {"a": np.full(3, -2.0, np.float32)}
    assert held.own_after(delta, 4, 0.5)["a"].tolist() == [1.0, 1.0, 1.0]


def test_what_rested_keeps_its_variate() -> None:
    ones = np.ones(3, np.float32)
    delta: AdapterState = {"a": np.zeros(3, np.float32)}
    assert change_of({"a": ones}, delta, 4, 0.5)["a"].tolist() == [0.0] * 3
    assert Held(file(ones), file(2 * ones)).own_after(delta, 4, 0.5)["a"].tolist() == [2.0] * 3

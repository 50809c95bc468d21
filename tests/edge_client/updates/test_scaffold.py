"""What both sides compute of control variates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from smidgen.edge_client.updates.scaffold import Scaffold, change_of
from smidgen.edge_client.updates.step import Correction, DeviceContext, State
from smidgen.edge_client.wire.tensors import AdapterState, Update
from smidgen.edge_client.wire.training import Training

NUMBERS = st.floats(-8, 8, width=32).map(lambda number: round(number * 16) / 16)
TENSORS = arrays(np.float32, (3,), elements=NUMBERS)
STEPS = st.integers(1, 64)


def step_of(c: np.ndarray | None = None, own: np.ndarray | None = None) -> Scaffold:
    step = Scaffold()
    step.shared, step.state = named(c), named(own)
    return step


def named(tensor: np.ndarray | None) -> State:
    return {} if tensor is None else {"a": tensor}


def shift(step: Scaffold) -> AdapterState:
    start = {"a": np.zeros(3, np.float32)}
    return step.correct(Correction(start), DeviceContext(Training(), 1)).shift


def after(step: Scaffold, delta: np.ndarray, steps: int, lr: float) -> np.ndarray:
    context = DeviceContext(Training(lr=lr), 1, optimizer_steps=steps)
    step.sent(step.outgoing(Update("w", 1, {"a": delta}), context), context)
    assert step.state is not None
    return step.state["a"]


@given(TENSORS, TENSORS, st.lists(TENSORS, min_size=1, max_size=8))
def test_after_training_a_variate_is_the_mean_of_the_gradients(
    c: np.ndarray, own: np.ndarray, gradients: list[np.ndarray]
) -> None:
    step, lr = step_of(c, own), 0.5
    moved = sum((-lr * (one + shift(step)["a"]) for one in gradients), np.zeros(3, np.float32))
    if not moved.any():
        return  # a tensor that rested keeps its variate
    found = after(step, moved, len(gradients), lr)
    np.testing.assert_allclose(found, np.mean(gradients, axis=0), atol=1e-4)


@given(TENSORS, TENSORS, TENSORS, STEPS)
def test_what_the_coordinator_adds_is_what_the_device_does(
    c: np.ndarray, own: np.ndarray, delta: np.ndarray, steps: int
) -> None:
    found = after(step_of(c, own), delta, steps, 0.1)
    change = change_of({"a": c}, {"a": delta}, steps, 0.1)["a"]
    np.testing.assert_allclose(found, own + change, rtol=1e-6, atol=1e-5)


def test_without_variates_nothing_is_added() -> None:
    assert shift(step_of()) == {}
    lost = step_of(np.ones(3, np.float32))
    lost.state = None
    assert shift(lost) == {}


def test_who_has_lost_its_variate_says_no_steps_and_keeps_none() -> None:
    lost = step_of()
    lost.state = None
    context = DeviceContext(Training(), 1, optimizer_steps=4)
    update = lost.outgoing(Update("w", 1, {"a": np.ones(3, np.float32)}), context)
    lost.sent(update, context)
    assert update.steps == 0 and lost.state is None


def test_a_first_variate_counts_from_zero() -> None:
    found = after(step_of(), np.full(3, -2.0, np.float32), 4, 0.5)
    assert found.tolist() == [1.0, 1.0, 1.0]


def test_what_rested_keeps_its_variate() -> None:
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    assert change_of({"a": ones}, {"a": zeros}, 4, 0.5)["a"].tolist() == [0.0] * 3
    assert after(step_of(ones, 2 * ones), zeros, 4, 0.5).tolist() == [2.0] * 3

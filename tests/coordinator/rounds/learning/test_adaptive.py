"""Server optimizers against their formulas; against flwr's own in tests/parity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from smidgen.coordinator.rounds.events import RolledBack, StepOpened
from smidgen.coordinator.rounds.extensions import CheckedOptimizer
from smidgen.coordinator.rounds.learning.memory import (
    Memory,
    UnreadableError,
    decode_memory,
    encode_memory,
)
from smidgen.coordinator.rounds.learning.optimizers import ServerOptimizer, apply_delta, factor
from smidgen.coordinator.rounds.learning.registry import OPTIMIZERS
from smidgen.coordinator.rounds.learning.registry import optimizer_of as optimizer_named
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate, learn
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.tensors import AdapterState, Update

FLOATS = st.floats(-100, 100, width=32)
DELTAS = arrays(np.float32, (2, 3), elements=FLOATS)
REMEMBERING = [name for name in OPTIMIZERS if name != "fedavg"]


def optimizer_of(learning: Learning) -> ServerOptimizer:
    return optimizer_named(learning.optimizer, learning.rates)


def stepped(
    learning: Learning, deltas: list[np.ndarray], is_killed: bool = False
) -> tuple[AdapterState, Memory]:
    """An adapter of zeros after a step with each delta; killed: memory goes through its bytes."""
    adapter: AdapterState = {"a": np.zeros((2, 3), np.float32)}
    memory: Memory = {}
    for number, delta in enumerate(deltas, 1):
        optimizer = optimizer_of(learning)
        adapter, memory = optimizer.step(adapter, {"a": delta}, memory, number, len(deltas))
        if is_killed:
            memory = decode_memory(encode_memory(memory))
    return adapter, memory


@given(DELTAS, DELTAS)
def test_fedavg_is_what_it_was_to_the_byte(adapter: np.ndarray, delta: np.ndarray) -> None:
    after, memory = optimizer_of(Learning()).step({"a": adapter}, {"a": delta}, {}, 1, 1)
    assert after["a"].tobytes() == apply_delta({"a": adapter}, {"a": delta})["a"].tobytes()
    assert not memory


@given(st.lists(DELTAS, min_size=1, max_size=4), st.sampled_from(REMEMBERING))
def test_what_is_remembered_survives_as_bytes(deltas: list[np.ndarray], name: str) -> None:
    learning = Learning(optimizer=name, decay="linear")
    once, memory = stepped(learning, deltas)
    again, remembered = stepped(learning, deltas, is_killed=True)
    assert once["a"].tobytes() == again["a"].tobytes()
    assert encode_memory(memory) == encode_memory(remembered)


@given(st.lists(DELTAS, min_size=1, max_size=4))
def test_without_momentum_fedavgm_is_fedavg(deltas: list[np.ndarray]) -> None:
    ours, _ = stepped(Learning(optimizer="fedavgm", momentum=0.0), deltas)
    assert ours["a"].tobytes() == stepped(Learning(), deltas)[0]["a"].tobytes()


def test_momentum_adds_up_to_one_over_one_minus_it() -> None:
    ones = [np.ones((2, 3), np.float32)] * 200
    learning = Learning(optimizer="fedavgm", lr=1.0, momentum=0.5)
    before, _ = stepped(learning, ones[:-1])
    after, _ = stepped(learning, ones)
    np.testing.assert_allclose(after["a"] - before["a"], 2.0, rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_by_default_rounds_that_agree_step_as_far_as_their_mean(momentum: float) -> None:
    ones = [np.ones((2, 3), np.float32)] * 200
    learning = Learning(optimizer="fedavgm", momentum=momentum)
    before, _ = stepped(learning, ones[:-1])
    after, _ = stepped(learning, ones)
    np.testing.assert_allclose(after["a"] - before["a"], 1.0, rtol=1e-4)


@given(st.sampled_from(["fedadam", "fedyogi"]), st.floats(0.01, 100.0), st.booleans())
def test_the_size_of_the_pseudo_gradients_does_not_matter(
    name: str, scale: float, is_corrected: bool
) -> None:
    learning = Learning(
        optimizer=name, lr=2**-10, beta_2=0.999, tau=1e-10, bias_correction=is_corrected
    )
    delta = np.array([[0.3, -2.0, 0.05], [1.0, 1.0, 1.0]])
    once, _ = stepped(learning, [delta])
    again, _ = stepped(learning, [delta * scale])
    np.testing.assert_allclose(once["a"], again["a"], rtol=1e-4)  # tau
    assert float(np.abs(once["a"]).max()) <= 2**-10 or not is_corrected


def test_adagrad_slows_down_where_it_has_moved() -> None:
    ones = [np.ones((2, 3), np.float32)] * 4
    after, memory = stepped(Learning(optimizer="fedadagrad", lr=1.0, tau=1e-9), ones)
    np.testing.assert_allclose(after["a"], sum(1 / np.sqrt(n) for n in range(1, 5)), rtol=1e-6)
    np.testing.assert_allclose(memory["square.a"], 4.0)


def test_yogi_s_square_moves_by_a_part_of_the_newest_one() -> None:
    deltas = [np.full((2, 3), 2.0, np.float32), np.full((2, 3), 0.5, np.float32)]
    _, memory = stepped(Learning(optimizer="fedyogi", beta_2=0.9), deltas)
    np.testing.assert_allclose(memory["square.a"], 0.1 * 4.0 - 0.1 * 0.25, rtol=1e-6)


def test_the_memory_of_another_adapter_is_refused() -> None:
    optimizer = optimizer_of(Learning(optimizer="fedadam"))
    _, memory = optimizer.step({"a": np.zeros(3)}, {"a": np.ones(3)}, {}, 1, 2)
    for other in ({"a": np.zeros(4)}, {"b": np.zeros(3)}):
        with pytest.raises(UnreadableError, match="remembers no mean of tensor"):
            optimizer.step(other, other, memory, 2, 2)


def test_after_a_roll_back_nothing_is_remembered() -> None:
    state = State("adapter-2", 2, memory_sha256="m" * 64)
    for is_ordered in (True, False):
        event = RolledBack(1, "adapter-1", "it got worse", 1.0, is_ordered)
        assert evolve(state, event).memory_sha256 == ""


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("none", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        (1e-3, [0.999, 0.998, 0.997, 0.996]),
        (0.4, [0.6, 0.2, 0.0, 0.0]),
    ],
)
def test_the_learning_rate_falls_as_said(decay: float, expected: list[float]) -> None:
    shares = [factor(decay, round_index, 4) for round_index in range(1, 5)]
    assert shares == pytest.approx(expected, abs=1e-12)


def test_an_optimizer_s_numbers_are_its_own_unless_said() -> None:
    assert Learning(optimizer="fedyogi", lr=0.1).rates.lr == 0.1
    assert Learning(optimizer="fedyogi").rates.tau == OPTIMIZERS["fedyogi"]["tau"]
    assert Learning(optimizer="fedavgm", momentum=0.3).rates.beta_1 == 0.3


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"optimizer": "Sgd"}, "optimizer: one of fedavg, fedavgm"),
        ({"optimizer": "fedadam:1"}, "optimizer: one of fedavg, fedavgm"),
        ({"optimizer": "sgd:1", "lr": 0.1}, "lr: sgd:1 does not have it; it has arguments"),
        ({"beta_1": 0.9}, "beta_1: fedavg does not have it; it has lr"),
        ({"optimizer": "fedadam", "momentum": 0.9}, "momentum: fedadam does not have it"),
        ({"optimizer": "fedadam", "beta_2": 1.0}, "beta_2: 0 to below 1"),
        ({"lr": 0.0}, "lr: above 0"),
        ({"lr": float("nan")}, "lr: above 0"),
        ({"bias_correction": True}, "bias_correction: fedavg has none"),
        ({"decay": 1.0}, "decay: none, linear"),
        ({"decay": "cosine"}, "decay: none, linear"),
    ],
)
def test_a_number_that_makes_no_sense_is_named(said: dict[str, float], refused: str) -> None:
    with pytest.raises((WrongInput, ValueError), match=refused):
        Learning(**said)  # type: ignore[arg-type]


def test_a_memory_beyond_float32_is_not_kept() -> None:
    """The square of 3e19 is: that number would never move again."""
    adapter: AdapterState = {"a": np.zeros(2, np.float32)}
    opened = StepOpened("train", 1, 1, "0" * 64, (("w", "d"),), 0.0)
    update = Update("w", 4, {"a": np.array([3e19, 1.0], np.float32)})
    answers = [AdmittedUpdate("d", update, None, 1.0)]
    learning = Learning(optimizer="fedadagrad")
    learned = learn(learning, opened, 3, answers, adapter, {}, [], is_guarded=False)
    assert learned.lack == "fedadagrad would remember numbers beyond float32"
    assert learned.adapter is adapter and not learned.memory


def three_rounds(learning: Learning, length: float, is_hostile: bool = False) -> list[str]:
    """What kept each of three rounds from being taken, of three devices' updates of that length."""
    numbers, lacks = 10_000, []
    adapter: AdapterState = {"a": np.zeros(numbers, np.float32)}
    memory: Memory = {}
    norms: list[float] = []
    generator = np.random.default_rng(0)
    for index in (1, 2, 3):
        opened = StepOpened("train", index, 1, "0" * 64, (("w", "d"),) * 3, 0.0)
        deltas = [generator.standard_normal(numbers).astype(np.float32) for _ in "abc"]
        scale = length * (1e4 if is_hostile and index == 3 else 1.0)
        answers = [
            AdmittedUpdate(name, Update("w", 4, {"a": delta * np.float32(scale / numbers**0.5)}))
            for name, delta in zip("abc", deltas, strict=True)
        ]
        learned = learn(learning, opened, 3, answers, adapter, memory, norms)
        adapter, memory = learned.adapter, learned.memory
        norms.append(length)
        lacks.append(learned.lack)
    return lacks


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
@pytest.mark.parametrize("length", [1e-6, 1e-3, 1.0])
def test_a_run_goes_on_however_short_updates_are_beside_the_servers_rate(
    name: str, length: float
) -> None:
    learning = Learning(optimizer=name, lr=3e-4, tau=1e-8)
    assert three_rounds(learning, length) == ["", "", ""]


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_far_longer_updates_than_before_are_not_taken_by_it_either(name: str) -> None:
    found = three_rounds(Learning(optimizer=name, lr=3e-4, tau=1e-8), 1e-3, is_hostile=True)
    assert found[:2] == ["", ""] and "the mean of its updates is" in found[2]


def test_an_extension_says_whether_its_steps_grow_with_the_mean() -> None:
    class Signs:
        is_scale_free = True

        def step(
            self, adapter: AdapterState, mean: AdapterState, *_: object
        ) -> tuple[AdapterState, Memory]:
            return {name: adapter[name] + 0.01 * np.sign(mean[name]) for name in mean}, {}

    assert CheckedOptimizer(Signs(), "signs").is_scale_free
    del Signs.is_scale_free
    assert not CheckedOptimizer(Signs(), "signs").is_scale_free

"""Steps that come down in fewer bytes: one adapter for all, and what is kept for the next."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from smidgen.coordinator.rounds.events import (
    Answered,
    Folded,
    RolledBack,
    StepClosed,
    StepOpened,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.history import to_plain
from smidgen.coordinator.rounds.learning.memory import (
    MOST_STEPS,
    Memory,
    decode_memory,
    encode_memory,
    part_of,
)
from smidgen.coordinator.rounds.learning.server_update import (
    LEFT_OUT,
    AdmittedUpdate,
    Learned,
    learn,
)
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    add_step,
    encode_adapter,
    sha256,
)
from tests.coordinator.rounds.test_machine import CONFIG

PLAIN = Learning()
CODED = ("int8", "int4", "topk:0.1")
ROWS = arrays(np.float32, (3, 40), elements=st.floats(-2.0, 2.0, width=32))


def learnt(
    adapter: AdapterState,
    delta: np.ndarray,
    down: str,
    memory: Memory | None = None,
    learning: Learning = PLAIN,
    is_guarded: bool = False,
) -> Learned:
    """What a round gives in which one device sent this."""
    name = sha256(encode_adapter(adapter))
    opened = StepOpened("train", 1, 1, name, (("w", "a"),), 0.0)
    answers = [AdmittedUpdate("a", Update("w", 8, {"x": delta}))]
    before: Memory = {} if memory is None else memory
    known = (learning, opened, 9, answers, adapter, before, ())
    return learn(*known, is_guarded, down=down)


@given(ROWS, st.lists(ROWS, min_size=1, max_size=4), st.sampled_from(CODED))
def test_a_run_goes_on_from_what_devices_make_of_its_steps(
    first: np.ndarray, deltas: list[np.ndarray], down: str
) -> None:
    adapter, memory, file = {"x": first}, Memory(), encode_adapter({"x": first})
    moved, asked = np.zeros((3, 40)), np.zeros((3, 40))
    for delta in deltas:
        found = learnt(adapter, delta, down, decode_memory(encode_memory(memory)))
        file = add_step(file, found.step)
        assert file == encode_adapter(found.adapter)
        moved += found.adapter["x"].astype(np.float64) - adapter["x"]
        asked += delta
        adapter, memory = found.adapter, found.memory
        left = part_of(memory, LEFT_OUT)["x"]
        np.testing.assert_allclose(moved + left, asked, rtol=0.0, atol=1e-5)


@given(ROWS, ROWS, st.sampled_from(["fedavg", "fedadam"]))
def test_float32_is_what_it_was(first: np.ndarray, delta: np.ndarray, optimizer: str) -> None:
    found = learnt({"x": first}, delta, "float32", learning=Learning(optimizer=optimizer))
    assert found.step == b"" and not part_of(found.memory, LEFT_OUT)
    if optimizer == "fedavg":
        assert not found.memory
        expected = (first.astype(np.float64) + delta).astype(np.float32)
        np.testing.assert_array_equal(found.adapter["x"], expected)


def gaps(learning: Learning) -> dict[str, float]:
    """How far from its target a quadratic is after 200 rounds of one gradient step each, by codec.

    Curvatures are 0.1 to 1, and the farthest number begins 1 away.
    """
    draws, found = np.random.Generator(np.random.PCG64(5)), dict[str, float]()
    curvature = np.linspace(0.1, 1.0, 120, dtype=np.float32).reshape(3, 40)
    target = draws.standard_normal((3, 40)).astype(np.float32)
    target /= np.abs(target).max()
    for down in ("float32", "int8", "int4", "topk:0.1"):
        adapter, memory = {"x": np.zeros((3, 40), np.float32)}, Memory()
        for _ in range(200):
            delta = (0.3 * curvature * (target - adapter["x"])).astype(np.float32)
            after = learnt(adapter, delta, down, memory, learning)
            adapter, memory = after.adapter, after.memory
        found[down] = float(np.abs(adapter["x"] - target).max())
    print({down: f"{gap:.2e}" for down, gap in found.items()})
    return found


@pytest.mark.parametrize("optimizer", ["fedavg", "fedavgm"])
def test_coded_steps_come_as_near_as_whole_ones(optimizer: str) -> None:
    found = gaps(Learning(optimizer=optimizer))
    assert found["float32"] < 3e-3
    for down in ("int8", "int4"):
        assert abs(found[down] - found["float32"]) < 1e-3
    assert found["topk:0.1"] < 0.01


def test_steps_that_whole_ones_just_bear_are_too_long_where_most_is_left_out() -> None:
    """Momentum takes what comes rounds later for a direction; here it steps ten times as far."""
    found = gaps(Learning(optimizer="fedavgm", lr=1.0))
    assert max(found[down] for down in ("float32", "int8", "int4")) < 0.01 < 1 < found["topk:0.1"]


def test_a_step_that_is_not_taken_leaves_what_was_left_out() -> None:
    adapter, huge = {"x": np.zeros((3, 40), np.float32)}, np.full((3, 40), 1e37, np.float32)
    before = learnt(adapter, np.linspace(-1, 1, 120, dtype=np.float32).reshape(3, 40), "int4")
    after = learnt(before.adapter, huge, "int4", before.memory, is_guarded=True)
    assert after.lack and after.step == b"" and after.adapter is before.adapter
    assert encode_memory(after.memory) == encode_memory(before.memory)
    wrong = learnt(before.adapter, np.full((3, 40), np.inf, np.float32), "int4", before.memory)
    assert wrong.lack == "its step cannot be coded: int4 cannot hold NaN or infinity"
    assert encode_memory(wrong.memory) == encode_memory(before.memory)


# The journal


def name(index: int) -> str:
    return f"adapter-{index}"


def closed(state: State, refused: str = "", step_bytes: int = 26) -> State:
    """A round that is closed, with a coded step."""
    index = state.round_index + 1
    state = evolve(state, StepOpened("train", index, 1, state.adapter_sha256, (("w", "a"),), 0.0))
    state = evolve(state, Answered("w", "done", "u", 8, norm=1.0))
    coded = {} if refused else {"step_sha256": f"step-{index}", "step_bytes": step_bytes}
    after = state.adapter_sha256 if refused else name(index)
    event = StepClosed(after, 0.0, refused, **coded)  # type: ignore[arg-type]
    assert decode_event(encode_event(event)) == event
    return evolve(state, event)


def test_the_journal_leads_from_each_of_the_last_adapters_to_the_newest() -> None:
    state = State(name(0))
    for index in range(1, MOST_STEPS + 3):
        state = closed(state, "too long" if index == 4 else "")
    steps = state.kept.steps
    assert len(steps) == MOST_STEPS and steps[-1].start_sha256 == name(MOST_STEPS + 1)
    starts = [step.start_sha256 for step in steps]
    assert name(4) not in starts and starts == [name(i) for i in range(1, 10) if i != 4]
    assert all(step.step_bytes == 26 for step in steps)
    back = evolve(state, RolledBack(3, name(3), "it fell", 0.0))
    assert back.kept.steps == ()
    assert [step.start_sha256 for step in closed(back).kept.steps] == [name(3)]
    assert closed(state, "too long").kept == state.kept  # the adapter stays, so do its steps
    folded = Folded(9, to_plain(state), {}, {})
    assert evolve(State("other"), decode_event(encode_event(folded))) == state


@given(st.lists(st.integers(1, 60), max_size=12), st.integers(0, 200))
def test_steps_are_told_while_they_are_smaller_than_the_adapter(
    sizes: list[int], whole: int
) -> None:
    state = State(name(0))
    for size in sizes:
        state = closed(state, step_bytes=size)
    told, known = state.kept.steps_to(whole), state.kept.steps
    assert told == known[len(known) - len(told) :]
    assert sum(step.step_bytes for step in told) < whole or not told
    if len(told) < len(known):
        assert sum(step.step_bytes for step in known[len(known) - len(told) - 1 :]) >= whole


@pytest.mark.parametrize("down", ["zip8", "auto", "topk:0.9", ""])
def test_a_way_down_that_is_not_a_codec_is_refused_in_one_line(down: str) -> None:
    with pytest.raises(WrongInput, match=r"^down: ") as caught:
        Updates(down=down)
    assert "\n" not in str(caught.value)


def test_where_no_step_can_be_coded_a_run_says_so() -> None:
    updates = Updates(down="int8")
    assert replace(CONFIG, updates=updates).updates.up == "float32"
    with pytest.raises(WrongInput, match="what codecs leave out is of factors"):
        replace(CONFIG, updates=updates, adapter="lora:4", learning=Learning(lora_mean="product"))
    with pytest.raises(WrongInput, match="up and down are float32 alone in asynchronous rounds"):
        replace(CONFIG, updates=updates, asynchronous=Asynchronous())
    stepped = replace(CONFIG, adapter="lora:4", updates=Updates(steps=("sign:1",)))
    with pytest.raises(WrongInput, match="updates: steps are of factors"):
        replace(stepped, learning=Learning(lora_mean="product"))
    with pytest.raises(WrongInput, match="updates: leave steps out in asynchronous rounds"):
        replace(stepped, asynchronous=Asynchronous())

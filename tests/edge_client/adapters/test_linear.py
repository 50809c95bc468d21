"""LoRA written by other numbers: what the papers say of means, and what an engine makes of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.events import StepOpened
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate, learn
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import (
    Exported,
    as_lora,
    read_peft_folder,
    write_peft_folder,
)
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.forms import (
    CORE,
    FORMS,
    LORA_A,
    LORA_B,
    Core,
    first_of,
    is_lora,
    steps_of,
)
from smidgen.edge_client.updates.registry import made, sent_shapes
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.updates.step import DeviceContext, ServerContext
from smidgen.edge_client.wire.tensors import AdapterState, Update, encode_adapter, shapes_of
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from tests.edge_client.engine.engines import KINDS, TEXTS, engine_of

ROWS, COLUMNS, RANK = 6, 5, 3
MODULES = ("q", "v")
SHAPES = {
    **{f"{module}{LORA_A}": (RANK, COLUMNS) for module in MODULES},
    **{f"{module}{LORA_B}": (ROWS, RANK) for module in MODULES},
    "head.weight": (2, 4),
}
WEIGHTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
each_form = pytest.mark.parametrize("form", FORMS)
each_kind = pytest.mark.parametrize("kind", KINDS)


def drawn(seed: int, shapes: Mapping[str, tuple[int, ...]]) -> AdapterState:
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def expanded(form: str, state: AdapterState) -> AdapterState:
    return state if is_lora(form) else Core(SHAPES).expand(state)


def products(lora: AdapterState) -> dict[str, np.ndarray]:
    """B A of each module, float64."""
    return {
        module: lora[module + LORA_B].astype(np.float64) @ lora[module + LORA_A]
        for module in MODULES
    }


def trained_by(form: str, start: AdapterState, seed: int, round_index: int) -> AdapterState:
    """What a device's update changes: all that is trained in a round."""
    shapes = sent_shapes(steps_of(f"lora:2+{form}"), shapes_of(start), round_index)
    return drawn(seed, {name: tuple(shape) for name, shape in shapes.items()})


def round_of(
    form: str, start: AdapterState, deltas: Sequence[AdapterState], weights: Sequence[int], t: int
) -> AdapterState:
    """The adapter after a round of these updates."""
    opened = StepOpened("train", t, 1, "sha", (), 0.0, updates=steps_of(f"lora:2+{form}"))
    answers = [
        AdmittedUpdate(f"d{n}", Update("w", weight, delta), 1.0)
        for n, (delta, weight) in enumerate(zip(deltas, weights, strict=True))
    ]
    return learn(Learning(), opened, 9, answers, start, {}, [], False).adapter


def fedex_residual(locals_: Sequence[AdapterState], weights: Sequence[float]) -> float:
    """The largest entry of FedEx-LoRA's residual (arXiv:2410.09432, equations 7 to 9).

    mean(B_i A_i) - mean(B_i) mean(A_i), which its server adds to the frozen weights.
    """
    share = np.array(weights) / sum(weights)
    found = 0.0
    for module in MODULES:
        a = [one[module + LORA_A].astype(np.float64) for one in locals_]
        b = [one[module + LORA_B].astype(np.float64) for one in locals_]
        mean = sum(p * y @ x for p, x, y in zip(share, a, b, strict=True))
        of_means = sum(p * y for p, y in zip(share, b, strict=True)) @ sum(
            p * x for p, x in zip(share, a, strict=True)
        )
        found = max(found, float(np.abs(mean - of_means).max()))
    return found


@each_form
@given(WEIGHTS, st.integers(0, 99), st.integers(1, 4))
def test_the_product_of_means_is_the_mean_of_products(
    form: str, weights: list[int], seed: int, round_index: int
) -> None:
    """So FedEx-LoRA's residual is nothing; what it would add to the base is in the adapter."""
    lora = drawn(seed, SHAPES)
    start = drawn(seed + 1, shapes_of(first_of(form, lora)))
    deltas = [trained_by(form, start, seed + 2 + n, round_index) for n in range(len(weights))]
    ends = [start | {name: start[name] + one for name, one in delta.items()} for delta in deltas]
    locals_ = [expanded(form, end) for end in ends]
    after = products(expanded(form, round_of(form, start, deltas, weights, round_index)))
    for module in MODULES:
        each = [products(one)[module] for one in locals_]
        wanted = np.average(each, axis=0, weights=weights)
        np.testing.assert_allclose(after[module], wanted, atol=2e-5 * np.abs(each).max())
    assert fedex_residual(locals_, weights) < 1e-4


def test_of_plain_lora_it_is_not() -> None:
    """Which is what FedEx-LoRA adds a residual for, and `lora_mean = product` a decomposition."""
    assert fedex_residual([drawn(1, SHAPES), drawn(2, SHAPES)], [1, 1]) > 0.1


@given(st.integers(0, 99))
def test_gradients_are_pulled_back_by_the_transpose(seed: int) -> None:
    made_ = Core(SHAPES)
    lora = drawn(seed, SHAPES)
    like = shapes_of(made_.first(lora))
    trained, gradients = drawn(seed + 1, like), drawn(seed + 2, SHAPES)
    moved = made_.expand(trained)
    pulled = made_.pull(gradients)
    there = sum(float(np.vdot(gradients[name], one)) for name, one in moved.items())
    here = sum(float(np.vdot(pulled[name], one)) for name, one in trained.items())
    assert here == pytest.approx(there, rel=1e-3, abs=1e-3) and shapes_of(pulled) == like


@pytest.mark.parametrize(
    ("form", "round_index", "trained"),
    [
        *(("ffa", 1, LORA_A), ("ffa", 2, LORA_B), ("ffa", 3, LORA_B)),
        *(("rolora", 1, LORA_A), ("rolora", 2, LORA_B), ("rolora", 3, LORA_A)),
        *(("core", 1, LORA_A), ("core", 2, CORE), ("core", 3, CORE)),
    ],
)
def test_a_begins_and_then_rests_or_takes_turns(form: str, round_index: int, trained: str) -> None:
    (step,) = made(steps_of(f"lora:2+{form}"))
    start = drawn(1, shapes_of(first_of(form, drawn(1, SHAPES))))
    sent = step.outgoing(Update("w", 1, start), DeviceContext(Training(), round_index)).delta
    assert set(sent) == {name for name in start if trained in name or "head" in name}
    after = round_of(form, start, [sent], [1], round_index)
    moved = {name for name in start if (after[name] != start[name]).any()}
    assert moved == (set(start) if round_index == 1 else set(sent))  # L of A = L Q goes to its left


@each_form
@given(st.integers(0, 99))
def test_after_round_1_a_s_rows_are_orthogonal_and_the_model_is_the_same(
    form: str, seed: int
) -> None:
    (step,) = made(steps_of(f"lora:2+{form}"))
    start = drawn(seed, shapes_of(first_of(form, drawn(seed, SHAPES))))
    start |= {name: one / 1000 for name, one in start.items() if name.endswith(LORA_A)}
    after = step.settled(start, ServerContext(Training(), 1))
    wanted = products(expanded(form, start))
    for module, product in products(expanded(form, after)).items():
        a = after[module + LORA_A].astype(np.float64)
        np.testing.assert_allclose(a @ a.T, np.eye(RANK) / 3, atol=1e-6)
        np.testing.assert_allclose(product, wanted[module], atol=1e-5 * np.abs(product).max())
    assert step.settled(start, ServerContext(Training(), 2)) == start


@pytest.mark.parametrize("form", ["ffa", "core"])
def test_an_a_that_nothing_moved_is_drawn(form: str) -> None:
    """Of layers that no device trains; else A would stay zero, and B's gradient with it."""
    (step,) = made(steps_of(f"lora:2+{form}"))
    start = first_of(form, drawn(1, SHAPES))
    for round_index in (1, 2):
        after = step.settled(start, ServerContext(Training(), round_index))
        assert all(after[module + LORA_A].any() for module in MODULES)
        assert not any(one.any() for one in products(expanded(form, after)).values())


def test_rolora_s_a_waits_for_its_next_turn_where_nothing_moved_it() -> None:
    (step,) = made(steps_of("lora:2+rolora"))
    start = first_of("rolora", drawn(1, SHAPES))
    for round_index in (1, 2):  # a drawn A beside a B of zeros would have no gradient in round 3
        assert step.settled(start, ServerContext(Training(), round_index)) == start


def test_the_first_mean_of_a_spans_the_gradient_s_rows() -> None:
    """Of a least squares problem whose solution has rank 2: B alone then reaches it."""
    random = np.random.default_rng(3)
    wanted = random.normal(size=(ROWS, 2)) @ random.normal(size=(2, COLUMNS))
    (step,) = made(steps_of("lora:2+ffa"))
    start = first_of("ffa", drawn(1, {f"q{LORA_A}": (2, COLUMNS), f"q{LORA_B}": (ROWS, 2)}))
    b = start[f"q{LORA_B}"]
    trained = start | {f"q{LORA_A}": (b.T @ wanted).astype(np.float32)}  # a gradient step on A
    a = step.settled(trained, ServerContext(Training(), 1))[f"q{LORA_A}"].astype(np.float64)
    best = wanted @ a.T @ np.linalg.inv(a @ a.T)
    np.testing.assert_allclose(best @ a, wanted, atol=1e-5)


def test_a_server_optimizer_does_not_move_what_rests() -> None:
    learning, memory = Learning(optimizer="fedadam", lr=0.1), dict[str, np.ndarray]()
    state = drawn(1, SHAPES)
    for round_index in (1, 2):
        opened = StepOpened("train", round_index, 1, "s", (), 0.0, updates=("turns:ffa",))
        names, before = sent_shapes(opened.updates, SHAPES, round_index), state
        delta = {name: one for name, one in drawn(2, SHAPES).items() if name in names}
        answers = [AdmittedUpdate("d", Update("w", 1, delta), 1.0)]
        learned = learn(learning, opened, 9, answers, before, memory, [], False)
        state, memory = learned.adapter, learned.memory
    assert all((state[name] == before[name]).all() for name in SHAPES if name.endswith(LORA_A))
    assert all((state[name] != before[name]).any() for name in SHAPES if name.endswith(LORA_B))


def test_numbers_that_no_device_computes_with_are_not_taken_in_round_1() -> None:
    """Their decomposition would raise: the round is told of as any such round is."""
    start = first_of("ffa", drawn(1, SHAPES))
    delta = {name: np.full_like(one, 3e38) for name, one in start.items() if LORA_B not in name}
    opened = StepOpened("train", 1, 1, "s", (), 0.0, updates=("turns:ffa",))
    answers = [AdmittedUpdate("d", Update("w", 1, delta), 1.0)]
    with np.errstate(over="ignore"):
        learned = learn(Learning(lr=10.0), opened, 9, answers, start, {}, [])
    assert learned.adapter is start and "no device can compute with" in learned.lack


def test_what_would_train_or_send_both_factors_is_refused(tiny_base: Base) -> None:
    with pytest.raises(ExperimentError, match=r"down = topk:0\.1: adapter lora:8\+ffa is written"):
        Experiment("e", "ag_news", adapter="lora:8+ffa", updates=Updates(down="topk:0.1"))
    with pytest.raises(AdapterError, match="LoRA's A is not in it"):
        as_lora(parse_adapter("lora:2+ffa"), tiny_base, {f"q{LORA_B}": np.ones((6, 2))})


def test_a_core_is_to_the_right_of_a_drawn_b() -> None:
    """Singhal et al. 2025 (arXiv:2502.15436), equation 6: W = W0 + B R A, R = mean(R_i)."""
    core = Core(SHAPES)
    first = core.first(drawn(1, SHAPES))
    assert first[f"q{CORE}"].shape == (RANK, RANK)
    one = {name: np.eye(*shape, dtype=np.float32) for name, shape in shapes_of(first).items()}
    b = core.expand(one)[f"q{LORA_B}"].astype(np.float64)
    np.testing.assert_allclose(b.T @ b, np.eye(RANK) * (ROWS / RANK) ** 2, atol=1e-5)
    scaled = core.expand({name: 2 * tensor for name, tensor in one.items()})
    np.testing.assert_allclose(scaled[f"q{LORA_B}"], 2 * b, rtol=1e-6)


@each_form
def test_the_adapted_model_starts_as_the_base_itself(tiny_base: Base, form: str) -> None:
    spec = parse_adapter(f"lora:2+{form}")
    state = initial_adapter(spec, tiny_base, 2, seed=7)
    plain, lora = as_lora(spec, tiny_base, state)
    assert str(plain) == "lora:2@q,v"
    assert not any(tensor.any() for name, tensor in lora.items() if name.endswith(LORA_A))
    assert all(tensor.any() for name, tensor in lora.items() if name.endswith(LORA_B))


@pytest.mark.few(3)
@each_kind
@each_form
def test_an_engine_sees_plain_lora(tiny_base: Base, hub_task: Task, kind: str, form: str) -> None:
    """Answers and gradients are LoRA's, the latter pulled back."""
    name = f"lora:2@q,v+{form}"
    engine = engine_of(kind, tiny_base, hub_task, name)
    spec, state = parse_adapter(name), drawn(1, shapes_of(engine.adapter()))
    engine.load_adapter(state)
    plain, lora = as_lora(spec, tiny_base, state)
    other = engine_of(kind, tiny_base, hub_task, str(plain))
    other.load_adapter(lora)
    assert (engine.predict(TEXTS) == other.predict(TEXTS)).all()
    batch = engine.encoder.batch(engine.encoder.prompts(TEXTS))
    (loss, found), (wanted_loss, wanted) = engine.gradients(batch), other.gradients(batch)
    pulled = wanted if is_lora(form) else Core(shapes_of(lora)).pull(wanted)
    assert loss == wanted_loss and shapes_of(found) == shapes_of(state)
    assert all((found[one] == pulled[one]).all() for one in found)


@pytest.mark.few(2)
@each_kind
@pytest.mark.parametrize("form", [name for name in FORMS if not is_lora(name)])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_training_moves_what_is_trained_and_is_repeatable(
    tiny_base: Base, hub_task: Task, kind: str, form: str, optimizer: str
) -> None:
    training = Training(epochs=2, batch=3, lr=0.05, tokens=48, optimizer=optimizer, proximal=0.1)
    engine = engine_of(kind, tiny_base, hub_task, f"lora:2+head+{form}", training=training)
    start, deltas = engine.adapter(), list[AdapterState]()
    for _ in range(2):
        engine.load_adapter(start)
        deltas.append(train(engine, TEXTS, training, seed=1).delta)
    assert encode_adapter(deltas[0]) == encode_adapter(deltas[1])
    assert all(tensor.any() for tensor in deltas[0].values())


@each_form
def test_its_folder_is_lora_s_as_peft_loads_it(
    tiny_base: Base, hub_task: Task, form: str, tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    spec = parse_adapter(f"lora:2+{form}")
    state = drawn(3, shapes_of(initial_adapter(spec, tiny_base, 2, seed=7)))
    origin = Exported(str(spec), "./base", tiny_base.base_id, tiny_base.architecture, hub_task)
    write_peft_folder(folder, origin, encode_adapter(state), base=tiny_base)
    found, lora = read_peft_folder(folder, tiny_base)
    wanted = as_lora(spec, tiny_base, state)[1]
    assert found.adapter == "lora:2@q,v" and set(lora) == set(wanted)
    assert all((lora[name] == tensor).all() for name, tensor in wanted.items())


def test_a_form_is_named_behind_lora() -> None:
    spec = parse_adapter("lora:8@q,v+head+ffa")
    assert (spec.form, spec.head, spec.rank) == ("ffa", True, 8)
    assert parse_adapter(str(spec)) == spec and str(spec) == "lora:8@q,v+head+ffa"
    assert parse_adapter("lora:8+ffa+head") == spec  # in whatever order
    assert steps_of("lora:8+rolora+head") == steps_of("lora:8+head+rolora") != ()
    for wrong in ("prompt:8+ffa", "bias+core", "lora:8+generator+ffa"):
        with pytest.raises(AdapterError, match="is for LoRA"):
            parse_adapter(wrong)
    with pytest.raises(AdapterError, match=r"lora:8\+other' is unknown; did you mean"):
        parse_adapter("lora:8+other")

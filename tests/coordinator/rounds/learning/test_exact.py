from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.learning.exact import (
    WAITING,
    Stack,
    at_rank,
    lora_modules,
    product_mean,
    product_norm,
    product_norm_of,
)
from smidgen.coordinator.rounds.learning.registry import weighted_mean
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState

OUTPUTS, INPUTS, RANK = 7, 5, 4
A, B, HEAD = "m.lora_A.weight", "m.lora_B.weight", "head.bias"
SEEDS = st.integers(0, 2**32 - 1)
WEIGHTS = st.floats(1e-3, 1e6)
ALPHAS = st.floats(0.25, 512.0)
RANKS = st.integers(0, 9)


def normal(seed: int, *shape: int, size: float = 1.0) -> np.ndarray:
    generator = np.random.Generator(np.random.PCG64(seed))
    return (size * generator.standard_normal(shape)).astype(np.float32)


def adapter_of(seed: int, modules: Sequence[str] = ("m",), rank: int = RANK) -> AdapterState:
    """In the form that a run has: after a round in canonical form."""
    state: AdapterState = {HEAD: normal(seed, 3)}
    for index, module in enumerate(modules):
        state[f"{module}.lora_A.weight"] = normal(seed + index, rank, INPUTS)
        state[f"{module}.lora_B.weight"] = normal(seed + index + 99, OUTPUTS, rank)
    update = {name: np.zeros_like(tensor) for name, tensor in state.items()}
    return product_mean([Contribution("d", update, 1.0)], state)[0]


def update_of(adapter: AdapterState, rank: int, seed: int, size: float = 0.1) -> AdapterState:
    """What a device of a rank sends; of rank 0 no module's tensors."""
    delta = {HEAD: normal(seed, 3, size=size)}
    if rank:
        for index, (name, tensor) in enumerate(at_rank(adapter, rank).items()):
            delta[name] = normal(seed + index, *tensor.shape, size=size)
    return delta


def product_of(state: AdapterState, module: str = "m") -> np.ndarray:
    """Scaling apart: what is compared has one alpha."""
    a, b = (state[f"{module}.lora_{part}.weight"].astype(np.float64) for part in "AB")
    return np.asarray(b @ a / len(a))


def after(adapter: AdapterState, delta: AdapterState) -> AdapterState:
    given_ = at_rank(adapter, len(delta[A]))
    return {name: given_[name].astype(np.float64) + delta[name] for name in delta}


def close(one: np.ndarray, other: np.ndarray, share: float = 1e-5) -> bool:
    return bool(np.linalg.norm(one - other) <= share * max(1e-12, float(np.linalg.norm(other))))


@given(st.lists(st.tuples(WEIGHTS, ALPHAS, RANKS, SEEDS), min_size=1, max_size=12))
def test_before_truncation_a_stack_is_the_dense_sum(
    cohort: list[tuple[float, float, int, int]],
) -> None:
    stack, dense = Stack(OUTPUTS, INPUTS), np.zeros((OUTPUTS, INPUTS))
    total = sum(weight for weight, _, rank, _ in cohort if rank)
    for weight, alpha, rank, seed in cohort:
        if rank:
            left, right = normal(seed, OUTPUTS, rank), normal(seed + 1, rank, INPUTS)
            scaled = weight / total * alpha / rank
            stack.add(left, right, scaled)
            dense += scaled * left.astype(np.float64) @ right
    best = stack.best(min(OUTPUTS, INPUTS))
    assert close(best.left * best.sizes @ best.right, dense)
    assert best.lost <= 1e-20 * best.whole
    assert best.whole == pytest.approx(float(np.square(dense).sum()), rel=1e-9, abs=1e-12)


SIDES = st.integers(1, 40)


@given(SIDES, SIDES, st.lists(st.tuples(st.integers(0, 9), SEEDS), max_size=30))
def test_a_stack_holds_no_more_numbers_than_its_sum_and_what_waits_for_it(
    outputs: int, inputs: int, products: list[tuple[int, int]]
) -> None:
    stack, columns = Stack(outputs, inputs), 0
    for rank, seed in products:
        stack.add(normal(seed, outputs, rank), normal(seed + 1, rank, inputs), 1.0)
        columns += rank
        waiting = min(outputs * inputs, WAITING * (outputs + inputs))
        assert stack.numbers <= min(2 * columns * (outputs + inputs), outputs * inputs + waiting)
        assert stack.columns <= columns and stack.columns * (outputs + inputs) <= outputs * inputs


@given(SIDES, SIDES, st.lists(st.tuples(st.integers(1, 9), SEEDS), min_size=1, max_size=30))
def test_multiplied_out_a_stack_is_what_it_was_but_for_rounding(
    outputs: int, inputs: int, products: list[tuple[int, int]]
) -> None:
    stack, lefts, rights = Stack(outputs, inputs), [], []
    for rank, seed in products:
        lefts.append(normal(seed, outputs, rank))
        rights.append(normal(seed + 1, rank, inputs))
        stack.add(lefts[-1], rights[-1], 0.5)
        left = np.concatenate(lefts, axis=1).astype(np.float64) * 0.5
        right = np.concatenate(rights, axis=0).astype(np.float64)
        core = np.linalg.qr(left).R
        other = np.linalg.qr(right.T).R
        sizes = np.linalg.svd(core @ other.T, compute_uv=False)  # of factors, however many
        best = stack.best(rank)
        np.testing.assert_allclose(
            best.sizes[: len(sizes)], sizes[:rank], rtol=1e-12, atol=1e-13 * sizes[0]
        )
        whole = stack.best(min(outputs, inputs))
        assert close(whole.left * whole.sizes @ whole.right, left @ right, 1e-13)
        assert (
            whole.right[np.arange(len(whole.right)), np.abs(whole.right).argmax(axis=1)] >= 0
        ).all()


@given(st.lists(st.tuples(st.integers(1, 9), SEEDS), min_size=1, max_size=12), st.integers(1, 5))
def test_what_is_left_out_is_as_little_as_can_be(cohort: list[tuple[int, int]], rank: int) -> None:
    stack, dense = Stack(OUTPUTS, INPUTS), np.zeros((OUTPUTS, INPUTS))
    for columns, seed in cohort:
        left, right = normal(seed, OUTPUTS, columns), normal(seed + 1, columns, INPUTS)
        stack.add(left, right, 1.0)
        dense += left.astype(np.float64) @ right
        assert stack.columns <= 2 * INPUTS + 9  # it is compressed, however many come
    best, sizes = stack.best(rank), np.linalg.svd(dense, compute_uv=False)
    missed = float(np.square(dense - best.left * best.sizes @ best.right).sum())
    least = float(np.square(sizes[rank:]).sum())
    assert missed == pytest.approx(least, rel=1e-6, abs=1e-18 * best.whole)
    assert best.lost == pytest.approx(least, rel=1e-6, abs=1e-18 * best.whole)


@given(st.lists(st.tuples(WEIGHTS, st.integers(0, RANK), SEEDS), min_size=1, max_size=6), SEEDS)
def test_a_cohort_of_any_ranks_ends_in_the_mean_of_its_changes(
    cohort: list[tuple[float, int, int]], seed: int
) -> None:
    adapter = adapter_of(seed, rank=INPUTS)  # of full rank: nothing is left out
    updates = [(weight, update_of(adapter, rank, one)) for weight, rank, one in cohort]
    told = [Contribution("d", delta, weight) for weight, delta in updates]
    found, lost = product_mean(told, adapter)
    expected = product_of(adapter)
    total = sum(weight for weight, delta in updates if A in delta)
    for weight, delta in updates:
        if A in delta:
            change = product_of(after(adapter, delta)) - product_of(at_rank(adapter, len(delta[A])))
            expected = expected + weight / total * change
    assert close(product_of(found), expected)
    assert lost < 1e-12
    heads = weighted_mean([({HEAD: delta[HEAD]}, weight) for weight, delta in updates])
    expected_head = (adapter[HEAD].astype(np.float64) + heads[HEAD]).astype(np.float32)
    assert np.array_equal(found[HEAD], expected_head)


@given(st.lists(st.tuples(WEIGHTS, SEEDS), min_size=1, max_size=6), SEEDS)
def test_devices_of_the_runs_rank_end_in_the_plain_mean_of_their_products(
    cohort: list[tuple[float, int]], seed: int
) -> None:
    adapter = adapter_of(seed, rank=INPUTS)
    updates = [(weight, update_of(adapter, INPUTS, one)) for weight, one in cohort]
    told = [Contribution("d", delta, weight) for weight, delta in updates]
    found, _ = product_mean(told, adapter)
    total = sum(weight for weight, _ in updates)
    products = [weight / total * product_of(after(adapter, delta)) for weight, delta in updates]
    assert close(product_of(found), np.sum(products, axis=0))


@given(SEEDS, SEEDS, WEIGHTS)
def test_one_device_alone_ends_in_its_own_product(seed: int, one: int, weight: float) -> None:
    adapter = adapter_of(seed)
    delta = update_of(adapter, RANK, one)
    found, lost = product_mean([Contribution("d", delta, weight)], adapter)
    assert close(product_of(found), product_of(after(adapter, delta)))
    assert lost < 1e-12


@given(SEEDS, st.integers(1, RANK - 1), SEEDS)
def test_a_device_of_a_lower_rank_alone_leaves_what_it_was_not_given(
    seed: int, rank: int, one: int
) -> None:
    adapter = adapter_of(seed)
    delta = update_of(adapter, rank, one)
    found, lost = product_mean([Contribution("d", delta, 1.0)], adapter)
    rest = product_of(adapter) - product_of(at_rank(adapter, rank))
    assert close(product_of(found), rest + product_of(after(adapter, delta)))
    assert lost < 1e-12  # two parts of ranks r and R - r


@given(st.lists(st.tuples(WEIGHTS, SEEDS), min_size=1, max_size=6), SEEDS)
def test_of_equal_a_it_is_the_factors_mean_of_b(cohort: list[tuple[float, int]], seed: int) -> None:
    adapter = adapter_of(seed)
    updates = [(update_of(adapter, RANK, one), weight) for weight, one in cohort]
    for delta, _ in updates:
        delta[A] = np.zeros_like(delta[A])
    told = [Contribution("d", delta, weight) for delta, weight in updates]
    found, lost = product_mean(told, adapter)
    mean = weighted_mean(updates)
    expected = {name: adapter[name].astype(np.float64) + mean[name] for name in adapter}
    assert close(product_of(found), product_of(expected))
    assert lost < 1e-12


@given(
    st.lists(st.tuples(WEIGHTS, st.integers(0, RANK), SEEDS), min_size=1, max_size=6), st.randoms()
)
def test_sorted_by_device_the_order_of_arrival_changes_no_byte(cohort, random) -> None:  # type: ignore[no-untyped-def]
    adapter = adapter_of(5, ("m", "n"))
    named = [
        Contribution(f"d{index}", update_of(adapter, rank, seed), weight)
        for index, (weight, rank, seed) in enumerate(cohort)
    ]
    arrived = sorted(random.sample(named, len(named)), key=lambda one: one.device_id)
    (found, lost), again = product_mean(arrived, adapter), product_mean(named, adapter)
    assert lost == again[1]
    for name, tensor in found.items():
        assert tensor.tobytes() == again[0][name].tobytes()
        assert tensor.dtype == np.float32 and tensor.shape == adapter[name].shape


@given(st.lists(st.tuples(SEEDS, st.integers(1, RANK)), min_size=1, max_size=6), SEEDS)
def test_ranks_do_not_grow_and_the_first_components_are_the_best_form(
    cohort: list[tuple[int, int]], seed: int
) -> None:
    adapter = adapter_of(seed)
    for one, rank in cohort:
        updates = update_of(adapter, rank, one), update_of(adapter, RANK, one + 7)
        both = [Contribution("d", updates[0], 1.0), Contribution("e", updates[1], 2.0)]
        adapter, _ = product_mean(both, adapter)
        assert adapter[A].shape == (RANK, INPUTS) and adapter[B].shape == (OUTPUTS, RANK)
    dense = product_of(adapter)
    left, sizes, right = np.linalg.svd(dense)
    for rank in range(1, RANK + 1):
        best = left[:, :rank] * sizes[:rank] @ right[:rank]
        assert close(product_of(at_rank(adapter, rank)), best, 1e-4)


def test_a_module_that_nobody_trained_stays_to_the_byte() -> None:
    adapter = adapter_of(3, ("m", "n"))
    delta = {
        name: one for name, one in update_of(adapter, 2, 1).items() if not name.startswith("n")
    }
    found, _ = product_mean([Contribution("d", delta, 5.0)], adapter)
    assert list(lora_modules(delta)) == ["m"]
    assert all(np.array_equal(found[name], adapter[name]) for name in found if name[0] == "n")
    assert not np.array_equal(found[B], adapter[B])


def test_what_the_rank_leaves_out_is_told() -> None:
    adapter = adapter_of(1, rank=1)
    both = [Contribution("d", update_of(adapter, 1, seed, 3.0), 1.0) for seed in (4, 9)]
    _, lost = product_mean(both, adapter)
    products = [product_of(after(adapter, one.delta)) for one in both]
    sizes = np.square(np.linalg.svd(sum(products), compute_uv=False))
    assert lost == pytest.approx(float(sizes[1:].sum() / sizes.sum()), rel=1e-6)
    assert lost > 0.01


def test_a_fresh_adapter_whose_b_is_zero_stays_able_to_learn() -> None:
    adapter = adapter_of(2) | {B: np.zeros((OUTPUTS, RANK), np.float32)}
    zeros = {name: np.zeros_like(tensor) for name, tensor in adapter.items()}
    found, lost = product_mean([Contribution("d", zeros, 1.0)], adapter)
    assert lost == 0.0 and not found[B].any()
    np.testing.assert_allclose(np.linalg.norm(found[A], axis=1), 3**-0.5, rtol=1e-6)


@given(SEEDS, st.integers(1, RANK), SEEDS, st.floats(1e-6, 10.0))
def test_an_update_is_as_long_as_its_change_to_the_matrices(
    seed: int, rank: int, one: int, size: float
) -> None:
    adapter = adapter_of(seed)
    delta = update_of(adapter, rank, one, size)
    change = product_of(after(adapter, delta)) - product_of(at_rank(adapter, rank))
    expected = np.hypot(16 * np.linalg.norm(change), np.linalg.norm(delta[HEAD]))
    assert product_norm_of(delta, adapter) == pytest.approx(float(expected), rel=1e-5)


@given(SEEDS, st.integers(1, RANK - 1))
def test_an_equal_change_is_equally_long_in_any_rank(seed: int, rank: int) -> None:
    adapter = adapter_of(seed)
    low = {name: np.zeros_like(one) for name, one in at_rank(adapter, rank).items()}
    high = {name: np.zeros_like(one) for name, one in adapter.items()}
    moved = normal(seed, OUTPUTS)
    low[B][:, 0], high[B][:, 0] = moved * rank / RANK, moved
    length = product_norm_of(high, adapter)
    assert product_norm_of(low, adapter) == pytest.approx(length, rel=1e-5)


def test_a_shortened_update_moves_the_matrices_by_its_share() -> None:
    adapter = adapter_of(8, rank=INPUTS)
    delta = update_of(adapter, 2, 3)
    whole, _ = product_mean([Contribution("d", delta, 1.0)], adapter)
    tenth, _ = product_mean([Contribution("d", delta, 1.0, 0.1)], adapter)
    moved = product_of(whole) - product_of(adapter)
    assert close(product_of(tenth) - product_of(adapter), 0.1 * moved, 1e-4)


@pytest.mark.parametrize("weight", [0.0, float("nan")])
def test_a_weight_that_is_not_positive_is_refused(weight: float) -> None:
    adapter = adapter_of(1)
    with pytest.raises(ValueError, match="positive number"):
        product_mean([Contribution("d", update_of(adapter, 2, 1), weight)], adapter)


def test_an_empty_cohort_is_refused() -> None:
    with pytest.raises(ValueError, match="no update"):
        product_mean([], adapter_of(1))


def test_a_product_norm_needs_no_product() -> None:
    left, right = normal(1, 30, 4), normal(2, 4, 20)
    dense = np.linalg.norm(left.astype(np.float64) @ right)
    assert product_norm(left, right) == pytest.approx(float(dense), rel=1e-12)
    assert product_norm(left[:, :0], right[:0]) == 0.0


@given(st.integers(0, 60), st.integers(1, 23), SEEDS)
def test_columns_that_cancel_each_other_are_never_taken_for_shorter(
    large: int, close_by: int, seed: int
) -> None:
    """M (1 - e) v beside -M (1 + e) v leaves e^2 M^2 of M^2, which rounding may swallow whole."""
    generator = np.random.default_rng(seed)
    u, v = (generator.choice([-1.0, 1.0], size) for size in (OUTPUTS, INPUTS))
    most, apart = 2.0**large, 2.0**-close_by
    left = np.stack([most * u, -most * (1.0 + apart) * u], axis=1)
    right = np.stack([most * v, most * (1.0 - apart) * v])
    true = most**2 * apart**2 * (OUTPUTS * INPUTS) ** 0.5
    found = product_norm(left.astype(np.float32), right.astype(np.float32))
    assert 0.9 * true <= found <= 1.1 * true + 1e-13 * most**2 * OUTPUTS * INPUTS

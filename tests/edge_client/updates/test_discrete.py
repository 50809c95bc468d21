"""Whole-number noise: its distribution, what a sum of it hides, and rounding that stays within."""

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from smidgen.coordinator.rounds.learning.unmasking import LostSum
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.updates.discrete import (
    MOST_VARIANCE,
    TAIL,
    Words,
    discrete_gaussians,
    grid_of,
    rounded,
    tau_of,
)
from smidgen.edge_client.updates.masks import Member, Ring
from smidgen.edge_client.updates.secure_sum import SecureSum
from smidgen.edge_client.updates.step import DeviceContext, ServerContext
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import Update
from smidgen.edge_client.wire.training import Training
from tests.edge_client.updates.masked import asked, ring_of, secret_of, unmasked, without

COUNT = 200_000
SHAPES = {"a": (40, 50), "b": (2000,)}
CLIP, MULTIPLIER = 0.5, 0.7


def weights_of(variance: int, reach: int) -> np.ndarray:
    """Exact chances of -reach to reach."""
    places = np.arange(-reach, reach + 1)
    found = np.exp(-(places**2) / (2.0 * variance))
    return np.asarray(found / found.sum())


@pytest.mark.parametrize("variance", [1, 2, 4, 9, 50, 2000, MOST_VARIANCE])
def test_numbers_have_the_moments_and_the_chances_of_a_discrete_gaussian(variance: int) -> None:
    drawn = discrete_gaussians(variance, COUNT, Words(b"key"))
    sigma = math.sqrt(variance)
    assert abs(drawn.mean()) < 4.0 * sigma / math.sqrt(COUNT)
    assert drawn.astype(float).var() == pytest.approx(variance, rel=4.0 * math.sqrt(2.0 / COUNT))
    reach = int(40 * sigma) + 1 if variance <= 2000 else int(7 * sigma)
    exact = weights_of(variance, reach)
    edges = np.unique(np.rint(np.linspace(-4.0, 4.0, 33) * sigma).astype(int))
    expected = [
        exact[low + reach : high + reach].sum() * COUNT
        for low, high in pairwise([-reach, *edges, reach + 1])
    ]
    bounds = [-np.inf, *(edges - 0.5), np.inf]
    found = np.histogram(drawn, bounds)[0]
    chi = sum((a - b) ** 2 / b for a, b in zip(found, expected, strict=True) if b > 5)
    degrees = sum(b > 5 for b in expected) - 1
    assert chi < degrees + 5.0 * math.sqrt(2.0 * degrees)  # one in a million or so


def test_each_value_of_a_narrow_one_comes_as_often_as_it_should() -> None:
    drawn, exact = discrete_gaussians(1, COUNT, Words(b"narrow")), weights_of(1, 9)
    for place in range(-3, 4):
        chance = exact[place + 9]
        error = abs((drawn == place).mean() - chance)
        assert error < 4.5 * math.sqrt(chance * (1 - chance) / COUNT)


def test_numbers_follow_from_the_key_alone_on_every_machine() -> None:
    drawn = discrete_gaussians(50, 70_000, Words(b"key"))
    assert np.array_equal(drawn, discrete_gaussians(50, 70_000, Words(b"key")))
    assert drawn[:8].tolist() == FIRST
    others = discrete_gaussians(50, 70_000, Words(b"kez"))
    assert abs(np.corrcoef(drawn, others)[0, 1]) < 5.0 / math.sqrt(70_000)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 5.0 / math.sqrt(70_000)


FIRST = [16, -14, 5, 18, -2, 2, 8, -9]


@given(st.integers(1, 1 << 60), st.binary(min_size=1, max_size=8))
def test_words_are_below_their_bound(bound: int, key: bytes) -> None:
    drawn = Words(key).below(bound, 50)
    assert drawn.min() >= 0 and drawn.max() < bound


def test_words_are_even() -> None:
    found = np.bincount(Words(b"even").below(7, 70_000))
    assert np.square(found - 10_000).sum() / 10_000 < 6 + 5.0 * math.sqrt(12)


@given(st.integers(1, 400), st.integers(1, 60), st.randoms(use_true_random=False))
def test_a_rounding_is_within_its_length_and_a_step(size: int, steps: int, random: object) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    exact = rng.normal(size=size)
    exact *= steps / np.linalg.norm(exact)
    longest = int(steps * steps + size / 4 + steps + math.sqrt(size) / 2)
    found = rounded(exact, longest, Words(rng.bytes(8)))
    assert int(np.square(found).sum()) <= longest and np.abs(found - exact).max() < 1.0


def test_rounding_is_right_in_the_mean_and_refuses_what_is_longer() -> None:
    exact = np.array([0.3, -0.3, 1.7, -2.0])
    many = np.array([rounded(exact, 1 << 20, Words(b"%d" % one)) for one in range(4000)])
    np.testing.assert_allclose(many.mean(0), exact, atol=0.04)
    with pytest.raises(Failed, match="longer than its clip"):
        rounded(np.full(4, 10.0), 399, Words(b"k"))


@pytest.mark.parametrize("variance", [1, 4])
@pytest.mark.parametrize("devices", [2, 3, 8])
def test_a_sum_hides_a_shift_as_the_theorem_says(devices: int, variance: int) -> None:
    """Renyi divergences of the exact sum and the shifted one, computed by convolution."""
    one = weights_of(variance, 30 * variance)
    total = one
    for _ in range(devices - 1):
        total = np.convolve(total, one)
    shift, tau = 2, tau_of(devices, variance)
    squared = shift**2 / (devices * variance)
    epsilon_squared = min(squared + tau / 2, (math.sqrt(squared) + tau) ** 2)
    inside = total > 1e-200
    for alpha in (1.5, 2.0, 8.0):
        p, q = total[shift:], total[:-shift]
        both = inside[shift:] & inside[:-shift]
        terms = alpha * np.log(p[both]) + (1 - alpha) * np.log(q[both])
        renyi = math.log(np.exp(terms).sum()) / (alpha - 1)
        assert renyi <= alpha * epsilon_squared / 2 * (1 + 1e-9)
        assert renyi > 0.9 * alpha * squared / 2  # and not far below


@given(
    st.sampled_from((7, 127, 32767)),
    st.integers(1, 2_000_000),
    st.floats(0.05, 50.0),
    st.integers(3, 600),
    st.integers(0, 60),
)
def test_a_grid_holds_noise_and_promise_or_is_refused(
    levels: int, numbers: int, multiplier: float, fewest: int, colluding: int
) -> None:
    colluding, devices = min(colluding, fewest - 1), fewest + fewest // 2
    known = levels, numbers, multiplier, fewest, colluding, devices
    try:
        grid = grid_of(*known)
    except WrongInput:
        return
    sharers = fewest - colluding
    for honest in (sharers, devices):
        rho = grid.longest_squared / (honest * grid.variance)
        rho += tau_of(honest, grid.variance) * numbers / 2
        assert rho <= 1.0 / multiplier**2  # as much as one Gaussian of that multiplier
    room = fewest * (levels - grid.steps - 1)
    assert room >= TAIL * math.sqrt(fewest * grid.variance) * (1 - 1e-12)
    assert grid.longest_squared >= grid.steps**2


def test_noise_that_has_no_room_is_refused_in_a_line() -> None:
    with pytest.raises(WrongInput, match="does not fit in 127 levels: take secure_aggregation = i"):
        grid_of(127, 12_288, 2.0, 4, 0, 5)


def noised(ring: Ring, number: int, length: float, bits: str = "int16") -> Update:
    """One device's update, of that length, with its noise and masked."""
    step = SecureSum(bits, repr(CLIP), "1", repr(MULTIPLIER), "3", "8.0", "1e-05")
    step.take(ring.body)
    rng = np.random.default_rng(number)
    delta = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    norm = math.sqrt(sum(float(np.square(one).sum()) for one in delta.values()))
    scaled = {name: (one * (length / norm)).astype(np.float32) for name, one in delta.items()}
    context = DeviceContext(Training(), ring.round_index, None, 0, secret_of(number), ring.run_id)
    return step.outgoing(Update(f"w{number}", 1 + number, scaled), context)


def mean_without_noise(numbers: Iterable[int], length: float) -> np.ndarray:
    found = []
    for number in numbers:
        rng = np.random.default_rng(number)
        flat = np.concatenate([rng.normal(size=SHAPES[name]).ravel() for name in ("a", "b")])
        found.append(flat * (min(length, CLIP) / np.linalg.norm(flat)))
    return np.asarray(np.mean(found, 0))


@pytest.mark.parametrize(("length", "gone"), [(0.2, ()), (5.0, (1, 4))])
def test_a_sum_is_that_of_clipped_updates_and_the_promised_noise(
    length: float, gone: tuple[int, ...]
) -> None:
    ring = ring_of(12)
    updates = without({place: noised(ring, place, length) for place in range(12)}, gone)
    step = SecureSum("int16", repr(CLIP), "1", repr(MULTIPLIER), "3", "8.0", "1e-05")
    found = unmasked(ring, updates, shapes=SHAPES, step=step)
    exact = mean_without_noise([place for place in range(12) if place not in gone], length)
    grid, here = step.grid(12, exact.size), len(updates)
    noise = (found - exact) * here / CLIP * grid.steps / math.sqrt(here * grid.variance)
    assert noise.std() == pytest.approx(1.0, abs=4.0 / math.sqrt(2 * exact.size))
    assert abs(noise.mean()) < 4.0 / math.sqrt(exact.size)
    assert abs(np.corrcoef(noise, exact)[0, 1]) < 5.0 / math.sqrt(exact.size)
    least = MULTIPLIER * CLIP / here  # of the mean, whoever of those promised is left
    honest = step.fewest(12) - step.colluding(12)
    assert math.sqrt(honest * grid.variance) / grid.steps * CLIP / here >= least


def test_a_device_takes_no_masks_off_a_sum_with_less_noise_than_promised() -> None:
    ring = ring_of(12)
    updates = {place: noised(ring, place, 0.2) for place in range(8)}
    member, told = Member(ring, secret_of(0)), asked(ring, 0, updates)
    assert member.answer(told, 8)
    with pytest.raises(WireError, match="an unmasking of 8 updates, the run promises 9"):
        member.answer(told, 9)
    step = SecureSum("int16", repr(CLIP), "1", repr(MULTIPLIER), "9")
    with pytest.raises(LostSum, match="8 updates have less noise than the run promises"):
        unmasked(ring, updates, shapes=SHAPES, step=step)


def test_equal_updates_on_equal_rings_get_equal_noise_and_others_another() -> None:
    ring, later = ring_of(5), ring_of(5, opened_at_s=6.0)
    bodies = [
        (one.coded or {})["y"].tobytes()
        for one in (noised(ring, 1, 0.2), noised(ring, 1, 0.2), noised(later, 1, 0.2))
    ]
    assert bodies[0] == bodies[1] != bodies[2]


def test_nothing_is_kept_from_one_update_to_the_next() -> None:
    step = SecureSum("int16", "0.5", "1", "1.0", "3")
    ring = ring_of(5)
    step.take(ring.body)
    step.state = {"a": np.full(SHAPES["a"], 1e6, np.float32)}  # what another run left out
    context = DeviceContext(Training(), ring.round_index, None, 0, secret_of(0), ring.run_id)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    step.outgoing(Update("w", 1, zeros), context)
    assert not step.counts(Update("w", 1, {}), 0.0, 1.0, ServerContext(Training()))


@pytest.mark.parametrize("wrong", [("int8", "1", "40", "1.0"), ("int8", "1", "1", "-1")])
def test_noise_beside_weights_is_refused(wrong: tuple[str, ...]) -> None:
    with pytest.raises(WrongInput, match="noise is of updates that weigh the same"):
        SecureSum(*wrong)


@pytest.mark.parametrize("min_updates", [3, 30, 100])
def test_enough_devices_bear_the_noise_of_a_ring_of_any_size(min_updates: int) -> None:
    """More than half of the ring, whoever drops out and colludes."""
    step = SecureSum("int16", repr(CLIP), "1", repr(MULTIPLIER), str(min_updates))
    for devices in range(3, 1025):
        fewest, colluding = step.fewest(devices), step.colluding(devices)
        assert 1 <= colluding < fewest and fewest >= min_updates
        assert 2 * (fewest - colluding) >= devices


def test_noise_that_nobody_is_left_to_bear_is_refused() -> None:
    for fewest, colluding in ((31, 31), (31, 50)):
        with pytest.raises(WrongInput, match="no noise is left"):
            grid_of(32767, 1000, MULTIPLIER, fewest, colluding, 500)

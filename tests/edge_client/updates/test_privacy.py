"""Noise of differential privacy: how much, on which grid, how rounds cancel, and when it is new."""

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.learning.registry import WeightedMean
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.updates.privacy import DeviceNoise, bands_of, gaussians
from smidgen.edge_client.updates.step import Contribution, ServerContext, State
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Training

SIZE = 20_000
CLIP = 0.5


def cohort(devices: int, seed: int = 0, size: int = SIZE) -> list[Contribution]:
    """Updates of which some are longer than clip, with weights that are not to count."""
    rng, found = np.random.default_rng(seed), []
    for index in range(devices):
        delta = {
            "b": rng.normal(size=size // 2).astype(np.float32) * np.float32(0.01 * index),
            "a": rng.normal(size=(2, size // 4)).astype(np.float32) * np.float32(0.001),
        }
        norm = math.sqrt(
            sum(float(np.square(one, dtype=np.float64).sum()) for one in delta.values())
        )
        found.append(Contribution(f"d{index}", delta, float(1 + index), norm=norm))
    return found


def rounded(
    given: Iterable[Contribution],
    round_index: int = 1,
    state: State | None = None,
    multiplier: float = 2.0,
    separation: int = 1,
    key: bytes = b"key",
) -> tuple[AdapterState, AdapterState, State]:
    """A round's mean without noise, with it, and the state after it."""
    step = DeviceNoise(repr(CLIP), repr(multiplier), str(separation), "8.0", "1e-05")
    step.state = state or {}
    context = ServerContext(Training(), round_index, key=key)
    mean = WeightedMean().mean(step.incoming(given, context), {})
    return mean, step.finish(mean, context), step.state


def flat(state: AdapterState) -> np.ndarray:
    return np.concatenate([state[name].ravel().astype(np.float64) for name in sorted(state)])


def test_each_update_counts_once_and_is_no_longer_than_clip() -> None:
    given_ones = cohort(4)
    step = DeviceNoise(repr(CLIP), "1.0", "1", "8.0", "1e-05")
    clipped = list(step.incoming(given_ones, ServerContext(Training(), 1)))
    for before, after in zip(given_ones, clipped, strict=True):
        assert after.weight == 1.0 and after.share * before.norm <= CLIP * (1 + 1e-12)
        assert after.share == min(1.0, CLIP / before.norm)
    plain, _, _ = rounded(given_ones)
    means = sum(flat(one.delta) * min(1.0, CLIP / one.norm) for one in given_ones) / 4
    np.testing.assert_allclose(flat(plain), means, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("devices", [1, 4, 25])
def test_noise_is_a_gaussian_of_the_stated_size(devices: int) -> None:
    plain, noised, _ = rounded(cohort(devices))
    noise = (flat(noised) - flat(plain)) / (2.0 * CLIP / devices)
    assert abs(noise.std() - 1.0) < 4.0 / math.sqrt(2 * SIZE)
    assert abs(noise.mean()) < 4.0 / math.sqrt(SIZE)
    assert abs((noise**4).mean() - 3.0) < 4.0 * math.sqrt(96 / SIZE)
    within = [float((np.abs(noise) < sigmas).mean()) for sigmas in (1, 2, 3)]
    assert within == pytest.approx([0.6827, 0.9545, 0.9973], abs=0.012)


def test_sum_and_noise_lie_on_one_grid() -> None:
    """What is added to a mean of zeros and to another differs by that other on the grid alone."""
    devices = cohort(3)
    plain, noised, _ = rounded(devices)
    grid = 2.0 ** math.floor(math.log2(2.0 * CLIP * (1 + 2.0**-20) / 3 * 2.0**-24))
    for name, tensor in noised.items():
        steps = tensor.astype(np.float64) / grid
        is_exact = np.abs(tensor) < grid * 2**23  # where float32 holds the grid
        assert is_exact.any() and np.array_equal(steps[is_exact], np.rint(steps[is_exact]))
        assert tensor.shape == plain[name].shape and tensor.dtype == np.float32


def test_equal_updates_get_equal_noise_and_others_get_noise_of_their_own() -> None:
    first, again = rounded(cohort(3))[1], rounded(cohort(3))[1]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    devices = cohort(3)
    devices[0].delta["a"][0, 0] += np.float32(1e-6)
    noises = [
        flat(noised) - flat(plain)
        for plain, noised, _ in (
            rounded(cohort(3)),
            rounded(devices),
            rounded(cohort(3), round_index=2),
            rounded(cohort(3), key=b"another"),
            rounded(cohort(4)),
        )
    ]
    correlations = np.corrcoef(noises) - np.eye(len(noises))
    assert np.abs(correlations).max() < 5.0 / math.sqrt(SIZE)


def noises_of(separation: int, rounds: int, gap: int = 0) -> np.ndarray:
    """Each round's noise by clip and multiplier, (rounds, SIZE); round `gap` is left out."""
    state: State = {}
    found = []
    for index in range(1, rounds + 1):
        if index == gap:
            continue
        plain, noised, state = rounded(cohort(2, index), index, state, separation=separation)
        found.append((flat(noised) - flat(plain)) / (2.0 * CLIP / 2))
    return np.array(found)


@pytest.mark.parametrize("separation", [1, 2, 4])
def test_noise_through_the_strategy_is_independent_by_round(separation: int) -> None:
    """C n = e: rows of C n have |c| of noise each and do not correlate."""
    rounds, bands = 7, bands_of(separation)
    strategy = sum(c * np.eye(rounds, k=-index) for index, c in enumerate(bands) if index < rounds)
    drawn = np.asarray(strategy) @ noises_of(separation, rounds)
    covariance = drawn @ drawn.T / SIZE
    expected = float(np.square(bands).sum()) * np.eye(rounds)
    np.testing.assert_allclose(covariance, expected, atol=6.0 * expected[0, 0] / math.sqrt(SIZE))


def test_a_sum_over_rounds_has_less_noise_where_devices_rest() -> None:
    rounds = 12
    apart, alone = (np.square(noises_of(one, rounds).sum(0)).mean() for one in (4, 1))
    # Prefix sums of B = A C^-1 have |c|^2 times the squared rows of B.
    bands = bands_of(4)
    strategy = sum(c * np.eye(rounds, k=-index) for index, c in enumerate(bands))
    last = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(np.asarray(strategy))
    expected = float(np.square(bands).sum() * np.square(last[-1]).sum())
    assert apart == pytest.approx(expected, rel=0.05) and alone == pytest.approx(rounds, rel=0.05)
    assert apart < 0.55 * alone


def test_after_a_round_without_an_adapter_noise_begins_anew() -> None:
    noise = noises_of(3, 4, gap=2)
    size = float(np.square(bands_of(3)).sum())
    assert np.square(noise[1]).mean() == pytest.approx(size, rel=0.05)  # nothing is taken off
    assert abs(np.corrcoef(noise[:2])[0, 1]) < 5.0 / math.sqrt(SIZE)


@given(st.integers(1, 6), st.integers(1, 30), st.randoms(use_true_random=False))
def test_a_device_moves_no_more_than_the_account_says(
    separation: int, rounds: int, random: object
) -> None:
    """|C x| <= sqrt(k) |c| for any x of rows no longer than 1, b rounds or more apart."""
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    bands, chosen, index = bands_of(separation), [], int(rng.integers(0, separation))
    while index < rounds:
        chosen.append(index)
        index += separation + int(rng.integers(0, 3))
    moved = np.zeros((rounds, 3))
    for row in chosen:
        way = rng.normal(size=3)
        moved[row] = way / np.linalg.norm(way)
    strategy = np.zeros((rounds, rounds))
    for offset, c in enumerate(bands):
        strategy += c * np.eye(rounds, k=-offset)
    bound = math.sqrt(len(chosen)) * np.linalg.norm(bands)
    assert np.linalg.norm(strategy @ moved) <= bound * (1 + 1e-12)
    assert np.all(np.diff(bands) < 0) and bands[0] == 1.0


def test_numbers_are_normal_to_their_tails() -> None:
    drawn = gaussians(b"tails", 1_000_001)
    assert drawn.shape == (1_000_001,) and np.array_equal(
        drawn[:7], gaussians(b"tails", 1_000_001)[:7]
    )
    assert 4.4 < np.abs(drawn).max() < 6.5 and abs(drawn.mean()) < 0.004
    assert abs(np.corrcoef(drawn[:-1:2], drawn[1::2])[0, 1]) < 0.006


def test_without_a_key_nothing_is_released() -> None:
    step = DeviceNoise("1.0", "1.0", "1", "8.0", "1e-05")
    with pytest.raises(Failed, match="no key"):
        step.finish({"a": np.zeros(3, np.float32)}, ServerContext(Training(), 1))

"""Robust means by their laws: order, range, breakdown, and what one hostile device can do."""

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.learning import robust as cohort_module
from smidgen.coordinator.rounds.learning.registry import Mean, least_of, mean_of
from smidgen.coordinator.rounds.learning.robust import TooFewError, TrimmedMean
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate, contributions
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.updates.clip import Clip, UpdateBounds
from smidgen.edge_client.updates.step import Contribution, ServerContext
from smidgen.edge_client.wire.tensors import AdapterState, Update
from smidgen.edge_client.wire.training import Training

ADAPTER: AdapterState = {"b": np.zeros((2, 2), np.float32), "a": np.zeros(3, np.float32)}
SIZE = 7
ROBUST = ["trimmed:0.2", "trimmed:0.4", "median", "krum:1", "multikrum:1:3", "geometric"]
BY_COORDINATE = ["trimmed:0.2", "trimmed:0.4", "median"]
HUGE = (0.0, 1.0, 1e3, 1e9, 1e18)
SEEDS = st.integers(0, 2**32 - 1)


def rows(seed: int, devices: int, spread: float = 1.0) -> np.ndarray:
    """Honest updates: around a centre of their own."""
    draw = np.random.Generator(np.random.PCG64(seed))
    centre = draw.normal(size=SIZE)
    return np.asarray(centre + spread * draw.normal(size=(devices, SIZE)), np.float32)


def hostile_rows(seed: int, devices: int, size: float, are_together: bool) -> np.ndarray:
    draw = np.random.Generator(np.random.PCG64(seed + 1))
    one = size * draw.normal(size=(1 if are_together else devices, SIZE))
    return np.broadcast_to(one, (devices, SIZE)).astype(np.float32)


def update(name: str, row: np.ndarray) -> Contribution:
    return Contribution(name, {"a": row[:3], "b": row[3:].reshape(2, 2)}, 1.0)


def named(values: np.ndarray) -> list[Contribution]:
    return [update(f"device-{number:03d}", row) for number, row in enumerate(values)]


def flat(state: AdapterState) -> np.ndarray:
    return np.concatenate([state["a"], state["b"].ravel()]).astype(np.float64)


def of(mean: str, values: np.ndarray) -> np.ndarray:
    return flat(mean_of(mean).mean(iter(named(values)), ADAPTER))


def ranges(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)


@given(SEEDS, st.integers(5, 12), st.sampled_from(ROBUST), st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_no_byte(  # type: ignore[no-untyped-def]
    seed, devices, mean, random
) -> None:
    arrived = named(rows(seed, devices))
    shuffled = random.sample(arrived, len(arrived))
    one, other = (mean_of(mean).mean(feed, ADAPTER) for feed in (arrived, shuffled))
    assert list(one) == list(ADAPTER)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@given(SEEDS, st.integers(5, 12), st.sampled_from(ROBUST), st.sampled_from(HUGE))
def test_no_mean_leaves_the_range_of_what_was_sent(
    seed: int, devices: int, mean: str, size: float
) -> None:
    values = np.concatenate([rows(seed, devices), hostile_rows(seed, 2, size, False)])
    low, high = ranges(values)
    found = of(mean, values)
    assert bool((low <= found).all()) and bool((found <= high).all())


@given(SEEDS, st.integers(5, 9), st.sampled_from(ROBUST))
def test_equal_updates_give_that_update(seed: int, devices: int, mean: str) -> None:
    [row] = rows(seed, 1)
    assert np.array_equal(of(mean, np.tile(row, (devices, 1))), row.astype(np.float64))


@given(SEEDS, st.integers(2, 6), st.integers(1, 5), st.sampled_from(HUGE), st.booleans())
def test_fewer_hostile_devices_than_half_keep_the_median_among_the_honest(
    seed: int, honest: int, hostile: int, size: float, are_together: bool
) -> None:
    hostile = min(hostile, honest - 1)
    values = rows(seed, honest)
    low, high = ranges(values)
    found = of("median", np.concatenate([hostile_rows(seed, hostile, size, are_together), values]))
    assert bool((low <= found).all()) and bool((found <= high).all())


@given(SEEDS, st.integers(5, 20), st.sampled_from([0.2, 0.4]), st.sampled_from(HUGE))
def test_as_many_hostile_devices_as_are_left_out_keep_the_trimmed_mean_among_the_honest(
    seed: int, devices: int, share: float, size: float
) -> None:
    hostile = int(share * devices + 1e-9)
    values = rows(seed, devices - hostile)
    low, high = ranges(values)
    everybody = np.concatenate([values, hostile_rows(seed, hostile, size, True)])
    found = of(f"trimmed:{share}", everybody)
    assert bool((low <= found).all()) and bool((found <= high).all())


@given(SEEDS, st.integers(1, 3), st.integers(0, 5), st.sampled_from(HUGE), st.booleans())
def test_krum_chooses_among_the_honest_or_as_near(
    seed: int, hostile: int, more: int, size: float, are_together: bool
) -> None:
    honest = hostile + 3 + more
    values = rows(seed, honest)
    everybody = np.concatenate([hostile_rows(seed, hostile, size, are_together), values])
    apart = np.linalg.norm(values[:, None] - values[None, :], axis=2).max()
    for mean in (f"krum:{hostile}", f"multikrum:{hostile}:{honest}"):
        nearest = np.linalg.norm(of(mean, everybody) - values, axis=1).min()
        assert nearest <= np.sqrt(len(everybody) - hostile - 2) * apart * (1 + 1e-6)


@given(SEEDS, st.integers(2, 9), st.integers(1, 8), st.sampled_from(HUGE), st.booleans())
def test_the_geometric_median_stays_near_the_honest(
    seed: int, honest: int, hostile: int, size: float, are_together: bool
) -> None:
    hostile = min(hostile, honest - 1)
    values = rows(seed, honest)
    centre = values.mean(axis=0)
    radius = np.linalg.norm(values - centre, axis=1).max()
    everybody = np.concatenate([values, hostile_rows(seed, hostile, size, are_together)])
    found = of("geometric", everybody)
    bound = 2.0 * honest / (honest - hostile) * radius
    assert np.linalg.norm(found - centre) <= bound * (1 + 1e-3)


@given(SEEDS, st.integers(3, 9))
def test_the_geometric_median_has_the_smallest_sum_of_distances(seed: int, devices: int) -> None:
    values = rows(seed, devices).astype(np.float64)

    def total(point: np.ndarray) -> float:
        return float(np.linalg.norm(values - point, axis=1).sum())

    found = of("geometric", values)
    best = min(total(one) for one in [values.mean(axis=0), np.median(values, axis=0), *values])
    assert total(found) <= best * (1 + 1e-3)


@given(SEEDS, st.sampled_from(BY_COORDINATE), st.sampled_from([1e3, -1e3, 1e9]))
def test_a_device_that_scales_its_update_moves_a_coordinate_no_further_than_an_honest_one(
    seed: int, mean: str, times: float
) -> None:
    values = rows(seed, 10)
    low, high = ranges(values[:-1])
    least, most = (of(mean, np.concatenate([values[:-1], [row]])) for row in (low, high))
    scaled = of(mean, np.concatenate([values[:-1], values[-1:] * np.float32(times)]))
    assert bool((least <= scaled).all()) and bool((scaled <= most).all())


@given(SEEDS, st.sampled_from(ROBUST), st.sampled_from([1e3, -1e3, "another's", "a twin's"]))
def test_one_hostile_device_moves_no_mean_further_than_the_honest_are_apart(
    seed: int, mean: str, attack: float | str
) -> None:
    """Scaled by 1,000; the update to quite another adapter; the same as another device's."""
    values = rows(seed, 10)
    without = of(mean, values[:-1])
    sent = values[0] if attack == "a twin's" else 50.0 * rows(seed + 7, 1)[0]
    if not isinstance(attack, str):
        sent = values[-1] * attack
    found = of(mean, np.concatenate([values[:-1], [sent]]).astype(np.float32))
    apart = np.linalg.norm(values[:-1, None] - values[None, :-1], axis=2).max()
    assert np.linalg.norm(found - without) <= apart


def test_it_moves_the_weighted_mean_as_far_as_it_likes() -> None:
    values = rows(0, 10)
    scaled = np.concatenate([values[:-1], values[-1:] * np.float32(1000)])
    assert np.linalg.norm(of("fedavg", scaled) - of("fedavg", values)) > 50.0


def test_another_run_s_update_is_refused() -> None:
    other = Contribution("b", {"a": np.zeros(4, np.float32), "b": ADAPTER["b"]}, 1.0)
    for said, one in (
        ("shapes", other),
        ("not in both", replace(other, delta={"c": ADAPTER["a"]})),
    ):
        with pytest.raises(ValueError, match=said):
            mean_of("median").mean([*named(rows(0, 3)), one], ADAPTER)


@pytest.mark.parametrize("mean", ROBUST)
def test_what_a_device_claims_to_hold_does_not_count(mean: str) -> None:
    honest = named(rows(3, 6))
    liar = replace(honest[0], weight=1e9)
    one = mean_of(mean).mean(honest, ADAPTER)
    other = mean_of(mean).mean([liar, *honest[1:]], ADAPTER)
    assert np.array_equal(flat(one), flat(other))


@pytest.mark.parametrize("mean", ROBUST)
def test_a_mean_comes_after_the_norm_bound(mean: str) -> None:
    values = rows(5, 7)
    values[2] *= 1000
    answers = [
        AdmittedUpdate(one.device_id, Update("w", 1, dict(one.delta))) for one in named(values)
    ]
    context = ServerContext(Training())
    clipped = Clip(UpdateBounds(2.0)).incoming(contributions(answers), context)
    found = flat(mean_of(mean).mean(clipped, ADAPTER))
    short = values.astype(np.float64)
    short *= np.minimum(1.0, 2.0 / np.linalg.norm(short, axis=1))[:, None]
    np.testing.assert_allclose(found, of(mean, short.astype(np.float32)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mean", ROBUST)
def test_columns_come_in_blocks(mean: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of(mean, rows(1, 9))
    monkeypatch.setattr(cohort_module, "BLOCK_BYTES", 8 * 9 * 2)  # two columns at a time
    np.testing.assert_allclose(of(mean, rows(1, 9)), whole, rtol=1e-6)


@pytest.mark.parametrize("mean", ["trimmed:0.2", "median", "krum:1", "multikrum:1:3", "geometric"])
def test_what_is_held_is_what_is_promised(mean: str) -> None:
    """At most 32 MiB, and 12 bytes for each number of the adapter; whatever the cohort."""
    numbers, devices = 400_000, 40
    adapter = {"w": np.zeros(numbers, np.float32)}

    def arriving() -> Iterator[Contribution]:
        draw = np.random.default_rng(0)
        for index in range(devices):
            delta = {"w": draw.random(numbers, np.float32)}
            yield Contribution(f"d{index:02d}", delta, 1.0)

    tracemalloc.start()
    try:
        mean_of(mean).mean(arriving(), adapter)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held <= (32 << 20) + 12 * numbers


@pytest.mark.parametrize(
    ("mean", "least"),
    [
        ("fedavg", 1),
        ("median", 3),
        ("geometric", 3),
        ("trimmed:0.2", 5),
        ("trimmed:0.34", 3),
        ("trimmed:0.01", 100),
        ("krum:2", 7),
        ("multikrum:2:9", 11),
    ],
)
def test_a_cohort_too_small_for_its_promise_is_one_line(mean: str, least: int) -> None:
    assert least_of(mean) == least
    of(mean, rows(0, least))
    if least > 1:
        said = f"^mean {mean} needs {least} updates or more, {least - 1} came$"
        with pytest.raises(TooFewError, match=said):
            of(mean, rows(0, least - 1))


@pytest.mark.parametrize("mean", ["fedavg", *ROBUST])
def test_nobody_is_no_cohort(mean: str) -> None:
    with pytest.raises(ValueError, match="no update"):
        mean_of(mean).mean([], ADAPTER)


@pytest.mark.parametrize(
    ("mean", "said"),
    [
        ("trimmed", "trimmed:SHARE is expected"),
        ("trimmed:a", "trimmed:SHARE is expected"),
        ("trimmed:0.5", "below 0.5"),
        ("trimmed:nan", "below 0.5"),
        ("krum:0", "1 hostile device or more"),
        ("krum:1.5", "krum:F is expected"),
        ("multikrum:1:0", "1 chosen update or more"),
        ("median:3", "median is expected"),
    ],
)
def test_a_mean_that_is_not_written_so_is_named(mean: str, said: str) -> None:
    with pytest.raises(WrongInput, match=said):
        mean_of(mean)


def test_the_weighted_mean_still_streams() -> None:
    one: Mean = mean_of("fedavg")
    feed: Sequence[Contribution] = named(rows(0, 3))
    assert set(one.mean(iter(feed), ADAPTER)) == set(ADAPTER)


@given(SEEDS, st.integers(3, 40), st.floats(0.499, 0.5, exclude_max=True))
def test_a_share_next_to_a_half_leaves_the_middle(seed: int, devices: int, share: float) -> None:
    trimmed = TrimmedMean(share)
    assert devices - 2 * trimmed.cut(devices) >= 1
    values = rows(seed, devices)
    if devices >= trimmed.least:
        assert np.isfinite(of(f"trimmed:{share!r}", values)).all()

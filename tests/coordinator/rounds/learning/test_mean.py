import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from smidgen.coordinator.rounds.learning.optimizers import apply_delta
from smidgen.coordinator.rounds.learning.registry import weighted_mean
from smidgen.edge_client.wire.tensors import AdapterState

FLOATS = st.floats(-100, 100, width=32)
DELTAS = st.builds(
    lambda a, b: {"a": a, "b": b}, arrays(np.float32, (2, 3), elements=FLOATS),
    arrays(np.float32, (4,), elements=FLOATS),
)  # fmt: skip
WEIGHTS = st.integers(1, 10_000)
COHORTS = st.lists(st.tuples(DELTAS, WEIGHTS), min_size=1, max_size=6)
Cohort = list[tuple[AdapterState, int]]


def assert_close(one: AdapterState, other: AdapterState) -> None:
    for name in one:
        # one float32 rounding of values up to 100
        np.testing.assert_allclose(one[name], other[name], rtol=3e-7, atol=1e-5)


@given(DELTAS, WEIGHTS)
def test_one_client_gives_its_own_delta(delta: AdapterState, weight: int) -> None:
    mean = weighted_mean([(delta, weight)])
    assert all(np.array_equal(mean[name], delta[name]) for name in delta)


@given(COHORTS, st.sampled_from([2.0, 0.5, 1024.0]))
def test_only_ratios_of_weights_matter(cohort: Cohort, factor: float) -> None:
    scaled = [(delta, factor * weight) for delta, weight in cohort]
    assert_close(weighted_mean(cohort), weighted_mean(scaled))


@given(COHORTS, COHORTS)
def test_a_split_cohort_has_the_same_mean(left: Cohort, right: Cohort) -> None:
    parts = [(weighted_mean(part), float(sum(w for _, w in part))) for part in (left, right)]
    assert_close(weighted_mean(left + right), weighted_mean(parts))


@given(COHORTS, st.randoms())
def test_a_sorted_feed_forgets_the_order_of_arrival(cohort, random) -> None:  # type: ignore[no-untyped-def]
    named = list(enumerate(cohort))
    arrived = random.sample(named, len(named))
    mean = weighted_mean(update for _, update in sorted(arrived, key=lambda pair: pair[0]))
    expected = weighted_mean(cohort)
    assert all(mean[name].tobytes() == expected[name].tobytes() for name in mean)


def test_the_mean_is_float32_and_applied_as_such() -> None:
    adapter = {"a": np.array([1, 2], np.float32)}
    mean = weighted_mean([({"a": np.array([1, 0], np.float32)}, 3), ({"a": np.zeros(2)}, 1)])
    after = apply_delta(adapter, mean)["a"]
    assert after.dtype == np.float32 and after.tolist() == [1.75, 2.0]


def test_updates_are_read_one_at_a_time() -> None:
    alive: list[int] = []

    class Counted(dict[str, np.ndarray]):
        def __del__(self) -> None:
            alive.pop()

    def stream():  # type: ignore[no-untyped-def]
        for _ in range(20):
            alive.append(1)
            assert len(alive) <= 2
            yield Counted(a=np.ones(3, np.float32)), 1.0

    weighted_mean(stream())


@pytest.mark.parametrize(
    ("cohort", "said"),
    [
        ([], "no update"),
        ([({"a": np.zeros(2)}, 0)], "positive number"),
        ([({"a": np.zeros(2)}, float("nan"))], "positive number"),
        ([({"a": np.zeros(2)}, 1), ({"b": np.zeros(2)}, 1)], "'a' is not in every"),
        ([({"a": np.zeros(2)}, 1), ({"a": np.zeros(3)}, 1)], "shapes"),
    ],
)
def test_a_cohort_that_disagrees_is_refused(cohort: Cohort, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        weighted_mean(cohort)


def test_an_adapter_of_other_names_is_refused() -> None:
    with pytest.raises(ValueError, match="'b' is not in both"):
        apply_delta({"a": np.zeros(1)}, {"a": np.zeros(1), "b": np.zeros(1)})

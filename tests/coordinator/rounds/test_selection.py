from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.selection import (
    candidates,
    cohort,
    cohort_size,
    drawn,
    evaluators,
    labellers,
)
from smidgen.edge_client.wire.tensors import derive_seed

IDS = st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=30)
FRACTIONS = st.floats(min_value=0.01, max_value=1.0)


@given(IDS, FRACTIONS, st.text(), st.randoms())
def test_the_order_of_devices_is_no_matter(ids, fraction, secret, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(ids, len(ids))
    assert cohort(ids, fraction, secret, 1, 1) == cohort(shuffled, fraction, secret, 1, 1)


@given(IDS, FRACTIONS, st.integers(1, 100))
def test_a_cohort_has_its_size_and_nobody_twice(
    ids: list[str], fraction: float, round_index: int
) -> None:
    chosen = cohort(ids, fraction, "7", round_index, 1)
    assert len(set(chosen)) == len(chosen) == cohort_size(fraction, len(ids))
    assert set(chosen) <= set(ids) and list(chosen) == sorted(chosen)


def test_the_size_is_the_floor_that_a_person_computes() -> None:
    assert [cohort_size(c, k) for c, k in ((0.29, 100), (0.5, 5), (0.1, 3), (1.0, 4))] == [
        29,
        2,
        1,
        4,
    ]


def test_rounds_and_attempts_draw_anew() -> None:
    ids = [f"device-{number}" for number in range(40)]
    draws = {cohort(ids, 0.25, "0", index, attempt) for index in range(1, 6) for attempt in (1, 2)}
    assert len(draws) == 10


def test_another_secret_draws_others() -> None:
    """Who knows the seed and may choose his id cannot foresee where it is drawn."""
    ids = [f"device-{number}" for number in range(40)]
    draws = [
        {draw(secret) for secret in ("one", "another", "a third")}
        for draw in (
            lambda secret: cohort(ids, 0.25, secret, 1, 1),
            lambda secret: labellers(ids, 10, secret, 1),
            lambda secret: evaluators(ids, (), 10, secret, 1, 1),
        )
    ]
    assert [len(found) for found in draws] == [3, 3, 3]


def test_every_device_has_its_turn() -> None:
    ids = [f"device-{number}" for number in range(10)]
    chosen = [name for index in range(1, 201) for name in cohort(ids, 0.2, "3", index, 1)]
    assert all(20 < chosen.count(name) < 60 for name in ids)  # 40 expected


def test_nobody_there_is_an_empty_cohort() -> None:
    assert cohort([], 0.5, "0", 1, 1) == ()


@given(IDS, FRACTIONS, st.integers(1, 40))
def test_a_cap_keeps_a_part_of_the_same_cohort(ids: list[str], fraction: float, most: int) -> None:
    free, capped = cohort(ids, fraction, "7", 1, 1), cohort(ids, fraction, "7", 1, 1, most)
    assert set(capped) <= set(free) and len(capped) == min(most, len(free))


@given(IDS, st.integers(0, 40), st.randoms())
def test_labellers_are_a_number_in_any_order(ids, infer_clients, random) -> None:  # type: ignore[no-untyped-def]
    chosen = labellers(ids, infer_clients, "7", 3)
    assert chosen == labellers(random.sample(ids, len(ids)), infer_clients, "7", 3)
    assert len(set(chosen)) == min(infer_clients or len(ids), len(ids)) and set(chosen) <= set(ids)


def test_labellers_are_drawn_anew_and_not_as_the_cohort_is() -> None:
    ids = [f"device-{number}" for number in range(40)]
    draws = [labellers(ids, 10, "0", index) for index in range(1, 6)]
    draws += [cohort(ids, 0.25, "0", index, 1) for index in range(1, 6)]
    assert len(set(draws)) == 10


def test_who_has_no_text_to_train_on_is_no_candidate() -> None:
    assert candidates(["a", "b", "c"], {"a": 0, "b": 3, "gone": 0}, {}, ()) == ["b", "c"]


@given(IDS, st.integers(0, 40), st.text())
def test_whoever_has_the_smallest_hashes_is_drawn(ids: list[str], size: int, secret: str) -> None:
    by_hash = sorted(ids, key=lambda name: (derive_seed(secret, "cohort", 1, name), name))
    assert drawn(ids, size, secret, "cohort", 1) == tuple(sorted(by_hash[:size]))

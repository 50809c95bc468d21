"""Which texts a round draws: how many, which, and what the draw may hang on."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.labelling.pseudo_labels import capped, evaluated, sampled, share_of
from smidgen.edge_client.wire.tensors import derive_seed
from smidgen.edge_client.wire.training import Training

TEXTS, SEEDS = st.integers(1, 400), st.integers(0, 2**62)
TRAININGS = st.builds(
    Training, least_samples=st.integers(1, 300), sample_share=st.sampled_from([0.0, 0.25, 1.0])
)
RECIPE = Training(least_samples=500, sample_share=0.8e-4)


def test_of_a_class_that_is_capped_gold_labels_are_drawn_first() -> None:
    labels = ["a"] * 4 + ["b"] + ["a"] * 40 + ["b"]  # five gold ones, then pseudo-labels
    for seed in range(5):
        rows = capped(labels, 5, 8, seed)
        assert rows[:5] == [0, 1, 2, 3, 4] and rows[-1] == 45 and len(rows) == 10
        assert rows == capped(labels, 5, 8, seed)
    assert len({tuple(capped(labels, 5, 8, seed)) for seed in range(5)}) > 1
    assert capped(labels, 5, 0, 1) == list(range(46))


@given(TEXTS, TRAININGS, SEEDS)
def test_a_draw_is_as_large_as_the_run_says_and_of_texts_that_are_there(
    texts: int, training: Training, seed: int
) -> None:
    rows = sampled(texts, training, seed)
    most = max(training.least_samples, round(training.sample_share * texts))
    assert len(rows) == training.samples_of(texts) == most
    assert set(rows) <= set(range(texts)) and rows == sorted(rows)
    assert rows == sampled(texts, training, seed)


@given(TEXTS, SEEDS)
def test_without_a_draw_every_text_comes_once(texts: int, seed: int) -> None:
    assert sampled(texts, Training(), seed) == list(range(texts))
    assert Training().samples_of(texts) == texts


def test_who_holds_no_text_draws_none() -> None:
    assert sampled(0, RECIPE, 7) == evaluated(0, 0.1, 7) == []


@given(st.permutations([(name, index) for name in "abc" for index in (1, 2, 3)]), SEEDS)
def test_neither_the_order_of_devices_nor_other_rounds_have_a_say(
    order: list[tuple[str, int]], root: int
) -> None:
    seeds = {one: derive_seed(root, "train", *one) for one in order}
    drawn = {one: tuple(sampled(40, RECIPE, seed)) for one, seed in seeds.items()}
    again = {one: tuple(sampled(40, RECIPE, seeds[one])) for one in sorted(order)}
    assert drawn == again and len(set(drawn.values())) == 9  # each device and round anew


def test_a_small_device_repeats_its_texts_about_evenly() -> None:
    times = Counter(row for seed in range(20) for row in sampled(10, RECIPE, seed))
    assert sum(times.values()) == 20 * 500
    assert all(abs(count - 1000) < 200 for count in times.values())  # six standard deviations


def test_the_largest_device_of_the_paper_is_throttled_and_no_other() -> None:
    assert RECIPE.samples_of(132_500_000) == 10_600
    assert RECIPE.samples_of(6_250_000) == RECIPE.samples_of(1) == 500


@given(TEXTS, st.floats(0.001, 1.0), SEEDS)
def test_a_share_of_the_tests_holds_none_twice(texts: int, share: float, seed: int) -> None:
    rows = evaluated(texts, share, seed)
    assert len(rows) == share_of(texts, share) == max(1, round(share * texts))
    assert set(rows) <= set(range(texts)) and rows == sorted(set(rows))
    assert rows == evaluated(texts, share, seed) and evaluated(texts, 1.0, seed) == list(
        range(texts)
    )


def test_each_round_evaluates_on_others() -> None:
    assert len({tuple(evaluated(100, 0.1, seed)) for seed in range(5)}) == 5

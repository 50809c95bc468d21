"""Counts and thresholds against the readings they stand for, one by one."""

from dataclasses import replace
from itertools import chain
from math import ceil, exp, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.bounds import FEWEST, next_most_examples
from smidgen.coordinator.rounds.scoring import class_thresholds
from smidgen.edge_client.wire.reports import (
    BINS,
    STARTS,
    Confidences,
    as_bin,
    bin_above,
    bin_of,
    counted,
)
from smidgen.edge_client.wire.training import Labelling, share_of

Pairs = list[tuple[int, float]]  # most probable label and its confidence, by text read
LABELS = ("a", "b", "c")
HIGHEST = STARTS[-1]
SURE = (
    st.floats(0.0, 1.0)
    | st.floats(-1.0, 14.0).map(lambda odds: 1.0 / (1.0 + exp(-odds)))
    | st.sampled_from(STARTS)
)
PAIRS = st.lists(st.tuples(st.integers(0, 2), SURE), max_size=20)


def is_alike(devices: list[Pairs]) -> bool:
    """Whether every text counts: no device is bounded as one is that claims too many."""
    sizes = [len(pairs) for pairs in devices if pairs]
    return len(sizes) < FEWEST or max(sizes) <= next_most_examples(sizes)


DEVICES = st.lists(PAIRS, max_size=5).filter(is_alike)
SHARES = st.floats(1e-3, 1.0)
LEAST = st.floats(0.5, 0.99)
LABELLINGS = st.builds(
    Labelling,
    confidence=LEAST,
    confidences=st.dictionaries(st.sampled_from(LABELS), LEAST),
    class_floor=LEAST,
)


def told(pairs: Pairs, unread: int = 0) -> Confidences:
    """What a device says that read these texts and holds others."""
    labels, confidences = [label for label, _ in pairs], [sure for _, sure in pairs]
    return counted(len(pairs) + unread, labels, confidences, len(LABELS))


def thresholds(devices: list[Pairs], labelling: Labelling, share: float) -> tuple[float, ...]:
    return class_thresholds(map(told, devices), labelling, LABELS, share)


def held(devices: list[Pairs], label: int, least: float) -> int:
    """Texts of a label at least so sure, read by read."""
    return sum(sure >= least for pairs in devices for one, sure in pairs if one == label)


def quota_of(devices: list[Pairs], labelling: Labelling, share: float) -> int:
    texts = sum(map(len, devices))
    sure = [held(devices, row, as_bin(labelling.least(label))) for row, label in enumerate(LABELS)]
    first, grown = (
        ceil(share_of(part, texts) / len(LABELS)) for part in (labelling.keep_first, share)
    )
    return max(min(first, grown), min(grown, max(sure)))


@given(PAIRS, st.integers(0, 9))
def test_counts_add_up(pairs: Pairs, unread: int) -> None:
    said = told(pairs, unread)
    assert said.texts == len(pairs) + unread
    for label, row in enumerate(said.counts):
        assert sum(row) == held([pairs], label, 0.5)


@given(SURE)
def test_a_bin_holds_what_lies_between_its_start_and_the_next(sure: float) -> None:
    found = bin_of(sure)
    assert (found == -1) == (sure < 0.5)
    assert sure < 0.5 or STARTS[found] <= sure
    assert found == BINS - 1 or sure < STARTS[found + 1]


@given(SURE.filter(lambda sure: sure <= HIGHEST))
def test_a_threshold_moves_up_by_less_than_a_bin(sure: float) -> None:
    moved = as_bin(sure)
    assert moved in STARTS and moved >= sure and as_bin(moved) == moved
    assert bin_above(moved) == 0 or STARTS[bin_above(moved) - 1] < sure


def test_a_confidence_that_is_no_number_is_in_no_bin() -> None:
    assert bin_of(nan) == -1 and told([(0, nan)]) == told([], unread=1)


def test_a_threshold_beyond_the_last_bin_is_its_start() -> None:
    assert as_bin(0.999999) == HIGHEST > 0.99999


@given(PAIRS, st.tuples(*[st.sampled_from(STARTS)] * 3))
def test_sure_counts_as_the_readings_do(pairs: Pairs, least: tuple[float, ...]) -> None:
    assert told(pairs).sure(least) == sum(sure >= least[label] for label, sure in pairs)


@given(DEVICES, LABELLINGS, SHARES)
def test_thresholds_are_starts_of_bins(
    devices: list[Pairs], labelling: Labelling, share: float
) -> None:
    found = thresholds(devices, labelling, share)
    assert len(found) == len(LABELS) and set(found) <= set(STARTS)


@given(DEVICES, LABELLINGS, SHARES, SHARES)
def test_a_higher_share_raises_no_threshold(
    devices: list[Pairs], labelling: Labelling, one: float, two: float
) -> None:
    low, high = sorted((one, two))
    more, fewer = thresholds(devices, labelling, high), thresholds(devices, labelling, low)
    assert all(a <= b for a, b in zip(more, fewer, strict=True))


@given(DEVICES, LABELLINGS, SHARES)
def test_a_class_with_its_quota_above_the_floor_is_held_as_often(
    devices: list[Pairs], labelling: Labelling, share: float
) -> None:
    quota = quota_of(devices, labelling, share)
    for label, least in enumerate(thresholds(devices, labelling, share)):
        floor = min(as_bin(labelling.class_floor), as_bin(labelling.least(LABELS[label])))
        if held(devices, label, floor) >= quota:
            assert held(devices, label, least) >= quota
        else:
            assert least == floor


@given(DEVICES, LABELLINGS, SHARES)
def test_no_class_is_held_more_often_than_it_must_be(
    devices: list[Pairs], labelling: Labelling, share: float
) -> None:
    quota = quota_of(devices, labelling, share)
    for label, least in enumerate(thresholds(devices, labelling, share)):
        higher = STARTS.index(least) + 1
        above = held(devices, label, STARTS[higher]) if higher < BINS else 0
        assert above < quota or quota == 0


@given(DEVICES, LABELLINGS, SHARES)
def test_no_class_falls_below_the_floor(
    devices: list[Pairs], labelling: Labelling, share: float
) -> None:
    for label, least in zip(LABELS, thresholds(devices, labelling, share), strict=True):
        assert least >= min(labelling.class_floor, labelling.least(label))


@given(DEVICES, LEAST, SHARES)
def test_a_floor_as_high_as_the_confidence_lets_no_class_fall(
    devices: list[Pairs], confidence: float, share: float
) -> None:
    labelling = Labelling(confidence=confidence, class_floor=confidence)
    assert min(thresholds(devices, labelling, share)) >= confidence


@given(DEVICES, LABELLINGS, SHARES, st.data())
def test_the_order_and_the_number_of_devices_is_no_matter(
    devices: list[Pairs], labelling: Labelling, share: float, data: st.DataObject
) -> None:
    found = thresholds(devices, labelling, share)
    assert thresholds(data.draw(st.permutations(devices)), labelling, share) == found
    assert thresholds([list(chain.from_iterable(devices))], labelling, share) == found


@given(LABELLINGS, SHARES, st.integers(0, 3))
def test_where_nobody_is_sure_a_class_falls_to_its_floor(
    labelling: Labelling, share: float, devices: int
) -> None:
    expected = tuple(as_bin(labelling.least(label)) for label in LABELS)
    assert thresholds([], labelling, share) == expected
    floors = tuple(min(as_bin(labelling.class_floor), least) for least in expected)
    unsure = thresholds([[(0, 0.4), (1, 0.49)]] * devices, labelling, share)
    assert unsure == (floors if devices else expected)


def test_a_first_share_is_kept_though_nobody_is_sure() -> None:
    """100 texts: no model is as sure of any as asked; the surest tenth is a start."""
    pairs: Pairs = [(row % 3, 0.55 + row / 500) for row in range(100)]
    found = thresholds([pairs], Labelling(keep_first=0.1, confidence=0.9), 0.5)
    assert all(4 <= held([pairs], row, least) <= 20 for row, least in enumerate(found))


def test_the_thresholds_that_a_person_computes() -> None:
    """90 texts: of `a` 30 are very sure, of `b` 20 less so, of `c` 5 hardly and none more."""
    sure: Pairs = [(0, 0.99)] * 30 + [(1, 0.8)] * 20 + [(2, 0.6)] * 5
    said = [told(sure, unread=35)]
    labelling = Labelling(confidence=0.9, class_floor=0.5)

    def bins(share: float, labelling: Labelling = labelling) -> list[int]:
        return [STARTS.index(least) for least in class_thresholds(said, labelling, LABELS, share)]

    above = [bin_of(0.99), bin_of(0.8), bin_of(0.6)]
    assert bins(0.1) == bins(5 / 30) == above  # 3 and 5 per class
    assert bins(0.3) == [*above[:2], 0]  # 9: of c all above the floor
    assert bins(1.0) == [above[0], 0, 0]  # as many as a has, 30, which nobody else reaches
    assert bins(0.1, replace(labelling, class_floor=0.9)) == [above[0], *[bin_above(0.9)] * 2]


@pytest.mark.parametrize(
    ("texts", "row", "said"),
    [
        (1, (0,) * (BINS - 1), "40 counts per label"),
        (1, (0,) * (BINS + 1), "40 counts per label"),
        (1, (), "40 counts per label"),
        (-1, (0,) * BINS, "not between 0 and"),
        (1, (-1, *(0,) * (BINS - 1)), "not between 0 and"),
        (2**53, (0,) * BINS, "not between 0 and"),
        (1, (2**53, *(0,) * (BINS - 1)), "not between 0 and"),
    ],
)
def test_counts_that_cannot_be_are_refused(texts: int, row: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Confidences(texts, (row,))

from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.wire.training import Labelling, keep_in, keep_of

KEEPS = st.floats(1e-6, 1.0)
TEXTS = st.integers(0, 10**6)


@given(KEEPS, KEEPS, st.integers(2, 60))
def test_k_goes_from_the_first_to_the_last(first: float, last: float, rounds: int) -> None:
    labelling = Labelling(keep_first=first, keep_last=last)
    kept = [keep_in(labelling, index, rounds) for index in range(1, rounds + 1)]
    assert kept[0] == first and kept[-1] == last
    assert kept == sorted(kept, reverse=first > last)


@given(KEEPS, KEEPS, st.integers(2, 60), st.data())
def test_k_is_linear(first: float, last: float, rounds: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(1, rounds))
    kept = keep_in(Labelling(keep_first=first, keep_last=last), index, rounds)
    exact = (first * (rounds - index) + last * (index - 1)) / (rounds - 1)
    assert kept == pytest.approx(exact, rel=1e-9)


def test_one_round_keeps_the_last_k() -> None:
    assert keep_in(Labelling(), 1, 1) == 0.5


def test_the_curriculum_that_a_person_computes() -> None:
    labelling = Labelling(keep_first=0.25, keep_last=1.0)
    assert [keep_in(labelling, index, 4) for index in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert [keep_of(labelling, share, 10) for share in (0.25, 0.5, 0.75, 1.0)] == [3, 5, 8, 10]


@given(KEEPS, KEEPS, TEXTS)
def test_a_greater_share_holds_no_fewer_and_at_least_one(one: float, two: float, n: int) -> None:
    fewer, more = (keep_of(Labelling(), share, n) for share in sorted((one, two)))
    assert 1 <= fewer <= more <= max(1, n)
    assert share_of(fewer - 1, n) <= min(one, two)


def share_of(count: int, texts: int) -> float:
    return count / texts if texts else 0.0


@given(KEEPS, TEXTS, st.integers(1, 10**6))
def test_no_device_holds_more_than_the_cap(share: float, texts: int, most: int) -> None:
    free, capped = Labelling(), Labelling(keep_per_client=most)
    assert keep_of(capped, share, texts) == min(most, keep_of(free, share, texts))
    kept = keep_of(free, share, texts)  # the share rounded up, but for what floats make of it
    assert kept == 1 or share * texts - 1e-8 <= kept < share * texts + 1
    assert kept >= 1


def test_a_label_has_its_own_confidence_or_everybodys() -> None:
    labelling = Labelling(confidence=0.8, confidences={"mail": 0.95})
    assert (labelling.least("mail"), labelling.least("power")) == (0.95, 0.8)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"infer_every": 0}, "infer_every: 1 to"),
        ({"infer_clients": -1}, "infer_clients: 0 to"),
        ({"keep_first": 0.0}, "keep_first: above 0 and at most 1"),
        ({"keep_first": 8}, "keep_first: above 0 and at most 1"),
        ({"keep_last": nan}, "keep_last: above 0 and at most 1"),
        ({"keep_last": 1.5}, "keep_last: above 0 and at most 1"),
        ({"keep_per_client": -1}, "keep_per_client: 0 to"),
        ({"keep_per_client": 10**10}, "keep_per_client: 0 to"),
        ({"confidence": 1.0}, "confidence: 0.5 to below 1"),
        ({"confidence": 0.4}, "confidence: 0.5 to below 1"),
        ({"confidence": nan}, "confidence: 0.5 to"),
        ({"confidences": {"mail": 0.0}}, "confidences: 'mail': 0.5 to below 1"),
        ({"class_floor": 0.4}, "class_floor: 0.5 to below 1"),
        ({"class_floor": 1.0}, "class_floor: 0.5 to below 1"),
        ({"class_floor": nan}, "class_floor: 0.5 to"),
        ({"class_share": 1.1}, "class_share: above 0 and at most 1"),
        ({"class_share": 0.0}, "class_share: above 0"),
        ({"hardly_moved": -0.1}, "hardly_moved: 0 to 1"),
        ({"hardly_moved": nan}, "hardly_moved: 0 to 1"),
        ({"settled_after": -1}, "settled_after: 0"),
        ({"read_share": 0.0}, "read_share: above 0"),
        ({"compute_share": nan}, "compute_share: above 0"),
        ({"weight": 2.0}, "weight: above 0 and at most 1"),
    ],
)
def test_a_value_outside_its_range_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Labelling(**values)

from math import ceil, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.labelling import Labelling, keep_in

KEEPS = st.integers(0, 200)


@given(KEEPS, KEEPS, st.integers(2, 60))
def test_k_goes_from_the_first_to_the_last(first: int, last: int, rounds: int) -> None:
    labelling = Labelling(keep_first=first, keep_last=last)
    kept = [keep_in(labelling, index, rounds) for index in range(1, rounds + 1)]
    assert kept[0] == max(first, min(1, last)) and kept[-1] == last
    assert kept == sorted(kept, reverse=first > last)
    assert all(kept) or last == 0


@given(KEEPS, KEEPS, st.integers(2, 60), st.data())
def test_k_is_linear_and_rounded_up(
    first: int, last: int, rounds: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(1, rounds))
    exact = first + (last - first) * (index - 1) / (rounds - 1)
    kept = keep_in(Labelling(keep_first=first, keep_last=last), index, rounds)
    # 1e-9: a whole number may be a little more in binary
    assert kept == max(ceil(exact - 1e-9), min(1, last))


def test_one_round_keeps_the_last_k() -> None:
    assert keep_in(Labelling(), 1, 1) == 64


def test_the_curriculum_that_a_person_computes() -> None:
    labelling = Labelling(keep_first=8, keep_last=16)
    assert [keep_in(labelling, index, 4) for index in (1, 2, 3, 4)] == [8, 11, 14, 16]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"infer_every": 0}, "infer_every: 1 to"),
        ({"infer_clients": -1}, "infer_clients: 0 to"),
        ({"keep_first": -1}, "keep_first: 0 to"),
        ({"keep_last": 10**10}, "keep_last: 0 to"),
        ({"confidence": 1.0}, "confidence: above 0 and below 1"),
        ({"confidence": nan}, "confidence: above 0"),
        ({"confidences": {"mail": 0.0}}, "confidences: 'mail': above 0"),
        ({"class_share": 1.1}, "class_share: 0 to 1"),
        ({"read_share": 0.0}, "read_share: above 0"),
        ({"compute_share": nan}, "compute_share: above 0"),
        ({"weight": 2.0}, "weight: above 0 and at most 1"),
    ],
)
def test_a_value_outside_its_range_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Labelling(**values)

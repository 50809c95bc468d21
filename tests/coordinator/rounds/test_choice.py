"""Which devices a run wants."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.selection import DeviceFilter, is_chosen, lack_of_tags
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.fleet import DeviceFacts

FACTS = DeviceFacts("aarch64", 4, 4 << 30, "3.11", "0", engine="onnx", is_on_mains=True)


def fits(tags: dict[str, str] | None = None, facts: DeviceFacts = FACTS, **choice: Any) -> bool:
    return is_chosen(DeviceFilter(**choice), "s", "d1", tags or {}, facts)


def test_by_default_every_device_is_wanted() -> None:
    assert fits() and fits({"a": "b"}, replace(FACTS, memory_bytes=0, engine=""))


def test_all_tags_must_match() -> None:
    asked = {"site": "hall", "language": "en"}
    assert is_chosen(DeviceFilter(asked), "s", "d1", {**asked, "more": "x"}, FACTS)
    for found in ({}, {"site": "hall"}, {"site": "attic", "language": "en"}):
        assert not is_chosen(DeviceFilter(asked), "s", "d1", found, FACTS)


def test_the_budget_counts_where_a_device_names_one() -> None:
    assert fits(least_memory_bytes=4 << 30) and not fits(least_memory_bytes=(4 << 30) + 1)
    small = replace(FACTS, budget_bytes=1 << 30)
    assert fits(None, small, least_memory_bytes=1 << 30)
    assert not fits(None, small, least_memory_bytes=2 << 30)


def test_the_engine_and_the_mains() -> None:
    assert fits(engine="onnx") and not fits(engine="torch")
    assert fits(is_on_mains=True)
    for known in (None, False):
        assert not fits(None, replace(FACTS, is_on_mains=known), is_on_mains=True)


@given(st.text(), st.floats(0.05, 1.0))
def test_a_larger_share_keeps_whom_a_smaller_one_has(secret: str, share: float) -> None:
    names = [f"d{number}" for number in range(200)]

    def drawn(share: float) -> set[str]:
        choice = DeviceFilter(share=share)
        return {name for name in names if is_chosen(choice, secret, name, {}, FACTS)}

    assert drawn(share / 2) <= drawn(share) <= drawn(1.0) == set(names)
    assert abs(len(drawn(share)) - 200 * share) < 60  # eight standard deviations


def test_another_secret_takes_another_share() -> None:
    half = DeviceFilter(share=0.5)
    shares = {
        tuple(is_chosen(half, secret, f"d{number}", {}, FACTS) for number in range(40))
        for secret in ("one", "another", "a third")
    }
    assert len(shares) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 0.0},
        {"share": 1.5},
        {"share": float("nan")},
        {"least_memory_bytes": -1},
        {"tags": {"": "x"}},
        {"tags": {"a": "x" * 65}},
        {"tags": {str(number): "" for number in range(33)}},
    ],
)
def test_a_choice_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongInput):
        DeviceFilter(**wrong)


def test_what_no_device_has_is_named_with_what_there_is() -> None:
    choice = DeviceFilter({"site": "hall"})
    assert lack_of_tags(choice, []) == "" == lack_of_tags(choice, [{}, {"site": "hall"}])
    assert (
        lack_of_tags(choice, [{}]) == "no device was given the tags site=hall; none was given a tag"
    )
    many = [{"n": f"{number:02}"} for number in range(25)]
    said = lack_of_tags(choice, many)
    assert said.startswith("no device was given the tags site=hall; the tags given are: n=00, n=01")
    assert said.endswith("n=19 and 5 more")

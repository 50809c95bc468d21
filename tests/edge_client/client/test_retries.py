import time
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.client.connection import (
    LONGEST_ASKED_S,
    LONGEST_PAUSE_S,
    Unreachable,
    asked_pause_s,
    patiently,
    pause_s,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)


def asked(**headers: str) -> float:
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return asked_pause_s(httpx.Headers(told), NOW)


def test_seconds_are_obeyed_up_to_ten_minutes() -> None:
    assert (asked(), asked(Retry_After="7"), asked(retry_after=" 0 ")) == (0.0, 7.0, 0.0)
    assert asked(Retry_After="9" * 10) == LONGEST_ASKED_S == 600.0


@given(st.integers(-(10**6), 10**6))
def test_a_date_is_compared_with_the_answers_own(seconds: int) -> None:
    at_server = NOW - timedelta(days=20_000)  # this device has no clock, or the server has none
    until = format_datetime(at_server + timedelta(seconds=seconds), usegmt=True)
    found = asked(Date=format_datetime(at_server, usegmt=True), Retry_After=until)
    assert found == min(max(seconds, 0), LONGEST_ASKED_S)


def test_a_date_without_the_answers_own_is_compared_with_the_clock() -> None:
    assert asked(Retry_After=format_datetime(NOW + timedelta(seconds=30), usegmt=True)) == 30.0
    assert asked(Retry_After="Sun Mar  1 12:00:40 2026") == 40.0  # the old form, without a zone


@given(st.text() | st.from_regex(r"-?\d+(\.\d+)?([eE]\d+)?"))
def test_what_is_neither_stays_within_the_bounds(said: str) -> None:
    assert 0.0 <= asked_pause_s({"Retry-After": said}, NOW) <= LONGEST_ASKED_S


@given(st.integers(1, 10**6), st.floats(0, 600), st.floats(0, 1))
def test_jitter_is_full_and_comes_on_top_of_what_was_asked_for(
    failures: int, asked_s: float, share: float
) -> None:
    bounds: list[float] = []

    def uniform(low: float, high: float) -> float:
        bounds[:] = [low, high]
        return low + share * (high - low)

    found = pause_s(failures, asked_s, uniform)
    longest_s = max(0.2 * 2 ** min(failures - 1, 20), asked_s / 4)
    assert bounds == [0.0, min(longest_s, LONGEST_PAUSE_S)]
    assert asked_s <= found <= asked_s + bounds[1]


def test_it_comes_back_no_earlier_than_asked() -> None:
    tries: list[float] = []

    def call() -> str:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise Unreachable("busy", 0.5)
        return "here"

    assert patiently(call, 10.0) == "here"
    assert tries[1] - tries[0] >= 0.5


def test_patience_ends_with_the_last_failure_after_one_more_try() -> None:
    tries = 0

    def call() -> str:
        nonlocal tries
        tries += 1
        raise Unreachable(f"try {tries}", 600.0)

    start = time.monotonic()
    with pytest.raises(Unreachable, match="try 2"):
        patiently(call, 0.3)
    assert time.monotonic() - start < 5.0

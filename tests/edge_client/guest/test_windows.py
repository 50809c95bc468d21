"""Hours of the day: the laws of windows, and what people write."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.guest.ceilings import (
    DAY,
    Window,
    is_open,
    minute_of,
    opening,
    parse_window,
)

MINUTES = st.integers(0, DAY - 1)
WINDOWS = st.tuples(MINUTES, MINUTES).filter(lambda pair: pair[0] != pair[1])
LISTS = st.lists(WINDOWS.map(lambda pair: Window(*pair)), max_size=4)


@given(WINDOWS)
def test_a_window_is_open_as_long_as_it_says(pair: tuple[int, int]) -> None:
    opens, closes = pair
    held = [minute for minute in range(DAY) if Window(opens, closes).holds(minute)]
    assert len(held) == (closes - opens if opens < closes else closes - opens + DAY)
    assert opens in held and closes not in held and (closes - 1) % DAY in held


@given(WINDOWS, MINUTES)
def test_its_opposite_is_open_when_it_is_not(pair: tuple[int, int], minute: int) -> None:
    opens, closes = pair
    assert Window(opens, closes).holds(minute) != Window(closes, opens).holds(minute)


@given(WINDOWS, MINUTES, MINUTES)
def test_another_time_zone_moves_it_and_nothing_else(
    pair: tuple[int, int], minute: int, by: int
) -> None:
    moved = Window((pair[0] + by) % DAY, (pair[1] + by) % DAY)
    assert Window(*pair).holds(minute) == moved.holds((minute + by) % DAY)


@given(LISTS, MINUTES)
def test_several_are_open_when_one_is_and_none_is_always(
    windows: list[Window], minute: int
) -> None:
    assert is_open(windows, minute) == (
        not windows or any(is_open([window], minute) for window in windows)
    )


@given(LISTS, MINUTES)
def test_the_opening_that_is_told_is_the_next(windows: list[Window], minute: int) -> None:
    if is_open(windows, minute):
        return
    hours, minutes = map(int, opening(windows, minute).split(":"))
    told, waited = 60 * hours + minutes, 0
    while not is_open(windows, (minute + waited) % DAY):
        waited += 1
    assert (minute + waited) % DAY == told


@given(WINDOWS)
def test_what_is_written_is_read(pair: tuple[int, int]) -> None:
    opens, closes = pair
    text = f"{opens // 60:02}:{opens % 60:02}-{closes // 60:02}:{closes % 60:02}"
    assert parse_window(text) == Window(opens, closes)


def test_midnight_may_end_a_window() -> None:
    assert parse_window("22:30-24:00") == parse_window("22:30-00:00") == Window(1350, 0)
    assert parse_window("0:00-5:00") == Window(0, 300)


@pytest.mark.parametrize(
    "text", ["", "1-5", "01:00", "25:00-03:00", "01:60-02:00", "24:00-01:00", "01:00-24:01", "x"]
)
def test_something_else_is_one_line_that_says_what_is_expected(text: str) -> None:
    with pytest.raises(WrongInput, match="HH:MM-HH:MM is expected, such as 01:00-05:00"):
        parse_window(text)


@pytest.mark.parametrize("text", ["05:00-05:00", "00:00-24:00"])
def test_a_whole_day_needs_no_window(text: str) -> None:
    with pytest.raises(WrongInput, match="for the whole day leave it out"):
        parse_window(text)


def test_the_minute_is_of_the_local_day() -> None:
    assert minute_of(time.strptime("2026-03-29 02:59:59", "%Y-%m-%d %H:%M:%S")) == 179

"""When a guest pauses: the laws of the gate over any readings."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.guest.ceilings import (
    CALM_S,
    Readings,
    Rules,
    WorkGate,
    is_open,
    met,
    parse_window,
    pressure,
    unknown,
)

RULES = Rules(on_mains=True, most_watts=10.0, most_celsius=70.0, most_load=1.0)
CALM = Readings(True, 5.0, 40.0, 0.0)
READINGS = st.builds(
    Readings,
    st.sampled_from((True, False, None)),
    st.none() | st.floats(0, 20),
    st.none() | st.floats(30, 90),
    st.none() | st.floats(0, 3),
)
LOOKS = st.lists(st.tuples(READINGS, st.floats(0.1, 100.0)), max_size=30)


@given(READINGS)
def test_what_is_met_at_work_is_met_in_a_pause(readings: Readings) -> None:
    assert len(list(met(RULES, readings))) <= len(list(met(RULES, readings, is_paused=True)))


@given(LOOKS)
def test_it_is_never_open_while_a_ceiling_is_met_and_never_flaps(
    looks: list[tuple[Readings, float]],
) -> None:
    gate, now_s, closed = WorkGate(RULES), 0.0, list[tuple[float, bool]]()
    for readings, step_s in looks:
        now_s += step_s
        is_closed = bool(gate.look(0, readings, now_s))
        assert is_closed or not list(met(RULES, readings))
        closed.append((now_s, is_closed))
    opened = [now for (_, before), (now, is_closed) in pairwise(closed) if before and not is_closed]
    began = [now for (_, before), (now, is_closed) in pairwise(closed) if is_closed and not before]
    for at in began:
        assert all(later - at >= CALM_S for later in opened if later > at)


@given(LOOKS)
def test_it_opens_again_once_all_is_calm(looks: list[tuple[Readings, float]]) -> None:
    gate, now_s = WorkGate(RULES), 0.0
    for readings, step_s in looks:
        now_s += step_s
        gate.look(0, readings, now_s)
    gate.look(0, CALM, now_s + 1.0)
    assert not gate.look(0, CALM, now_s + 1.0 + CALM_S)


@given(st.integers(0, 1439))
def test_windows_alone_open_and_close_on_the_minute(minute: int) -> None:
    windows = (parse_window("22:30-05:00"),)
    gate = WorkGate(Rules(windows))
    for at in (minute, (minute + 1) % 1440):
        assert bool(gate.look(at, Readings(), 0.0)) != is_open(windows, at)


@given(READINGS)
def test_what_nothing_tells_forbids_nothing(readings: Readings) -> None:
    assert not list(met(RULES, Readings())) and pressure(RULES, Readings()) == 0
    assert not list(met(Rules(), readings)) and pressure(Rules(), readings) == 0
    names = ("is_on_mains", "watts", "celsius", "load")
    options = ("--on-mains", "--max-watts", "--max-celsius", "--max-load")
    told = [o for name, o in zip(names, options, strict=True) if getattr(readings, name) is None]
    assert unknown(RULES, readings) == told and not unknown(Rules(), readings)


@given(st.floats(30, 90), st.floats(30, 90))
def test_it_slows_down_the_more_the_warmer(a: float, b: float) -> None:
    low, high = (pressure(RULES, Readings(celsius=celsius)) for celsius in sorted((a, b)))
    assert 0 <= low <= high <= 0.9


def test_it_slows_down_between_the_two_marks() -> None:
    assert pressure(RULES, Readings(celsius=65.0)) == 0
    assert pressure(RULES, Readings(celsius=67.5)) == pytest.approx(0.5)
    assert pressure(RULES, Readings(watts=9.0)) == pytest.approx(0.5)


def test_the_reasons_are_told_in_words() -> None:
    hot = Readings(False, 11.0, 71.25, 1.5)
    assert list(met(RULES, hot)) == [
        "not on mains",
        "71.2 C, 70 at most",
        "11.0 W, 10 at most",
        "others keep 1.5 processors busy, 1 at most",
    ]
    gate = WorkGate(replace(RULES, windows=(parse_window("01:00-05:00"),)))
    assert gate.look(300, CALM, 0.0) == ("outside its hours until 01:00",)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e9])
@pytest.mark.parametrize("name", ["most_watts", "most_celsius", "most_load"])
def test_a_ceiling_that_is_none_is_refused_by_its_option(name: str, value: float) -> None:
    option = name.replace("most_", "--max-")
    with pytest.raises(WrongInput, match=rf"{option} .*: a number above 0 is expected"):
        Rules(**{name: value})  # type: ignore[arg-type]

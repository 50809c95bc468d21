"""Limits that a device's owner sets on the client, and when work pauses. Pure: readings come in.

    gate = WorkGate(Rules(most_celsius=70.0))
    gate.look(minute, Readings(celsius=71.0), now_s)  # ("71.0 C, 70 at most",): pause
    pressure(rules, Readings(celsius=68.0))           # 0.6: share of the time to rest

Hysteresis: after a limit was met, work resumes only when the reading has been clearly below it for
a while. A sensor that cannot be read forbids nothing.

Working hours are in local wall-clock time, and follow it when it jumps or summer time begins:

    windows = (parse_window("22:30-05:00"), parse_window("12:00-13:00"))
    is_open(windows, minute_of(time.localtime()))
    opening(windows, 15 * 60)  # "22:30"
"""

import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from smidgen.edge_client.errors import WrongInput, demand

DAY = 24 * 60  # minutes
PATTERN = re.compile(r"([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})")


@dataclass(frozen=True)
class Window:
    """A part of each day.

    Attributes:
        opens: Minute of the day, which is inside.
        closes: Minute of the day, which is not; before `opens` where it lasts over midnight.
    """

    opens: int
    closes: int

    def holds(self, minute: int) -> bool:
        return (minute - self.opens) % DAY < (self.closes - self.opens) % DAY


def parse_window(text: str) -> Window:
    """A window as people write it, such as `01:00-05:00` or `22:30-24:00`.

    Raises:
        WrongInput: Something else, or a window without length.
    """
    told = f"--window {text[:40]!r}: HH:MM-HH:MM is expected, such as 01:00-05:00"
    found = PATTERN.fullmatch(text)
    if found is None:
        raise WrongInput(told)
    hours, minutes = (int(found[1]), int(found[3])), (int(found[2]), int(found[4]))
    opens, closes = (60 * hour + minute for hour, minute in zip(hours, minutes, strict=True))
    demand(max(minutes) < 60 and opens < DAY and closes <= DAY, told)
    demand(opens != closes % DAY, f"{told}; for the whole day leave it out")
    return Window(opens, closes % DAY)


def is_open(windows: Collection[Window], minute: int) -> bool:
    """Whether any window holds a minute of the day; without windows each minute will do."""
    return not windows or any(window.holds(minute) for window in windows)


def opening(windows: Collection[Window], minute: int) -> str:
    """When the next window opens, seen from a minute outside all of them; as people write it."""
    opens = min((window.opens for window in windows), key=lambda at: (at - minute) % DAY)
    return f"{opens // 60:02}:{opens % 60:02}"


def minute_of(now: time.struct_time) -> int:
    return 60 * now.tm_hour + now.tm_min


CALM_S = 30.0  # all must have been below its lower mark for so long before work goes on
COOLER_C = 5.0  # of the lower mark below the ceiling; between them work slows down
LESS = 0.8  # of watts and load: the lower mark's share of the ceiling
HIGHEST = 10_000.0  # of any ceiling


@dataclass(frozen=True)
class Rules:
    """What a device's owner lets its client disturb; by default there is nothing to mind.

    Attributes:
        windows: When it may work; none: always.
        on_mains: Whether it works on mains or while charging alone.
        most_watts: Of the whole board, as its instrument tells.
        most_celsius: Of the hottest zone.
        most_load: Processors that other programs keep busy.
    """

    windows: tuple[Window, ...] = ()
    on_mains: bool = False
    most_watts: float | None = None
    most_celsius: float | None = None
    most_load: float | None = None

    def __post_init__(self) -> None:
        for flag in ("watts", "celsius", "load"):
            most = getattr(self, f"most_{flag}")
            demand(
                most is None or 0 < most <= HIGHEST,
                f"--max-{flag} {most}: a number above 0 is expected, {HIGHEST:g} at most",
                WrongInput,
            )

    @property
    def are_none(self) -> bool:
        return self == Rules()


@dataclass(frozen=True)
class Readings:
    """What instruments say now; None: they do not.

    Attributes:
        is_on_mains: Whether power comes from outside.
        watts: Of the whole board, since the last reading.
        celsius: Of the hottest zone.
        load: Processors that other programs kept busy since the last reading.
    """

    is_on_mains: bool | None = None
    watts: float | None = None
    celsius: float | None = None
    load: float | None = None


def unknown(rules: Rules, readings: Readings) -> list[str]:
    """The options that are without effect here, for nothing tells what they need."""
    told = {
        "--on-mains": rules.on_mains and readings.is_on_mains is None,
        "--max-watts": rules.most_watts is not None and readings.watts is None,
        "--max-celsius": rules.most_celsius is not None and readings.celsius is None,
        "--max-load": rules.most_load is not None and readings.load is None,
    }
    return [option for option, is_unknown in told.items() if is_unknown]


def met(rules: Rules, readings: Readings, *, is_paused: bool = False) -> Iterator[str]:
    """The ceilings that are met, in words; while it pauses, their lower marks.

    Law: what is met while it works is met while it pauses, too.
    """
    if rules.on_mains and readings.is_on_mains is False:
        yield "not on mains"
    celsius, watts, load = rules.most_celsius, rules.most_watts, rules.most_load
    cooler, less = (COOLER_C, LESS) if is_paused else (0.0, 1.0)
    if celsius is not None and readings.celsius is not None and readings.celsius > celsius - cooler:
        yield f"{readings.celsius:.1f} C, {celsius - cooler:g} at most"
    if watts is not None and readings.watts is not None and readings.watts > watts * less:
        yield f"{readings.watts:.1f} W, {watts * less:g} at most"
    if load is not None and readings.load is not None and readings.load > load * less:
        yield f"others keep {readings.load:.1f} processors busy, {load * less:g} at most"


def pressure(rules: Rules, readings: Readings) -> float:
    """The share of time to rest between steps, as heat and power near their ceilings: 0 to 0.9."""
    shares = [0.0]
    if rules.most_celsius is not None and readings.celsius is not None:
        shares.append(1 - (rules.most_celsius - readings.celsius) / COOLER_C)
    if rules.most_watts is not None and readings.watts is not None:
        shares.append(1 - (1 - readings.watts / rules.most_watts) / (1 - LESS))
    return min(max(shares), 0.9)


class WorkGate:
    """Whether to work, over time; laws:

    It is never open while a ceiling is met or outside the windows. Once a ceiling has closed it,
    it opens `CALM_S` after all were last above their lower marks, no sooner; windows open and close
    it on the minute.

    Args:
        rules: The owner's.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules, self._is_paused = rules, False
        self._disturbed_s = 0.0  # when a mark was last met, while it pauses for one

    def look(self, minute: int, readings: Readings, now_s: float) -> tuple[str, ...]:
        """Why not to work now, in words; empty: work.

        Args:
            minute: Of the day.
            readings: What instruments say.
            now_s: Seconds, ever growing.
        """
        told = tuple(met(self._rules, readings, is_paused=self._is_paused))
        if told:
            self._is_paused, self._disturbed_s = True, now_s
        elif self._is_paused and now_s - self._disturbed_s < CALM_S:
            told = ("calm for a while first",)
        else:
            self._is_paused = False
        if not is_open(self._rules.windows, minute):
            told = (f"outside its hours until {opening(self._rules.windows, minute)}", *told)
        return told

"""Hours of the day in which a client may work, in the device's local time.

    windows = (parse_window("22:30-05:00"), parse_window("12:00-13:00"))
    is_open(windows, minute_of(time.localtime()))
    opening(windows, 15 * 60)  # "22:30"

They go by the wall clock: where it jumps, or summer begins, they go by the new time.
"""

import re
import time
from collections.abc import Collection
from dataclasses import dataclass

from edge_client.errors import WrongInput, demand

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
        """Whether a minute of the day is inside."""
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
    """The minute of the day."""
    return 60 * now.tm_hour + now.tm_min

"""Readings for the rules of a guest, from the kernel's files: only of what some rule is about.

Whether the machine's memory runs short, whoever takes it: programs, or a GPU that shares it.

    mark = Watermark(total_bytes)
    mark.look(available_bytes, now_s)  # True: let go of all that can be had again
    mark.is_squeezed                   # take less than allowed for a while

A control group's limit is none of this: within it a client may use what its budget says.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from edge_client.guest.ceilings import Readings, Rules
from edge_client.metering.machine import is_on_mains, read_heat
from edge_client.metering.power import Source, battery, packages, power_rails, sees_as_much
from edge_client.metering.sysfs import text
from edge_client.planning.resources import machine_memory

TICKS = os.sysconf("SC_CLK_TCK")  # of /proc/stat, a second
IDLE = (3, 4)  # columns of /proc/stat: idle, waiting for disks

log = logging.getLogger(__name__)


class Sensors:
    """Reads instruments; watts and load are those since the last reading, and None at first.

    Args:
        rules: What is to be known.
        root: Where `proc` and `sys` lie; another folder in tests.
        clock: Seconds, ever growing.
        own_s: Seconds of processors that this process has used.
    """

    def __init__(
        self,
        rules: Rules,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        own_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._rules, self._root, self._clock, self._own_s = rules, root, clock, own_s
        self._source: Source | None = None
        self._first: Source | None = None  # the instrument that was found first
        self._power_s: float | None = None
        self._is_told = False  # that power could not be read
        self._busy: tuple[float, float] | None = None  # when, and seconds that others had used

    @property
    def need_time(self) -> bool:
        """Whether a first reading tells less than a second one."""
        return self._rules.most_watts is not None or self._rules.most_load is not None

    def read(self) -> Readings:
        """What the instruments say; takes about a millisecond."""
        rules, root = self._rules, self._root
        return Readings(
            is_on_mains=is_on_mains(root) if rules.on_mains else None,
            watts=self._watts(),
            celsius=read_heat(root).hottest_c if rules.most_celsius is not None else None,
            load=self._load() if rules.most_load is not None else None,
        )

    def memory(self) -> tuple[int | None, int | None]:
        """The machine's bytes, and those available now."""
        return machine_memory(self._root)

    def _watts(self) -> float | None:
        """Since the last reading that was had; one that fails makes the time to the next longer."""
        if self._rules.most_watts is None:
            return None
        self._source = self._source or self._found()
        if self._source is None:
            return None
        then_s, now_s = self._power_s, self._clock()
        try:
            if then_s is None:
                self._source.start(now_s)
                joules = None
            else:
                joules = self._source.advance(now_s)
        except (OSError, ValueError) as error:
            self._tell(error)
            if isinstance(error, FileNotFoundError):  # it is gone, and may come back elsewhere
                self._source = self._power_s = None
            return None
        self._power_s = now_s
        return None if then_s is None or joules is None else joules / max(now_s - then_s, 1e-3)

    def _found(self) -> Source | None:
        """The instrument; one of less than the first saw would let the rest of the board pass."""
        root = self._root
        found = power_rails(root) or packages(root) or battery(root)
        if found is None or (self._first and not sees_as_much(found, self._first)):
            return None
        self._first = self._first or found
        return found

    def _tell(self, error: OSError | ValueError) -> None:
        """Say once that power cannot be read."""
        if not self._is_told:
            why = error.strerror if isinstance(error, OSError) else "not a number"
            log.warning("power cannot be read now (%s); --max-watts counts again once it can", why)
        self._is_told = True

    def _load(self) -> float | None:
        """What others use: all processors' busy time less this process's own."""
        columns = text(self._root / "proc/stat").partition("\n")[0].split()[1:9]
        if len(columns) < 5 or not all(column.isdigit() for column in columns):
            return None
        ticks = sum(int(column) for place, column in enumerate(columns) if place not in IDLE)
        before, now_s = self._busy, self._clock()
        self._busy = now_s, ticks / TICKS - self._own_s()
        if before is None:
            return None
        return max(0.0, self._busy[1] - before[1]) / max(now_s - before[0], 1e-3)


LEAST_SHARE, LEAST_BYTES = 20, 256 << 20  # a twentieth of the memory, no more than 256 MiB
PLENTY = 2  # times the least: where it is short no more
CALM_S = 30.0  # of plenty, before work goes on
UP_AGAIN_S = 600.0  # of plenty, before a larger plan is tried


class Watermark:
    """Two marks and two delays, so that it does not flap.

    Laws: it is short while less than the least is available; once short, it stays so until there
    was plenty for `CALM_S`, and squeezed until there was plenty for `UP_AGAIN_S`.

    Args:
        total_bytes: The machine's memory; None: nobody knows, and it is never short.

    Attributes:
        least_bytes: What is to stay available.
        is_short: Whether it is short.
        is_squeezed: Whether it was, lately.
    """

    def __init__(self, total_bytes: int | None) -> None:
        self.least_bytes = min((total_bytes or 0) // LEAST_SHARE, LEAST_BYTES)
        self.is_short = self.is_squeezed = False
        self._scarce_s = 0.0  # when there was no plenty last

    def look(self, available_bytes: int | None, now_s: float) -> bool:
        """Whether it is short now.

        Args:
            available_bytes: What the kernel says could be had without swapping; None: nothing.
            now_s: Seconds, ever growing.
        """
        if available_bytes is None:
            return self.is_short
        if available_bytes < PLENTY * self.least_bytes:
            self._scarce_s = now_s
        if available_bytes < self.least_bytes:
            self.is_short = self.is_squeezed = True
        calm_s = now_s - self._scarce_s
        self.is_short = self.is_short and calm_s < CALM_S
        self.is_squeezed = self.is_squeezed and calm_s < UP_AGAIN_S
        return self.is_short

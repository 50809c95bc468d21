"""A client that respects its board's owner: when it works, pauses or slows down, and its log.

    guest = Guest(rules)
    guest.begin()
    guest.wait()      # until work is allowed
    guest.between()   # between two steps: returns, perhaps after a rest, or raises Paused

The rules are in `ceilings`; here are clocks and sensors, read only where a rule needs them.
`Watermark` detects low memory, with hysteresis, on the machine as a whole. A cgroup's limit does
not count here: within it a client may use its budget.

    mark = Watermark(total_bytes)
    mark.look(available_bytes, now_s)  # True: release every cache
    mark.is_squeezed                   # use less than allowed for a while
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from smidgen.edge_client.guest.ceilings import (
    Readings,
    Rules,
    WorkGate,
    minute_of,
    pressure,
    unknown,
)
from smidgen.edge_client.guest.process import WatchdogNotifier, look, nap, status
from smidgen.edge_client.guest.steps import Paused
from smidgen.edge_client.metering.machine import is_on_mains, read_heat
from smidgen.edge_client.metering.memory import text
from smidgen.edge_client.metering.power import (
    PowerSource,
    battery,
    packages,
    power_rails,
    sees_as_much,
)
from smidgen.edge_client.planning.plan import size_text
from smidgen.edge_client.planning.resources import machine_memory

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # of /proc/stat, a second
IDLE = (3, 4)  # columns of /proc/stat: idle, waiting for disks


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
        self._source: PowerSource | None = None
        self._first: PowerSource | None = None  # the instrument that was found first
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

    def _found(self) -> PowerSource | None:
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


log = logging.getLogger(__name__)

LOOK_S = 5.0  # between two readings
LONGEST_REST_S = 30.0  # between two steps


def local_time() -> time.struct_time:
    """The wall clock's, in the zone that the machine has now: it may be set while this runs."""
    time.tzset()
    return time.localtime()


class Guest:
    """TokenBuckets the work of one client.

    Args:
        rules: The owner's.
        sensors: What reads; None: this machine's instruments.
        local: The wall clock's local time.
        clock: Seconds, ever growing, whatever the wall clock does.
        sleep: Waits; raises where the process is to end.

    Attributes:
        alive: Signs of life for the service manager.
    """

    def __init__(
        self,
        rules: Rules,
        sensors: Sensors | None = None,
        local: Callable[[], time.struct_time] = local_time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = nap,
    ) -> None:
        self.alive = WatchdogNotifier()
        self._rules, self._gate = rules, WorkGate(rules)
        self._sensors = sensors or Sensors(rules)
        self._local, self._clock, self._sleep = local, clock, sleep
        self._readings, self._reasons = Readings(), tuple[str, ...]()
        self._watermark = Watermark(self._sensors.memory()[0])
        self._read_s, self._stepped_s = -LOOK_S, clock()

    def begin(self) -> None:
        """Take the first readings; what nothing here tells is said once."""
        if self._rules.are_none:
            return
        readings = self._sensors.read()
        if self._sensors.need_time:
            self._sleep(1.0)  # of the first figures of power and load
            readings = self._sensors.read()
        self._look(readings)
        for option in unknown(self._rules, readings):
            log.warning("%s is without effect: nothing on this device tells what it needs", option)

    @property
    def is_squeezed(self) -> bool:
        """Whether memory was short lately: then less than allowed is to be taken."""
        return self._watermark.is_squeezed

    def may_work(self) -> bool:
        """Whether it may work now; looked at afresh every `LOOK_S`."""
        if self._clock() - self._read_s >= LOOK_S:
            self._look(self._sensors.read())
        return not self._reasons

    @property
    def is_short(self) -> bool:
        """Whether it may not work for want of memory: whoever holds some is to let go of it."""
        return self._watermark.is_short

    def _look(self, readings: Readings) -> None:
        now_s = self._read_s = self._clock()
        self._readings = readings
        self._reasons = self._gate.look(minute_of(self._local()), readings, now_s)
        if self._watermark.look(self._sensors.memory()[1], now_s):
            least = size_text(self._watermark.least_bytes)
            self._reasons += (f"memory is short, {least} of the machine's are left alone",)

    def wait(self, is_holding: bool = False) -> None:
        """Wait until it may work; says why, and when it goes on.

        Args:
            is_holding: Whether an engine is open meanwhile, which memory may be short for.

        Raises:
            Ended: This process is to end.
            Paused: It is.
        """
        if self.may_work():
            return
        told, began_s = "", self._clock()
        while not self.may_work():
            if is_holding and self.is_short:
                raise Paused
            reason = "; ".join(self._reasons)
            if not told:
                log.info("paused: %s", reason)
            if told != reason:
                status(f"paused: {reason}")
            told = reason
            self.alive()  # to look whether it may go on is what it has to do now
            self._sleep(LOOK_S)
        log.info("going on after a pause of %.0f s", self._clock() - began_s)
        status("going on")
        self._stepped_s = self._clock()

    def between(self) -> None:
        """Between two steps: go on, after a rest where heat or power near their ceilings.

        Raises:
            Paused: It may not work now.
            Ended: This process is to end.
        """
        look()
        self.alive()
        if not self.may_work():
            raise Paused
        share, busy_s = pressure(self._rules, self._readings), self._clock() - self._stepped_s
        if share > 0:
            self._sleep(min(busy_s * share / (1 - share), LONGEST_REST_S))
        self._stepped_s = self._clock()

    def stay(self) -> float:
        """As `between` for work that keeps nothing on disk: it waits where it is.

        Returns:
            Seconds of waiting, which are no work.

        Raises:
            Paused: Memory is short, and what it holds is some of it.
            Ended: This process is to end.
        """
        began_s = self._clock()
        try:
            self.between()
        except Paused:
            self.wait(is_holding=True)
            return self._clock() - began_s
        return 0.0

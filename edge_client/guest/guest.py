"""A client as a guest on its board: when it works, when it pauses, and what it says of it.

    guest = Guest(rules)
    guest.begin()
    guest.wait()      # until it may work
    guest.between()   # between two steps: goes on, slower perhaps, or raises Paused

The rules are in `ceilings` and `windows`; here are the clocks, the instruments and the log.
"""

import logging
import time
from collections.abc import Callable

from edge_client.guest.ceilings import Gate, Readings, Rules, minute_of, pressure, unknown
from edge_client.guest.process import Alive, look, nap, status
from edge_client.guest.sensors import Sensors, Watermark
from edge_client.guest.steps import Paused
from edge_client.planning.sizes import size_text

log = logging.getLogger(__name__)

LOOK_S = 5.0  # between two readings
FIRST_S = 1.0  # of the first figures of power and load
LONGEST_REST_S = 30.0  # between two steps


def local_time() -> time.struct_time:
    """The wall clock's, in the zone that the machine has now: it may be set while this runs."""
    time.tzset()
    return time.localtime()


class Guest:
    """Paces the work of one client.

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
        self.alive = Alive()
        self._rules, self._gate = rules, Gate(rules)
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
            self._sleep(FIRST_S)
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

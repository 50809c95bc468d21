"""Whether the coordinators of one fleet mean the same by a time; the database server's clock tells.

Each goes by the clock of its machine. One that is far off takes devices for gone that another has
just heard, and closes steps early or late.
"""

import logging
import time
from collections.abc import Callable

from coordinator.storage.database import Database
from edge_client.errors import demand

MOST_APART_S = 10.0
EVERY_S = 60.0  # between two looks
SET = "set both by the network (NTP) and start it again"
LOG = logging.getLogger(__name__)


def check_clock(database: Database, now_s: Callable[[], float] = time.time) -> None:
    """Refuse to serve beside others by a clock that is not theirs.

    Raises:
        WrongInput: Says how far it is off.
    """
    apart_s = database.apart_s(now_s)
    demand(abs(apart_s) <= MOST_APART_S, f"this machine's clock is {told(apart_s)}; {SET}")


def told(apart_s: float) -> str:
    """How far a clock is off, in words."""
    where = "ahead of" if apart_s > 0 else "behind"
    return (
        f"{abs(apart_s):.0f} s {where} the database server's, and clocks of one fleet may be "
        f"{MOST_APART_S:.0f} s apart"
    )


class Clocks:
    """Says when the clock of a process that serves is not the database server's; for one thread.

    Args:
        database: The fleet's.
        now_s: The clock.
    """

    def __init__(self, database: Database, now_s: Callable[[], float]) -> None:
        self._database, self._now_s = database, now_s
        self._looked_s, self._is_apart = time.monotonic(), False

    def look(self) -> None:
        """Look once in a while, and say what has changed.

        Raises:
            DatabaseAway: It cannot be asked.
        """
        if time.monotonic() - self._looked_s < EVERY_S:
            return
        self._looked_s = time.monotonic()
        apart_s = self._database.apart_s(self._now_s)
        is_apart = abs(apart_s) > MOST_APART_S
        if is_apart and not self._is_apart:
            LOG.warning(
                "the clock that this coordinator goes by is %s: devices are taken for gone, and "
                "steps close early or late; %s",
                told(apart_s),
                SET,
            )
        if self._is_apart and not is_apart:
            LOG.info("the clock that this coordinator goes by is the database server's again")
        self._is_apart = is_apart

"""What the fleet's state takes of one process, and how that grows between sizes and beyond."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from edge_client.errors import demand

POLL_S = 25.0  # a client's long poll (`edge_client.client.settings`)


@dataclass(frozen=True)
class Asked:
    """What is measured.

    Attributes:
        devices: How many are enrolled, have joined the run, and are there.
        cohort: Most of them that a step asks.
    """

    devices: int
    cohort: int


@dataclass(frozen=True)
class Taken:
    """What so many devices take of one process; all figures measured.

    Attributes:
        devices: How many.
        cohort: Of them, whom a step asks.
        open_s: Seconds to open the service.
        held_bytes: Resident memory that the service holds once all were heard of.
        peak_bytes: The process's peak (VmHWM) while it opened.
        tick_cpu_s: Processor time of a tick in which nothing is due, median.
        step_cpu_s: Of the tick that closes an evaluation and opens a training step.
        answer_s: Seconds to take a report in, its commit included, median.
        next_p50_s: Seconds to say to an idle device what it does next, median.
        next_p99_s: The 99th percentile of the same.
        reply_bytes: Length of that answer's body.
        save_cpu_s: Processor time to write who was heard of in 30 s of polls.
        share_cpu_s: Of 2 s of polls, as often as it is written where several processes serve.
        refresh_cpu_s: To read whom others have heard in 12 s, as each of several processes does.
        database_bytes: Of the store's database.
    """

    devices: int
    cohort: int
    open_s: float
    held_bytes: float
    peak_bytes: float
    tick_cpu_s: float
    step_cpu_s: float
    answer_s: float
    next_p50_s: float
    next_p99_s: float
    reply_bytes: float
    save_cpu_s: float
    share_cpu_s: float
    refresh_cpu_s: float
    database_bytes: float


class Growth:
    """Figures between the sizes that were measured and beyond them.

    On straight lines from one size to the next, and on the last of them beyond; below the smallest
    size a figure counts as at that. It never falls: what a smaller fleet took, a larger one does.

    Args:
        taken: One or more, of different sizes.

    Attributes:
        sizes: That were measured, ascending.
    """

    def __init__(self, taken: Sequence[Taken]) -> None:
        demand(bool(taken), "one size or more is expected")
        self._taken = sorted(taken, key=lambda one: one.devices)
        self.sizes = [one.devices for one in self._taken]

    def of(self, devices: int) -> Taken | None:
        """What was measured of a fleet of this size."""
        return next((one for one in self._taken if one.devices == devices), None)

    def at(self, figure: str, devices: float) -> float:
        """A figure of a fleet of any size."""
        values = list(accumulate((float(getattr(one, figure)) for one in self._taken), max))
        last, value = self.sizes[-1], values[-1]
        if devices <= last:
            return float(np.interp(devices, self.sizes, values))
        before, below = (self.sizes[-2], values[-2]) if len(values) > 1 else (0, 0.0)
        return value + (value - below) / (last - before) * (devices - last)

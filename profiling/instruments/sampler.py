"""The memory of another process, read from outside while it lives.

The kernel keeps the peak of the resident set (VmHWM), so the last sample is enough for it. Of
anonymous memory it keeps no peak: that one is the highest of the samples, and what rises and falls
within one interval is not seen.

    with Sampler(process.pid) as sampler:
        process.wait()
        print(sampler.take())
"""

import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from edge_client.metering.memory import PROC
from profiling.instruments.background import Background

INTERVAL_S = 0.01
KIBIBYTES = re.compile(rb"^VmHWM:\s*(\d+)(?:.*^RssAnon:\s*(\d+))?", re.MULTILINE | re.DOTALL)
MOST = 1 << 14  # bytes of a status


@dataclass(frozen=True)
class Peaks:
    """The highest readings of one phase.

    Attributes:
        peak_rss_bytes: Measured by the kernel, without gaps.
        peak_anon_bytes: Highest of the samples.
        samples: How many there were.
    """

    peak_rss_bytes: int = 0
    peak_anon_bytes: int = 0
    samples: int = 0


class Sampler(Background):
    """A thread that reads a process's memory until the block ends.

    Args:
        process: Id of the process.
        interval_s: Pause between two samples.
    """

    def __init__(self, process: int, interval_s: float = INTERVAL_S) -> None:
        super().__init__("sampler")
        self._process, self._interval_s = process, interval_s
        self._highest, self._lock = (0, 0, 0), threading.Lock()

    def take(self) -> Peaks:
        """The highest readings since the last call; a new phase begins."""
        with self._lock:
            peaks = Peaks(*self._highest)
            self._highest = 0, 0, 0
        return peaks

    def _watch(self) -> None:
        for rss, anon in _readings(self._process):
            with self._lock:
                highest = self._highest
                self._highest = max(highest[0], rss), max(highest[1], anon), highest[2] + 1
            time.sleep(self._interval_s)  # half the processor time of waiting for an event
            if self._is_over.is_set():
                return


def _readings(process: int) -> Iterator[tuple[int, int]]:
    """VmHWM and RssAnon, as `read_memory` has them, from one open file: a sixth of its time."""
    try:
        status = os.open(PROC / str(process) / "status", os.O_RDONLY)
    except OSError:
        return
    try:
        while found := KIBIBYTES.search(os.pread(status, MOST, 0)):
            yield int(found[1]) << 10, int(found[2] or 0) << 10
    except OSError:  # it is gone
        pass
    finally:
        os.close(status)

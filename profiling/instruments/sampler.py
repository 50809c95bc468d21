"""The memory of another process, read from outside while it lives.

The kernel keeps the peak of the resident set (VmHWM), so the last sample is enough for it. Of
anonymous memory it keeps no peak: that one is the highest of the samples, and what rises and falls
within one interval is not seen.

    with Sampler(process.pid) as sampler:
        process.wait()
        print(sampler.take())
"""

import threading
from dataclasses import dataclass
from types import TracebackType

from edge_client.metering.memory import PROC, read_memory

INTERVAL_S = 0.01


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


class Sampler:
    """A thread that reads a process's memory until the block ends.

    Args:
        process: Id of the process.
        interval_s: Pause between two samples.
    """

    def __init__(self, process: int, interval_s: float = INTERVAL_S) -> None:
        self._process, self._interval_s = process, interval_s
        self._peaks, self._lock = Peaks(), threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def take(self) -> Peaks:
        """The highest readings since the last call; a new phase begins."""
        with self._lock:
            peaks, self._peaks = self._peaks, Peaks()
        return peaks

    def _watch(self) -> None:
        while (memory := read_memory(PROC / str(self._process))) is not None:
            with self._lock:
                self._peaks = Peaks(
                    max(self._peaks.peak_rss_bytes, memory.peak_rss_bytes),
                    max(self._peaks.peak_anon_bytes, memory.anon_bytes),
                    self._peaks.samples + 1,
                )
            if self._is_over.wait(self._interval_s):
                return

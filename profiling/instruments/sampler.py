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
from pathlib import Path
from types import TracebackType

INTERVAL_S = 0.01
PROC = Path("/proc")


@dataclass(frozen=True)
class Memory:
    """One reading of `/proc/PID/status`.

    Attributes:
        peak_rss_bytes: VmHWM, the highest resident set since the process began (or reset it).
        anon_bytes: RssAnon, private memory without a file behind it, now.
    """

    peak_rss_bytes: int
    anon_bytes: int


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


def read_memory(process: int | str = "self") -> Memory | None:
    """One reading; None where the process is gone or has let go of its memory."""
    try:
        rows = (PROC / str(process) / "status").read_text().splitlines()
    except OSError:
        return None
    fields = dict(row.split(":", 1) for row in rows if row.startswith(("VmHWM:", "RssAnon:")))
    if "VmHWM" not in fields:
        return None  # a zombie
    kibibytes = {name: int(value.split()[0]) for name, value in fields.items()}
    return Memory(kibibytes["VmHWM"] << 10, kibibytes.get("RssAnon", 0) << 10)


def reset_peak_rss() -> bool:
    """Let this process's VmHWM start again from what is resident now; False where refused."""
    try:
        (PROC / "self" / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


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
        while (memory := read_memory(self._process)) is not None:
            with self._lock:
                self._peaks = Peaks(
                    max(self._peaks.peak_rss_bytes, memory.peak_rss_bytes),
                    max(self._peaks.peak_anon_bytes, memory.anon_bytes),
                    self._peaks.samples + 1,
                )
            if self._is_over.wait(self._interval_s):
                return

"""What a piece of work costs: seconds by phase, bytes by direction, the process's peak memory."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class WorkMeter:
    """Counts for one piece of work; mutable, because work goes on while it counts.

    Attributes:
        phases_s: Seconds by phase.
        bytes_up: Bytes sent, bodies and headers.
        bytes_down: Bytes received, bodies and headers.
        requests: HTTP requests answered.
    """

    phases_s: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    requests: int = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.phases_s[name] = self.phases_s.get(name, 0.0) + spent


def peak_rss_bytes() -> int:
    """The process's highest resident set so far (VmHWM, measured by the kernel)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def usable_cores() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Physical memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine() -> str:
    """Processor architecture, such as `aarch64`."""
    return platform.machine()


def python_version() -> str:
    """Version of the interpreter."""
    return platform.python_version()

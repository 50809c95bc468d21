"""Peak memory guard: watches a process's own peak during training, recognizes failed allocations.

guard = Guard(budget_bytes)
guard.reset()
engine.train_step(batch)
if guard.is_over(): ...  # the planner's `next_smaller` says what then
"""

from pathlib import Path
from typing import Protocol

from smidgen.edge_client.metering.memory import SELF, peak_rss_bytes, reset_peak_rss
from smidgen.edge_client.planning.cuda.accelerator import DevicePeak

# What torch says on processors and on CUDA, in every version since 2.5; the next two are oneDNN's
# words where its scratch memory could not be had, the last two ONNX Runtime's (seen under a limit
# on data).
ALLOCATION_FAILED = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "could not create a primitive",
    "could not create a memory",
    "bad_alloc",
    "failed to allocate memory",
)


class PeakGuard(Protocol):
    """What a budget asks of the one that watches; members are those of `Guard`."""

    budget_bytes: int

    def peak_bytes(self) -> int | None: ...

    def reset(self) -> bool: ...

    def is_over(self) -> bool: ...

    def device_peak(self) -> DevicePeak | None:
        """The highest peak on a CUDA device since the guard was made; None: it watches none."""


class Guard:
    """The peak of this process since the last reset, held against a budget.

    Args:
        budget_bytes: Resident bytes this process may reach.
        process: Its folder in /proc; another one in tests.
    """

    def __init__(self, budget_bytes: int, process: Path = SELF) -> None:
        self.budget_bytes = budget_bytes
        self._process = process
        self._known_bytes = 0  # a peak of before the last reset, where the kernel keeps it

    def peak_bytes(self) -> int | None:
        """Highest resident set since the last reset (VmHWM, measured by the kernel).

        Returns:
            None where it cannot be told: the kernel does not count it, or an older peak that it
            would not forget was higher.
        """
        peak = self._read()
        return peak if peak > self._known_bytes else None

    def _read(self) -> int:
        return peak_rss_bytes(self._process)

    def reset(self) -> bool:
        """Forget the peak so far.

        Returns:
            False where the kernel does not let us; then only what rises above it counts.
        """
        if not reset_peak_rss(self._process):
            self._known_bytes = self._read()
            return False
        self._known_bytes = 0
        return True

    def is_over(self) -> bool:
        """Whether the peak has passed the budget since the last reset."""
        return (self.peak_bytes() or 0) > self.budget_bytes

    def device_peak(self) -> None:
        """None: it watches the process alone."""


def is_allocation_failure(error: BaseException) -> bool:
    """Whether an error means that memory ran out.

    Python and numpy raise MemoryError, torch and ONNX Runtime a RuntimeError that says so.
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower() for words in ALLOCATION_FAILED
    )

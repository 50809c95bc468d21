"""A memory budget: plans for a piece of work, the one in use, its peak and guard, corrections.

    budget = Budget(found, choose(found, budget_bytes), Guard(budget_bytes), corrections, base_id)
    budget.begin(budget.option)
    smaller = budget.after_step()  # another option if the peak has exceeded the budget

Which plan is next is decided here; the engine that holds the budget runs it. `Corrections` keeps
measured peaks in one small file and corrects later predictions of the memory formula:

    corrections = Corrections(state_folder / "corrections.json")
    key = Key(base.base_id, "torch", str(spec), plan.dtype)
    corrections.record(key, plan, option.memory.total, guard.peak_bytes())
    options(work, runtime, nominal, corrections.corrector(base.base_id, "torch", str(spec)))

Law: after a plan's peak has been recorded, the same plan's prediction is that peak.

`Guard` watches the process's own peak during training and recognizes failed allocations:

    guard = Guard(budget_bytes)
    guard.reset()
    engine.train_step(batch)
    if guard.is_over(): ...  # the planner's `next_smaller` says what then
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from smidgen.edge_client.errors import Failed
from smidgen.edge_client.files import PRIVATE, write_atomically
from smidgen.edge_client.metering.memory import SELF, peak_rss_bytes, reset_peak_rss
from smidgen.edge_client.planning.allocator import trim
from smidgen.edge_client.planning.cuda_memory import DevicePeak
from smidgen.edge_client.planning.plan import Plan, give_same_bytes, size_text
from smidgen.edge_client.planning.planner import Option, estimate, next_smaller, plan_in_words

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


SCHEMA = 1
KEPT = 8  # recent peaks kept of one key
# How far one plan's error may move the others' predictions, as parts of the estimate.
LOWEST, HIGHEST = -0.25, 1.0
DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@dataclass(frozen=True)
class Key:
    """The settings that two peaks must share to be compared.

    Attributes:
        base_id: SHA-256 of the base.
        engine: `torch` or `onnx`.
        adapter: The adapter's name.
        dtype: Computed in.
    """

    base_id: str
    engine: str
    adapter: str
    dtype: str

    def __str__(self) -> str:
        return " ".join((self.base_id, self.engine, self.adapter, self.dtype))


@dataclass(frozen=True)
class Peak:
    """One plan's measured peak beside its estimate.

    Attributes:
        plan: What was computed.
        estimated_bytes: The peak by formula (estimated).
        measured_bytes: The peak that the kernel counted (measured).
    """

    plan: Plan
    estimated_bytes: int
    measured_bytes: int


class Corrections:
    """The peaks a device remembers; a damaged file counts as none.

    Args:
        path: The file, made at the first record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._peaks = _read(path)

    def record(self, key: Key, plan: Plan, estimated_bytes: int, measured_bytes: int) -> None:
        """Remember a peak and write the file; a plan's newer peak takes the older one's place.

        Args:
            key: Base, engine, adapter and dtype.
            plan: What was computed, with the longest batch there was as its `tokens`.
            estimated_bytes: That plan's estimate.
            measured_bytes: Its peak.

        Raises:
            ValueError: A peak of nothing.
            OSError: The file cannot be written.
        """
        if estimated_bytes <= 0 or measured_bytes <= 0:
            raise ValueError(f"a peak above 0 is expected, not {measured_bytes} bytes")
        others = [peak for peak in self._peaks.get(str(key), []) if peak.plan != plan]
        peaks = [*others, Peak(plan, estimated_bytes, measured_bytes)]
        self._peaks[str(key)] = peaks[-KEPT:]
        write_atomically(self._path, _encoded(self._peaks), PRIVATE)

    def corrector(self, base_id: str, engine: str, adapter: str) -> Callable[[Plan, int], int]:
        """The planner's `correct`: a plan's estimated bytes -> its predicted peak."""

        def correct(plan: Plan, estimated_bytes: int) -> int:
            peaks = self._peaks.get(str(Key(base_id, engine, adapter, plan.dtype)), [])
            return corrected(peaks, plan, estimated_bytes)

        return correct


def corrected(peaks: Sequence[Peak], plan: Plan, estimated_bytes: int) -> int:
    """Correct one estimate.

    A plan that was measured is predicted as measured, moved by what its estimate has changed
    since. Another plan is moved by the largest difference among the remembered peaks, but by no
    more than a quarter down or the whole up.
    """
    for peak in peaks:
        if peak.plan == plan:
            return max(1, estimated_bytes + peak.measured_bytes - peak.estimated_bytes)
    if not peaks:
        return estimated_bytes
    difference = max(peak.measured_bytes - peak.estimated_bytes for peak in peaks)
    lowest, highest = round(LOWEST * estimated_bytes), round(HIGHEST * estimated_bytes)
    return estimated_bytes + min(max(difference, lowest), highest)


def _encoded(peaks: Mapping[str, Sequence[Peak]]) -> bytes:
    rows = {key: [asdict(peak) for peak in found] for key, found in peaks.items()}
    return json.dumps({"schema": SCHEMA, "peaks": rows}, sort_keys=True).encode()


def _read(path: Path) -> dict[str, list[Peak]]:
    try:
        content = json.loads(path.read_bytes())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {SCHEMA} is expected")
        return {key: [_peak(row) for row in rows] for key, rows in content["peaks"].items()}
    except FileNotFoundError:
        return {}
    except DAMAGED as error:
        log.warning("%s is damaged (%r); what it taught is forgotten", path, error)
        return {}


def _peak(row: Mapping[str, Any]) -> Peak:
    plan = dict(row["plan"])
    plan["recompute"] = tuple(int(layer) for layer in plan["recompute"])
    for name in ("micro_batch", "depth", "tokens"):
        plan[name] = int(plan[name])
    peak = Peak(Plan(**plan), int(row["estimated_bytes"]), int(row["measured_bytes"]))
    if min(peak.estimated_bytes, peak.measured_bytes) <= 0:
        raise ValueError("a peak above 0 is expected")
    return peak


log = logging.getLogger(__name__)


class MemoryRanOut(Failed):
    """Even the smallest plan needs more memory than there is."""


class Budget:
    """Steps down instead of dying.

    Args:
        found: Every plan there is for this work.
        option: The one chosen.
        guard: Watches the peak, of this process or on a CUDA device.
        corrections: Where peaks are remembered, or None.
        base_id: SHA-256 of the base, under which they are.

    Attributes:
        option: The one in use.
        guard: Watches the peak.
    """

    def __init__(
        self,
        found: Sequence[Option],
        option: Option,
        guard: PeakGuard,
        corrections: Corrections | None,
        base_id: str,
    ) -> None:
        self._found, self.option, self.guard = found, option, guard
        self._corrections, self._base_id = corrections, base_id
        self._longest = 0  # tokens of the longest batch by the plan in use
        self._is_cornered = False  # no smaller plan is left

    def option_of(self, plan: Plan) -> Option:
        """The option of a plan.

        Raises:
            ValueError: None found for this work has it.
        """
        same = [option for option in self._found if option.plan == plan]
        if not same:
            raise ValueError(f"{plan} is not a plan for this work")
        allowed = self.guard.budget_bytes
        return next((one for one in same if one.predicted_peak_bytes <= allowed), same[-1])

    def like(self, plan: Plan) -> Plan | None:
        """A plan that fits and gives the same bytes as one of before: that one, or the preferred.

        Returns:
            None where there is none.
        """
        budget_bytes = self.guard.budget_bytes
        same = [option for option in self._found if give_same_bytes(option.plan, plan)]
        fitting = [o.plan for o in same if o.predicted_peak_bytes <= budget_bytes]
        if self.option in same:  # the one in use, whatever is predicted of it
            fitting.append(self.option.plan)
        return plan if plan in fitting else next(iter(fitting), None)

    def begin(self, option: Option) -> None:
        """Measure an option from here on; memory that is free goes back first."""
        self.option, self._is_cornered = option, False
        trim()
        self.restart()

    def restart(self) -> None:
        self._longest = 0
        self.guard.reset()

    def before_step(self, tokens: int) -> None:
        """Note that a step begins, on texts of that many tokens."""
        self._longest = max(self._longest, tokens)

    def after_failure(self) -> Option:
        """The plan to continue with after a failed allocation.

        Raises:
            MemoryRanOut: There is no smaller plan.
        """
        smaller = next_smaller(self._found, self.option)
        if smaller is None:
            size = size_text(self.option.predicted_peak_bytes)
            raise MemoryRanOut(
                f"memory ran out in the smallest plan ({size} predicted); free some, lower "
                "--tokens or pack the base with fewer --bits"
            )
        log.warning("memory ran out; going on with %s", plan_in_words(smaller))
        return smaller

    def after_step(self) -> Option | None:
        """The plan to continue with if the peak has passed the budget and a smaller plan exists."""
        if self._is_cornered or not self.guard.is_over():
            return None
        peak, smaller = self.guard.peak_bytes() or 0, next_smaller(self._found, self.option)
        log.warning(
            "peak %s of %s allowed; %s",
            size_text(peak),
            size_text(self.guard.budget_bytes),
            f"going on with {plan_in_words(smaller)}" if smaller else "no smaller plan is left",
        )
        self.remember()
        self._is_cornered = smaller is None
        return smaller

    def remember(self) -> None:
        """Let the peak measured by the option in use correct what is predicted next time."""
        peak = self.guard.peak_bytes()
        if self._corrections is None or not self._longest or peak is None:
            return
        work = self.option.work
        plan = replace(self.option.plan, tokens=min(self._longest, self.option.plan.tokens))
        key = Key(self._base_id, work.computer, work.what, plan.dtype)
        estimated = estimate(work, plan, self.option.memory.runtime).total
        try:
            self._corrections.record(key, plan, estimated, peak)
        except OSError as error:
            log.warning("the round's peak could not be remembered: %s", error)

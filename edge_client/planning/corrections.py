"""What measured peaks taught this device about the memory formula, in one small file.

    corrections = Corrections(state_folder / "corrections.json")
    key = Key(base.base_id, "torch", str(spec), plan.dtype)
    corrections.record(key, plan, option.memory.total, guard.peak_bytes())
    options(work, runtime, nominal, corrections.corrector(base.base_id, "torch", str(spec)))

Law: after a plan's peak has been recorded, the same plan's prediction is that peak.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_client.files import PRIVATE, write_atomically
from edge_client.planning.plan import Plan

log = logging.getLogger(__name__)

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

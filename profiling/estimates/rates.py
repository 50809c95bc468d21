"""How fast this machine multiplies and moves memory, measured now in a fresh process.

The product is a plain float32 one by numpy's BLAS, as `profile train` measures it beside steps. The
memory's rate is that of adding two arrays into a third on all cores, all three together four times
the largest cache; counted are the bytes that are named, two read and one written, as STREAM does.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from edge_client.errors import Failed
from edge_client.planning.resources import measured_flops, usable_cores

SIZE = 1536  # rows of the product
REPEATS = 9
LEAST_BYTES = 96 << 20  # of the three arrays together, where no cache is told
MOST_BYTES = 768 << 20
TIMES_CACHE = 4
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Rates:
    """What a machine reaches.

    Attributes:
        flops_per_s: float32 operations of a plain product.
        bytes_per_s: Of memory, read and written together.
    """

    flops_per_s: float
    bytes_per_s: float


def measure(environment: Mapping[str, str] | None = None) -> Rates:
    """Measure both, one after the other, in a process of its own.

    Args:
        environment: More of it, such as what holds libraries to an instruction set.

    Raises:
        Failed: The process did not come to its end.
    """
    command = [sys.executable, "-m", "profiling.estimates.rates"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | (environment or {}), check=False
    )
    if done.returncode:
        rows = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Failed(f"this machine's rates could not be measured: {rows[-1]}")
    return Rates(**json.loads(done.stdout))


def memory_rate(repeats: int = REPEATS, cores: int | None = None, bytes_: int = 0) -> float:
    """Bytes per second of c = a + b in float32 on all cores; median of `repeats`.

    Args:
        repeats: Passes that count, after one that does not.
        cores: That move; None for all that may be used.
        bytes_: Of the three arrays together; 0: by the caches.
    """
    count = cores or usable_cores()
    length = (bytes_ or array_bytes(largest_cache())) // 12 // count
    parts = [tuple(np.ones(length, np.float32) for _ in range(3)) for _ in range(count)]
    moved, times = 12 * length * count, []
    with ThreadPoolExecutor(count) as pool:
        for _ in range(repeats + 1):
            start = time.perf_counter()
            list(pool.map(_add, parts))  # numpy lets go of the lock for so long an array
            times.append(time.perf_counter() - start)
    return moved / max(statistics.median(times[1:]), 1e-9)


def _add(arrays: tuple[np.ndarray, ...]) -> None:
    first, second, out = arrays
    np.add(first, second, out=out)


def array_bytes(cache_bytes: int) -> int:
    """How large the arrays are together: larger than the caches, and not too large for a board."""
    return min(max(TIMES_CACHE * cache_bytes, LEAST_BYTES), MOST_BYTES)


def largest_cache(folder: Path = CACHES) -> int:
    """Bytes of the largest cache that the kernel tells of; 0 where it tells of none."""
    found = [path.read_text().strip() for path in folder.glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = [int(text[:-1]) * units[text[-1]] for text in found if text[-1:] in units]
    return max(sizes, default=0)


if __name__ == "__main__":
    print(json.dumps(asdict(Rates(measured_flops(SIZE, REPEATS), memory_rate()))))

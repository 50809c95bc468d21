"""Roofline estimates: seconds per training step on other boards, with every input's source.

A step takes at least its products divided by the board's product rate, and at least its weight
bytes divided by the memory bandwidth. How much longer it takes, a step measured here tells: the
share of this machine's own roof that it reached.

    estimated = max(flops / product_rate, bytes / memory_rate) / share

Activations are not in the bytes; swapping and heat are not in the formula. Results are always
estimates; each input says whether it was measured, computed, published, commonly cited or assumed.

None of the boards' figures was measured by us. A peak is arithmetic on them: cores x clock x
operations per cycle, and bytes per transfer x transfers per second. `published` was read in a copy
of the document itself: Xavier NX (DA-09366-001), and the memory of Orin Nano. `commonly cited` was
not looked up in the named document; check it there before an estimate decides anything.

This machine is measured in a fresh process: a float32 product by numpy's BLAS, as `profile train`
measures beside its steps; and the sum of two arrays into a third on all cores, together four times
the largest cache, counting two reads and one write as STREAM does.
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
from typing import Literal

import numpy as np

from smidgen.edge_client.errors import Failed
from smidgen.edge_client.planning.layer_cost import linear_sizes
from smidgen.edge_client.planning.plan import Plan, Workload
from smidgen.edge_client.planning.resources import measured_flops, usable_cores
from smidgen.edge_client.planning.step_cost import step_flops
from smidgen.edge_client.planning.torch_memory import (
    DTYPE_BYTES,
    dense_bytes,
    elements,
    lowest_trained,
)

BoardKind = Literal["published", "commonly cited", "assumed"]
GIB = 1 << 30
CITED: BoardKind = "commonly cited"
A57 = (
    "commonly cited from the Arm Cortex-A57 Software Optimization Guide: one "
    "float32 fused multiply-add on four numbers "
    "per cycle"
)
A78 = (
    "commonly cited from the Arm Cortex-A78AE Software Optimization Guide: two "
    "float32 fused multiply-adds on four numbers "
    "per cycle"
)
ORIN_CORES = (
    "commonly cited from the NVIDIA Jetson Orin Nano module data sheet: six Cortex-A78AE at 1.5 GHz"
)


@dataclass(frozen=True)
class Board:
    """A board's processor and memory.

    Attributes:
        name: As people call it.
        memory_bytes: All of it; the system's own share included.
        cores: That the estimate computes on.
        clock_hz: With all of these cores on.
        flops_per_cycle: float32 operations of one core in a cycle; a multiply-add is two.
        memory_bits: Width of the memory's bus.
        transfers_per_s: On each of its lines.
        flags: What the kernel says that the processor has, for the planner.
        sources: Where each of these is from, and what is assumed.
        clock_kind: How we came by its cores and their clock.
        cycle_kind: By the operations per cycle.
        memory_kind: By the memory's bus.
    """

    name: str
    memory_bytes: int
    cores: int
    clock_hz: float
    flops_per_cycle: int
    memory_bits: int
    transfers_per_s: float
    flags: tuple[str, ...]
    sources: tuple[str, ...]
    clock_kind: BoardKind = CITED
    cycle_kind: BoardKind = CITED
    memory_kind: BoardKind = CITED

    @property
    def peak_flops_per_s(self) -> float:
        return self.cores * self.clock_hz * self.flops_per_cycle

    @property
    def peak_bytes_per_s(self) -> float:
        return self.memory_bits / 8 * self.transfers_per_s


BOARDS = {
    "nano": Board(
        "Jetson Nano 4 GB",
        *(4 * GIB, 4, 1.43e9, 8, 64, 3.2e9, ("asimd",)),
        sources=(
            "commonly cited from the NVIDIA Jetson Nano module data sheet: cores, clock, 64-bit "
            "LPDDR4 at 1600 MHz",
            A57,
        ),
    ),
    "tx2": Board(
        "Jetson TX2 8 GB",
        *(8 * GIB, 4, 2.0e9, 8, 128, 3.732e9, ("asimd",)),
        sources=(
            "commonly cited from the NVIDIA Jetson TX2 module data sheet: four Cortex-A57 at 2.0 "
            "GHz, 128-bit LPDDR4 at 1866 MHz; the two Denver cores are left out",
            A57,
        ),
    ),
    "xavier-nx": Board(
        "Jetson Xavier NX 8 GB",
        *(8 * GIB, 6, 1.4e9, 8, 128, 3.2e9, ("asimd", "asimdhp")),
        sources=(
            "NVIDIA Jetson Xavier NX module data sheet DA-09366-001: six Carmel cores, 128-bit "
            "LPDDR4x at 1600 MHz; their 1.9 GHz are of two cores, 1.4 GHz of all six in the 15 W "
            "mode",
            "operations per cycle of a Carmel core are not published: those of a Cortex-A57 are "
            "assumed",
        ),
        clock_kind="published",
        cycle_kind="assumed",
        memory_kind="published",
    ),
    "orin-nano": Board(
        "Jetson Orin Nano 8 GB",
        *(8 * GIB, 6, 1.5e9, 16, 128, 4.266e9, ("asimd", "asimdhp")),
        sources=(
            ORIN_CORES,
            "NVIDIA Jetson Orin Nano module data sheet: 128-bit LPDDR5 at 2133 MHz",
            A78,
        ),
        memory_kind="published",
    ),
    "orin-nano-4": Board(
        "Jetson Orin Nano 4 GB",
        *(4 * GIB, 6, 1.5e9, 16, 64, 4.266e9, ("asimd", "asimdhp")),
        sources=(
            ORIN_CORES,
            "NVIDIA Jetson Orin Nano module data sheet: 64-bit LPDDR5 at 2133 MHz",
            A78,
        ),
        memory_kind="published",
    ),
}


SIZE = 1536  # rows of the product
REPEATS = 9
LEAST_BYTES = 96 << 20  # of the three arrays together, where no cache is told
MOST_BYTES = 768 << 20
TIMES_CACHE = 4


@dataclass(frozen=True)
class MeasuredRates:
    """What a machine reaches.

    Attributes:
        flops_per_s: float32 operations of a plain product.
        bytes_per_s: Of memory, read and written together.
    """

    flops_per_s: float
    bytes_per_s: float


def measure(environment: Mapping[str, str] | None = None) -> MeasuredRates:
    """Measure both, one after the other, in a process of its own.

    Args:
        environment: More of it, such as what holds libraries to an instruction set.

    Raises:
        Failed: The process did not come to its end.
    """
    command = [sys.executable, "-m", "smidgen.profiling.estimates"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | (environment or {}), check=False
    )
    if done.returncode:
        rows = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Failed(f"this machine's rates could not be measured: {rows[-1]}")
    return MeasuredRates(**json.loads(done.stdout))


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


def largest_cache(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache that the kernel tells of; 0 where it tells of none."""
    found = [path.read_text().strip() for path in folder.glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = [int(text[:-1]) * units[text[-1]] for text in found if text[-1:] in units]
    return max(sizes, default=0)


REACHED = 0.5  # of a board's peaks by a plain product and by plain copying; assumed
FORMULA = "max(operations / product rate, bytes / memory rate) / share of the roof"
Kind = Literal["measured", "computed", BoardKind]


@dataclass(frozen=True)
class Input:
    """A number that goes into an estimate.

    Attributes:
        name: What it is.
        value: In words, with its unit.
        kind: How we came by it.
        source: From where.
    """

    name: str
    value: str
    kind: Kind
    source: str


@dataclass(frozen=True)
class StepWork:
    """What one step computes and moves, by formula.

    Attributes:
        flops: Operations of its matrix products.
        moved_bytes: Stored weights read, dense ones written and read again; activations left out.
    """

    flops: float
    moved_bytes: float


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step on a board, estimated.

    Attributes:
        step_s: By `FORMULA`.
        is_bound: Whether no step was measured here, so that it can only take longer.
        limit: What the roof is made of there: `products` or `memory`.
        inputs: All that went into it.
    """

    board: Board
    step_s: float
    is_bound: bool
    limit: Literal["products", "memory"]
    inputs: tuple[Input, ...]


def step_work(work: Workload, plan: Plan) -> StepWork:
    """What a plan's step computes and moves.

    Every pass of a micro-batch through a layer reads its stored weights, writes them dense and
    reads those again; a recomputation leaves out the feed-forward's last product.
    """
    sizes = {name: elements(size) for name, size in linear_sizes(work.shape).items()}
    layer, lowest = sum(sizes.values()), lowest_trained(work, plan)
    again = sum(index >= lowest for index in plan.recompute)
    passes = 2 * work.shape.layers - lowest
    used = (layer * passes + (layer - sizes["down"]) * again) * -(-work.batch // plan.micro_batch)
    is_stored_dense = dense_bytes((1, 1), work.bits, plan.dtype) == 0
    dense = 0 if is_stored_dense else 2 * DTYPE_BYTES[plan.dtype]
    return StepWork(step_flops(work, plan), used * (work.bits / 8 + dense))


def roof_s(step: StepWork, rates: MeasuredRates) -> float:
    """The least seconds that a step can take where products and memory reach these rates."""
    return max(step.flops / rates.flops_per_s, step.moved_bytes / rates.bytes_per_s)


def reached(step: StepWork, measured_s: float, here: MeasuredRates) -> float:
    """The share of this machine's roof that a measured step reached.

    Above 1 only where the rates are too low: others were at work while they were measured.
    """
    return roof_s(step, here) / measured_s


def estimate(step: StepWork, board: Board, share: float | None) -> Estimate:
    """Seconds of a step on a board.

    Args:
        step: What it computes and moves.
        board: The board.
        share: What `reached` said of a step measured here; None: no step was, and the roof itself
            is the answer, which a real step does not reach.
    """
    rates = MeasuredRates(REACHED * board.peak_flops_per_s, REACHED * board.peak_bytes_per_s)
    products_s = step.flops / rates.flops_per_s
    is_product = products_s >= step.moved_bytes / rates.bytes_per_s
    return Estimate(
        board,
        roof_s(step, rates) / (share or 1.0),
        share is None,
        "products" if is_product else "memory",
        _inputs(step, board, share),
    )


def _inputs(step: StepWork, board: Board, share: float | None) -> tuple[Input, ...]:
    cores = f"{board.cores} x {board.clock_hz / 1e9:g} GHz"
    cycle = f"{board.flops_per_cycle} per core"
    bus = f"{board.memory_bits} bits x {board.transfers_per_s / 1e9:.2f} G transfers per second"
    products, memory = board.peak_flops_per_s / 1e9, board.peak_bytes_per_s / 1e9
    told: tuple[str, Kind, str] = ("1", "assumed", "no step measured here tells it")
    if share is not None:
        told = (f"{share:.2f}", "measured", "a step here, beside this machine's own roof")
    rows: list[tuple[str, str, Kind, str]] = [
        ("operations of a step", f"{step.flops / 1e9:.0f} G", "computed", "shape and plan"),
        (
            "bytes of weights moved",
            f"{step.moved_bytes / 1e9:.2f} GB",
            "computed",
            "shape and plan, without activations",
        ),
        ("cores and clock", cores, board.clock_kind, "sources, below"),
        ("operations per cycle", cycle, board.cycle_kind, "sources, below"),
        ("memory's bus", bus, board.memory_kind, "sources, below"),
        ("peak of products", f"{products:.1f} G/s", "computed", "cores x clock x operations"),
        ("peak of memory", f"{memory:.1f} GB/s", "computed", "bytes of the bus x transfers"),
        (
            "of these peaks",
            f"{100 * REACHED:.0f} %",
            "assumed",
            "no plain product was measured there by us",
        ),
    ]
    return (*(Input(*row) for row in rows), Input("share of the roof", *told))


if __name__ == "__main__":
    print(json.dumps(asdict(MeasuredRates(measured_flops(SIZE, REPEATS), memory_rate()))))

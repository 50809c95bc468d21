"""Seconds of a training step on a board that is not here: a roofline, and every input beside it.

A step takes at least as long as its products at the board's product rate, and at least as long as
moving its weights at the memory's rate (the roof). How much longer, a step measured here tells: the
share of this machine's own roof that it reached.

    estimated = max(flops / product_rate, bytes / memory_rate) / share

Activations are not in the bytes, swapping and heat are not in the formula. Every figure that comes
out of it is estimated; the inputs say whether they were measured, computed, published, commonly
cited or assumed.
"""

from dataclasses import dataclass
from typing import Literal

from edge_client.planning.layer_cost import linear_sizes
from edge_client.planning.plan import Plan, Workload
from edge_client.planning.step_cost import step_flops
from edge_client.planning.torch_memory import (
    DTYPE_BYTES,
    dense_bytes,
    elements,
    lowest_trained,
)
from profiling.estimates.boards import Board, BoardKind
from profiling.estimates.rates import Rates

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


def roof_s(step: StepWork, rates: Rates) -> float:
    """The least seconds that a step can take where products and memory reach these rates."""
    return max(step.flops / rates.flops_per_s, step.moved_bytes / rates.bytes_per_s)


def reached(step: StepWork, measured_s: float, here: Rates) -> float:
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
    rates = Rates(REACHED * board.peak_flops_per_s, REACHED * board.peak_bytes_per_s)
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

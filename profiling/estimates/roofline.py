"""Roofline estimates: seconds per training step on other boards, with every input's source.

A step takes at least its products divided by the board's product rate, and at least its weight
bytes divided by the memory bandwidth. How much longer it takes, a step measured here tells: the
share of this machine's own roof that it reached.

    estimated = max(flops / product_rate, bytes / memory_rate) / share

Activations are not in the bytes; swapping and heat are not in the formula. Results are always
estimates; each input says whether it was measured, computed, published, commonly cited or assumed.

Also here: FeS's cost model of a TX2 from its authors' plotting notebooks (a batch of 4 texts takes
fixed seconds; computing and sending each draw a fixed power), and published figures such as
AUG-FedPrompt's table 4. Its `OOM (9.8)` is a step that ran out of the board's memory and took
9.8 GB on the authors' server (note 3 of the paper).
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
from profiling.estimates.boards import Board, BoardKind, MeasuredRates

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


SOURCE = "FeS (MobiCom'23), the constants of its plotting notebooks"
BATCH = 4
TRAIN_S = {"full": 2.0, "bias": 1.0}  # of a batch, all weights trained, or biases alone
READ_S = {"full": 1.0, "bias": 0.5}  # of a batch that is only read
COMPUTE_W, RADIO_W = 12.0, 4.0
RADIO_BYTES_PER_S = 1e6  # ours: theirs is not known


def seconds(trained_forwards: float, read_forwards: float, layers: int, kind: str) -> float:
    """Estimated seconds on a TX2.

    Args:
        trained_forwards: Layer-forwards of training; a batch is 3 of them per text and layer.
        read_forwards: Layer-forwards of reading texts.
        layers: The base's layers.
        kind: `full` or `bias`: what is trained.
    """
    trained = trained_forwards / (3 * layers * BATCH)
    read = read_forwards / (layers * BATCH)
    return trained * TRAIN_S[kind] + read * READ_S[kind]


def kilojoules(computing_s: float, sent_bytes: float) -> float:
    """Estimated energy on a TX2: computing, and sending at 1 MB per second."""
    return (COMPUTE_W * computing_s + RADIO_W * sent_bytes / RADIO_BYTES_PER_S) / 1e3


# Rows as printed, but `OOM (9.8)` is 9.8 here; `OUT_OF_MEMORY` says of which models.
TABLE_4 = """
             | ALBERT-base | BERT-base | BERT-large | RoBERTa-base | RoBERTa-large
Memory (GB)  | 3.7         | 5.4       | 9.8        | 5.8          | 10.4
Latency (s)  | 1.4         | 1.9       | ~7.8       | 2.1          | ~8.1
Param. (M)   | 11.7        | 109.5     | 334.9      | 124.6        | 355.3
"""
OUT_OF_MEMORY = ("BERT-large", "RoBERTa-large")

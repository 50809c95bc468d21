"""Time of a training step, by formula: operations, dequantized weights, seconds.

Nominal rates depend on the kind of processor alone, so that two devices of one kind choose the same
plan; measured rates only improve the seconds that are printed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from smidgen.edge_client.bases.architectures import Linears
from smidgen.edge_client.planning.layer_cost import (
    block_of,
    feed_forward,
    last_linear,
    late,
    linear_sizes,
    seen_tokens,
)
from smidgen.edge_client.planning.plan import Plan, Workload
from smidgen.edge_client.planning.torch_memory import (
    dense_bytes,
    elements,
    layer_parameters,
    lowest_trained,
)

# Operations per second and core of a matrix product by processor feature; the first that fits
# counts. The AVX-512 row was measured (2 cores: 192 and 437 G), the others are typical.
_CORE_FLOPS: tuple[tuple[str, Mapping[str, float]], ...] = (
    ("amx_bf16", {"float32": 100e9, "bfloat16": 800e9, "float16": 800e9}),
    ("avx512_fp16", {"float32": 96e9, "bfloat16": 218e9, "float16": 190e9}),
    ("avx512f", {"float32": 96e9, "bfloat16": 218e9}),
    ("avx2", {"float32": 45e9}),
    ("bf16", {"float32": 16e9, "bfloat16": 48e9, "float16": 32e9}),
    ("asimdhp", {"float32": 16e9, "float16": 30e9}),
    ("asimd", {"float32": 10e9}),
)
# Bytes of dense weights that a core makes of stored ones in a second; x86 measured.
_CORE_DENSE: Mapping[str, Mapping[int, float]] = {
    "x86": {4: 1.8e9, 8: 8e9, 16: 8e9, 32: 8e9},
    "other": {4: 0.6e9, 8: 2e9, 16: 2e9, 32: 2e9},
}
_LAYER_CALL_S = {"x86": 3e-4, "other": 15e-4}
SLICED = 1.3  # of a step's products, where large matrices are in slices; measured 1.1 to 1.4
STORAGE = 1e8  # bytes per second, written or read; of an SD card
BACKWARD_SCORES = 2.5  # of attention's forward: scores recomputed, then four products, not two


@dataclass(frozen=True)
class Rates:
    """How fast a device computes.

    Attributes:
        flops_per_s: Rate of matrix products on all cores, by dtype; the fast dtypes alone.
        dense_bytes_per_s: Rate of dequantizing, in bytes of the result, by stored bits.
        layer_call_s: What a pass through a layer takes however small it is.
    """

    flops_per_s: Mapping[str, float]
    dense_bytes_per_s: Mapping[int, float]
    layer_call_s: float

    def scaled(self, flops_per_s: float) -> "Rates":
        """These rates, scaled to a machine whose float32 products run at `flops_per_s`."""
        factor = flops_per_s / self.flops_per_s["float32"]
        flops = {dtype: rate * factor for dtype, rate in self.flops_per_s.items()}
        dense = {bits: rate * factor for bits, rate in self.dense_bytes_per_s.items()}
        return Rates(flops, dense, self.layer_call_s / factor)


def nominal_rates(flags: Collection[str], dtypes: Collection[str], cores: int) -> Rates:
    """Rates of a kind of processor; equal arguments, equal rates.

    Args:
        flags: What the processor says it has (`/proc/cpuinfo`).
        dtypes: What it computes fast beside float32.
        cores: Used at once.
    """
    per_core = next((rates for flag, rates in _CORE_FLOPS if flag in flags), {"float32": 8e9})
    chosen = [dtype for dtype in ("float32", *dtypes) if dtype in per_core]
    kind = "x86" if "sse2" in flags else "other"
    flops = {dtype: cores * per_core[dtype] for dtype in chosen}
    dense = {bits: cores * rate for bits, rate in _CORE_DENSE[kind].items()}
    return Rates(flops, dense, _LAYER_CALL_S[kind])


def layer_forwards(work: Workload, plan: Plan) -> int:
    """Layer-forwards of one step: a text through a layer is 1, recomputed 1, back 2."""
    trained = work.shape.layers - lowest_trained(work, plan)
    again = sum(index >= lowest_trained(work, plan) for index in plan.recompute)
    return work.batch * (work.shape.layers + 2 * trained + again)


def step_seconds(work: Workload, plan: Plan, rates: Rates) -> float:
    """Estimated seconds of one optimizer step.

    A smaller micro-batch, a layer more recomputed or a layer more trained never takes less.
    """
    return (
        (SLICED if plan.is_sliced else 1.0) * step_flops(work, plan) / rates.flops_per_s[plan.dtype]
        + dequantized_bytes(work, plan) / rates.dense_bytes_per_s[work.bits]
        + layer_calls(work, plan) * rates.layer_call_s
        + spilled_bytes(work, plan) / STORAGE
    )


def spilled_bytes(work: Workload, plan: Plan) -> int:
    """Bytes that one step writes to a file and reads again: layers' inputs, and moments."""
    if not plan.is_spilled:
        return 0
    rows = work.batch * (plan.tokens + work.spec.prompt_tokens)
    layers = work.shape.layers - lowest_trained(work, plan)
    trained = range(work.shape.stored_layers)[-plan.depth :]
    moments = work.moments * sum(layer_parameters(work, layer) for layer in trained)
    return 2 * 4 * (rows * work.shape.hidden * layers + moments)


def layer_calls(work: Workload, plan: Plan) -> int:
    """Passes of micro-batches through layers: forward, backward and recomputing are one each."""
    lowest = lowest_trained(work, plan)
    again = sum(index >= lowest for index in plan.recompute)
    return (2 * work.shape.layers - lowest + again) * -(-work.batch // plan.micro_batch)


def step_flops(work: Workload, plan: Plan) -> float:
    """Operations of one step in matrix products; adapters, norms and heads of texts are left out.

    Frozen weights have no gradient of their own, so going back through a linear costs what going
    forward costs. A recomputation leaves out the feed-forward's last product.
    """
    # All words are asked for twice, for their sum and for their shares, and once they go back. A
    # head of tags goes forward, back, and to its own gradient.
    words = 2.0 * work.batch * work.masked * work.shape.vocabulary * work.shape.embedding
    tags = 2.0 * work.batch * plan.tokens * work.num_labels * work.shape.hidden
    lowest, total = lowest_trained(work, plan), 3.0 * (words + tags * work.is_of_words)
    for index in range(work.shape.layers):
        linears, inside, last, attention = _layer_flops(work, plan, index)
        total += linears + attention
        if index >= lowest:
            total += linears + BACKWARD_SCORES * attention
            if index in plan.recompute:
                total += linears - last + attention
            elif plan.is_sliced:  # a feed-forward in parts is never kept
                total += inside
    return total


def _layer_flops(work: Workload, plan: Plan, index: int) -> tuple[float, float, float, float]:
    """Forward of the whole batch, in operations.

    Of all linears, of those inside a feed-forward in parts, of the last linear, of
    attention's two products.
    """
    shape, tokens = work.shape, plan.tokens + work.spec.prompt_tokens
    texts, rows = work.batch, work.batch * tokens
    is_short = index == shape.layers - 1 and work.is_top_short
    few = late(shape, is_short)  # what goes on with one row per text
    linears, sizes = dict[str, float](), linear_sizes(shape)
    for op in block_of(shape, is_short):
        if isinstance(op, Linears):
            seen = texts if op.of in few else rows
            linears |= {name: 2.0 * seen * elements(sizes[name]) for name in op.names}
    queries = texts if "q" in few else rows
    scores = queries * seen_tokens(shape, index, tokens) * shape.heads * shape.head_dim
    parts = feed_forward(shape)
    inside = sum(linears[name] for name in parts.inner.names) if parts else 0.0
    return sum(linears.values()), inside, linears.get(last_linear(shape), 0.0), 4.0 * scores


def dequantized_bytes(work: Workload, plan: Plan) -> int:
    """Bytes of dense weights that one step makes: each use of a layer makes its own."""
    sizes = linear_sizes(work.shape)
    dense = {name: dense_bytes(size, work.bits, plan.dtype) for name, size in sizes.items()}
    layer, lowest = sum(dense.values()), lowest_trained(work, plan)
    trained = work.shape.layers - lowest
    again = sum(index >= lowest for index in plan.recompute)
    once = (
        layer * (work.shape.layers + trained)
        + (layer - dense.get(last_linear(work.shape), 0)) * again
    )
    return once * -(-work.batch // plan.micro_batch)

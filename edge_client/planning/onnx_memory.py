"""Memory of a training step of the onnx engine, by formula.

The counterpart of `planning.torch_memory`, whose parts it shares. This engine reuses its buffers
from layer to layer and from step to step, so a step's peak is their sum, not the highest of its
moments, plus what one graph holds while it runs and what lies in the heap beside it.

Sizes: N tokens of a micro-batch (prompt included), H hidden, F intermediate; 4 bytes per number.
"""

from dataclasses import dataclass

from smidgen.edge_client.adapters.spec import frozen_layers
from smidgen.edge_client.bases.architectures import rooms_of
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.quantization import BLOCK
from smidgen.edge_client.planning.layer_cost import (
    HEADS,
    PASS_ELEMENTS,
    SCORES,
    adapted_linears,
    block_of,
    columns,
    feed_forward,
    has_residual_norms,
    inner_columns,
    inner_registers,
    is_large,
    linear_sizes,
    read_by_several,
    register_widths,
    score_rows,
    slice_size,
    tape,
)
from smidgen.edge_client.planning.plan import Plan, Workload
from smidgen.edge_client.planning.torch_memory import (
    MemoryEstimate,
    adapter_bytes,
    answers,
    answers_bytes,
    elements,
    layer_pages,
    lowest_trained,
    score_bias_bytes,
    stored_bytes,
    vector_elements,
    while_loading,
    words_together,
)

# Fitted to peaks measured by `smidgen profile grid`.
FIXED_BYTES = 6 << 20  # threads, sessions and buffers; a step's code is less than a start's
PASS_ARRAYS = 4  # of an element-wise pass, held at once


@dataclass(frozen=True)
class _Sizes:
    """Bytes of one micro-batch: states (N, H), the feed-forward's inside (N, F), a column."""

    state: int
    inner: int
    number: int


def _sizes(work: Workload, plan: Plan) -> _Sizes:
    texts = min(plan.micro_batch, work.batch)
    rows = texts * (plan.tokens + work.spec.prompt_tokens)
    shape = work.shape
    return _Sizes(4 * rows * shape.hidden, 4 * rows * shape.intermediate, 4 * rows)


def estimate(work: Workload, plan: Plan, runtime_bytes: int) -> MemoryEstimate:
    """Estimate a plan's peak.

    A smaller micro-batch, more recomputed layers (the lowest first, of two or more) or a smaller
    depth never give a larger total; nor do inputs kept in half precision, of four layers or more
    (but for an adapter of the top layer alone).

    Args:
        work: What is trained.
        plan: How.
        runtime_bytes: Resident bytes of the process before the base is opened.
    """
    step = MemoryEstimate(
        runtime=runtime_bytes,
        adapter=adapter_bytes(work, plan),
        vectors=4 * vector_elements(work.shape),
        scratch=_dense_bytes(work, plan) + score_bias_bytes(work, plan),
        weights=_pages(work, plan),
        kept=_waiting_bytes(work, plan) + _room_bytes(work, plan),
        transient=_passing_bytes(work, plan),
        slack=FIXED_BYTES + work.tokenizer_bytes.held,
    )
    return while_loading(work, step)


def _dense_bytes(work: Workload, plan: Plan) -> int:
    """The room that holds one dense matrix at a time, or some of a head's words.

    Of a large matrix in slices those of two threads; of a feed-forward in parts one's columns. 0 if
    matrices are stored dense.
    """
    if work.bits == 32:
        return 0
    shape, sizes = work.shape, dict(linear_sizes(work.shape))
    found = [words_together(work) * shape.embedding]
    if plan.is_sliced and (op := feed_forward(shape)) is not None:
        found.append(inner_columns(shape) * shape.hidden)
        for name in (*op.inner.names, *op.last.names):
            del sizes[name]
    for size in sizes.values():
        if plan.is_sliced and is_large(size):
            axes = ((slice_size(size, axis, BLOCK, 2), size[1 - axis]) for axis in (0, 1))
            found += [2 * elements(part) for part in axes]
        else:
            found.append(elements(size))
    return 4 * max(found)


def _waiting_bytes(work: Workload, plan: Plan) -> int:
    """What trained layers leave for backward: inputs, and tapes of those not recomputed.

    A tape is queries, keys, values, the sum between and the activation's input; attention's result
    too where it is learnt from. The top layer goes on with one row per text after keys and values,
    unless many places of a text are asked at.
    """
    sizes, top, shape = _sizes(work, plan), work.shape.layers - 1, work.shape
    entry = sizes.state // 2 if plan.is_kept_in_half else sizes.state * (not plan.is_spilled)
    adapted, total = adapted_linears(work.spec, shape), 0
    for index in range(lowest_trained(work, plan), work.shape.layers):
        total += entry
        if index not in plan.recompute:
            is_short = index == top and work.is_top_short
            total += sizes.number * columns(shape, tape(shape, adapted, is_short, plan.is_sliced))
    return total


def _room_bytes(work: Workload, plan: Plan) -> int:
    """The rooms that all layers share."""
    sizes, lowest = _sizes(work, plan), lowest_trained(work, plan)
    # Two take turns for inputs that do not wait where they lie.
    turns = 2 if plan.is_put_aside else min(lowest, 2)
    cut = frozen_layers(work.spec, work.shape.layers)
    if 0 < cut < work.shape.layers:  # the states at the cut lie apart from what makes them
        turns = 3 if plan.is_put_aside or cut < lowest else 2
    if work.has_many_answers:  # the top layer's own sum is of all tokens
        turns = 3 if cut == work.shape.layers else max(turns, 1)
    is_all_kept = lowest == 0 and not plan.recompute
    shape, is_sliced = work.shape, plan.is_sliced
    own = tape(shape, frozenset(), False, is_sliced)
    shared = 0 if is_all_kept else columns(shape, own)
    has_back = lowest < shape.layers
    tokens = plan.tokens + work.spec.prompt_tokens
    heads = HEADS if score_rows(shape, tokens) == tokens else HEADS[1:]  # in parts over queries
    back = columns(shape, (*heads, *read_by_several(shape, is_sliced))) if has_back else 0
    back += shape.hidden if has_back and has_residual_norms(shape) else 0
    # What is recomputed, and attention's result.
    made = register_widths(shape, is_sliced).keys() - {*own, "x", "out"}
    places = rooms_of(block_of(shape, is_sliced=is_sliced))
    shared += back + columns(shape, {places.get(name, name) for name in made})
    if is_sliced:  # a part of the feed-forward's inside, and the gradient at it
        shared += inner_columns(shape) * (inner_registers(shape) + has_back)
    logits = 4 * answers(work, plan) * words_together(work)
    return turns * sizes.state + sizes.number * shared + logits


def _passing_bytes(work: Workload, plan: Plan) -> int:
    """What is held in passing.

    Graphs keep what they hold in the runtime's arena; what a head of all words holds lies in the
    heap beside it. For other heads the constants were fitted to the largest of all.
    """
    graph, embedding = _graph_bytes(work, plan), _embedding_bytes(work, plan)
    beside = max(embedding, answers_bytes(work, plan))
    return graph + beside if work.masked else max(graph, beside)


def _pages(work: Workload, plan: Plan) -> int:
    """Bytes of a stored layer, or of one matrix at a time where large ones are in slices."""
    if not plan.is_sliced:
        return layer_pages(work)
    return max(stored_bytes(size, work.bits) for size in linear_sizes(work.shape).values())


def _graph_bytes(work: Workload, plan: Plan) -> int:
    """The most that any one graph holds while it runs."""
    sizes, spec = _sizes(work, plan), work.spec
    texts, tokens = min(plan.micro_batch, work.batch), plan.tokens + spec.prompt_tokens
    shape, queries = work.shape, score_rows(work.shape, tokens)
    scores = shape.heads * queries * tokens
    chunk, states = min(texts, max(1, SCORES // scores)), 7 * tokens * shape.hidden
    if queries < tokens:  # in parts: queries, their gradients; all keys and values, theirs twice
        kv_width = shape.kv_heads * shape.head_dim
        states = 4 * queries * shape.heads * shape.head_dim + 6 * tokens * kv_width
    attention = 4 * chunk * (4 * scores + states)
    summand = sizes.inner if "up" in spec.adapted else sizes.state  # a linear's, before its Gemm
    if plan.is_sliced:
        summand = max(sizes.state, sizes.number * inner_columns(shape))
    return max(attention, summand, PASS_ARRAYS * min(4 * PASS_ELEMENTS, sizes.inner))


def _embedding_bytes(work: Workload, plan: Plan) -> int:
    """The rows of words, and with a prompt before them; none that lie where layers read them."""
    family, spec = family_of(work.shape.architecture), work.spec
    if not (family.embedding_norm or family.embedding_map or spec.prompt_tokens):
        return 0
    rows = min(plan.micro_batch, work.batch) * (plan.tokens + spec.prompt_tokens)
    return (2 if spec.prompt_tokens else 1) * 4 * rows * work.shape.embedding

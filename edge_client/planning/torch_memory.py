"""Memory of a training step of the torch engine, by formula: every part named.

`planning.onnx_memory` is the counterpart. The formulas follow `engine.torch_backend.network` line
by line: what a layer's graph keeps, what a layer holds while it runs, which stored bytes are mapped
in. Estimated, never measured; `planning.budget.Corrections` adds what measured peaks teach.

    work = Workload(shape, bits=4, spec=parse_adapter("lora:8"), batch=4, tokens=256)
    estimate(work, plan, runtime)

Sizes: N tokens of a micro-batch (prompt included), T tokens of a text, H hidden, F intermediate,
d bytes of a number.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from smidgen.edge_client.adapters.spec import frozen_layers, head_sizes, largest_rank, layer_modules
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.families import family_of, has_bias
from smidgen.edge_client.bases.layout import module_size
from smidgen.edge_client.bases.quantization import BLOCK
from smidgen.edge_client.planning.layer_cost import (
    SCORES,
    adapted_linears,
    answers_together,
    autograd_keeps,
    columns,
    inner_registers,
    linear_sizes,
    score_rows,
    word_rows,
)
from smidgen.edge_client.planning.plan import Plan, Workload
from smidgen.edge_client.updates.forms import is_lora

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# The next three are fitted to peaks measured by `smidgen profile grid`.
FIXED_BYTES = 72 << 20  # code, threads and buffers that only a first step brings in
HOLES = 0.15  # freed memory lying between what is held, as a share of it; more is trimmed
GROWTH_BYTES = 16 << 20  # what one layer may add to the heap beside what it holds


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimated bytes at a step's highest moment.

    Attributes:
        runtime: The process before the base is opened.
        adapter: Values, gradients and the optimizer's numbers of what is trained.
        vectors: The base's norms and biases, held in float32.
        scratch: Where one linear at a time is made dense.
        weights: Pages of the map: a stored layer and the head, or what lies around words' rows.
        kept: Layers' inputs and graphs held for backward.
        transient: What one layer holds while it runs.
        slack: The tokenizer, the libraries' own buffers, holes in the heap; fitted.
    """

    runtime: int
    adapter: int
    vectors: int
    scratch: int
    weights: int
    kept: int
    transient: int
    slack: int

    @property
    def ceiling(self) -> int:
        """The most that may be resident between two layers for a peak of `total`."""
        return self.total - self.transient - self.weights - GROWTH_BYTES

    @property
    def total(self) -> int:
        """The process's resident bytes, all parts together."""
        return (
            self.runtime
            + self.adapter
            + self.vectors
            + self.scratch
            + self.weights
            + self.kept
            + self.transient
            + self.slack
        )


def estimate(work: Workload, plan: Plan, runtime_bytes: int) -> MemoryEstimate:
    """Estimate a plan's peak.

    A smaller micro-batch, more recomputed layers or a smaller depth never give a larger total.

    Args:
        work: What is trained.
        plan: How.
        runtime_bytes: Resident bytes of the process before the base is opened.
    """
    peak = max(moments(work, plan), key=lambda moment: moment.total)
    step = MemoryEstimate(
        runtime=runtime_bytes,
        adapter=adapter_bytes(work, plan),
        vectors=4 * vector_elements(work.shape),
        scratch=_scratch_bytes(work, plan) + score_bias_bytes(work, plan),
        weights=peak.weights,
        kept=peak.kept,
        transient=peak.transient,
        slack=_slack_bytes(work, plan, peak),
    )
    return while_loading(work, step)


def while_loading(work: Workload, step: MemoryEstimate) -> MemoryEstimate:
    """A step's estimate, or with so much slack that the tokenizer can be read.

    One that is let go is read between two steps, where what a first one brings in is there; what
    is left of the last reading is part of the next.
    """
    tokenizer = work.tokenizer_bytes
    slack = step.slack - tokenizer.held if work.is_vocabulary_let_go else 0
    held = step.runtime + step.adapter + step.vectors + slack
    short = held + tokenizer.loading - step.total
    return replace(step, slack=step.slack + max(0, short))


def _slack_bytes(work: Workload, plan: Plan, peak: "Moment") -> int:
    """Slack for what the formula leaves out, and for memory that a layer frees before a trim."""
    sizes = _sizes(work, plan)
    layer = max(_forward_bytes(work, sizes, False, True), _backward_bytes(work, sizes, False))
    holes = round(HOLES * (peak.kept + peak.transient)) + layer
    return FIXED_BYTES + work.tokenizer_bytes.held + holes


def elements(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def lowest_trained(work: Workload, plan: Plan) -> int:
    """The lowest computed layer that backward reaches; the number of layers if it reaches none."""
    layers = work.shape.layers
    return max(layers - plan.depth, frozen_layers(work.spec, layers))


def stored_bytes(size: tuple[int, int], bits: int) -> int:
    """Bytes of a matrix in the file, scales included."""
    scales = {4: 4 * elements(size) // BLOCK, 8: 4 * size[0]}.get(bits, 0)
    return elements(size) * bits // 8 + scales


def dense_bytes(size: tuple[int, int], bits: int, dtype: str) -> int:
    """Bytes a matrix takes while it is used; 0 if it is stored in the form it is used in."""
    width = DTYPE_BYTES[dtype]
    if (bits, dtype) in ((16, "bfloat16"), (32, "float32")):
        return 0
    lookups = {2: 1, 4: 2}[width] if bits == 4 else 0  # nf4: indices into its table, an element
    return elements(size) * (width + lookups)


# The adapter and the base's own numbers


def layer_parameters(work: Workload, layer: int) -> int:
    spec, shape = work.spec, work.shape
    if spec.bias:
        return _layer_biases(shape) if layer >= frozen_layers(spec, shape.layers) else 0
    modules = layer_modules(spec, shape, layer).values()
    return sum(one.rank * sum(module_size(shape, one.target)) for one in modules)


def _layer_biases(shape: Shape) -> int:
    norms = 2 * shape.hidden * has_bias(shape, "norm")
    sizes = linear_sizes(shape)
    return norms + sum(rows for name, (rows, _) in sizes.items() if has_bias(shape, name))


def other_parameters(work: Workload) -> int:
    """Trained parameters outside the layers: a soft prompt, a classification head."""
    prompt = work.spec.prompt_tokens * work.shape.embedding
    if not work.spec.head:
        return prompt
    sizes = {"hidden": work.shape.hidden, "labels": work.num_labels}
    head = head_sizes(work.shape.architecture, is_of_words=work.is_of_words)
    return prompt + sum(sizes[rows] * (sizes[columns] + 1) for rows, columns in head.values())


def adapter_bytes(work: Workload, plan: Plan) -> int:
    """Values, those received, gradients and the optimizer's numbers of what is trained.

    In a file lie the moments of what is trained in the layers; those of one tensor are read at a
    time. What was received, and what update steps hold, lies in the host's memory.
    """
    stored = work.shape.stored_layers
    each = [layer_parameters(work, layer) for layer in range(stored)]
    lowest = max(0, stored - plan.depth)
    trained, resting = sum(each[lowest:]) + other_parameters(work), sum(each[:lowest])
    # A form has beside LoRA's numbers its fixed factors and its own numbers with the optimizer's.
    kept = 1 + (work.device != "cuda") + work.moments + work.shifts
    kept += 0 if is_lora(work.spec.form) else 2
    filed = work.moments * sum(each) if plan.is_spilled and is_lora(work.spec.form) else 0
    # What rests has the optimizer's numbers, but no gradient.
    steps = work.held_bytes * trained * (work.device != "cuda")
    return 4 * ((1 + kept) * trained + kept * resting - filed) + steps


def vector_elements(shape: Shape) -> int:
    """Numbers in the base's norms and biases, which are held in float32."""
    norms = 2 * (1 + has_bias(shape, "norm"))
    biases = sum(rows for name, (rows, _) in linear_sizes(shape).items() if has_bias(shape, name))
    outside = norms * shape.hidden + 2 * shape.embedding
    return shape.stored_layers * (norms * shape.hidden + biases) + outside


def score_bias_bytes(work: Workload, plan: Plan) -> int:
    """What is added to all scores by distance, and what it is made of.

    The torch engine has it for each text, with its padding mask; the onnx engine once, and as texts
    of some length take it.
    """
    if not family_of(work.shape.architecture).relative_bias:
        return 0
    texts, tokens = min(plan.micro_batch, work.batch), plan.tokens + work.spec.prompt_tokens
    texts = 2 if work.engine == "onnx" else texts
    return (4 * texts * work.shape.heads + 32) * tokens * tokens


def _scratch_bytes(work: Workload, plan: Plan) -> int:
    """Room for the largest linear, made at the first step and kept."""
    sizes = linear_sizes(work.shape).values()
    return max(dense_bytes(size, work.bits, plan.dtype) for size in sizes)


def layer_pages(work: Workload) -> int:
    """Bytes of a stored layer and of the head, which are mapped in while they are used."""
    shape = work.shape
    layer = sum(stored_bytes(size, work.bits) for size in linear_sizes(shape).values())
    has_head = bool(family_of(shape.architecture).head_dense)
    return layer + has_head * stored_bytes((shape.embedding, shape.hidden), work.bits)


# A step, moment by moment


@dataclass(frozen=True)
class Moment:
    """What a step holds at one moment, in bytes: see `MemoryEstimate`."""

    kept: int
    transient: int
    weights: int

    @property
    def total(self) -> int:
        return self.kept + self.transient + self.weights


@dataclass(frozen=True)
class _Sizes:
    """Sizes of one micro-batch in one plan, in bytes.

    Attributes:
        state: Token states, (N, H).
        kv: Keys, or values.
        number: Any register's, of a column.
        inner: Inside the feed-forward, (N, F).
        scores: Attention scores of one chunk.
        wide: The float32 copy that a root-mean-square norm keeps; none in float32 itself.
        low: LoRA's low-rank states of one target.
    """

    state: int
    kv: int
    number: int
    inner: int
    scores: int
    wide: int
    low: int


def _sizes(work: Workload, plan: Plan) -> _Sizes:
    shape, width = work.shape, DTYPE_BYTES[plan.dtype]
    texts = min(plan.micro_batch, work.batch)
    tokens = plan.tokens + work.spec.prompt_tokens
    numbers = texts * tokens
    one_text = shape.heads * score_rows(shape, tokens) * tokens
    return _Sizes(
        state=numbers * shape.hidden * width,
        kv=numbers * shape.kv_heads * shape.head_dim * width,
        number=numbers * width,
        inner=numbers * shape.intermediate * width,
        scores=width * one_text * min(texts, max(1, SCORES // one_text)),
        wide=0 if width == 4 else numbers * shape.hidden * 4,
        low=numbers * largest_rank(work.spec, shape) * width,
    )


def moments(work: Workload, plan: Plan) -> Iterator[Moment]:
    """What is held at the embeddings, at each layer forward, at the head, at each layer back.

    A recomputed layer keeps its input alone; layers below the trained ones keep nothing.
    """
    sizes, pages, top = _sizes(work, plan), layer_pages(work), work.shape.layers - 1
    lowest, kept = lowest_trained(work, plan), 0
    yield Moment(0, _embedding_bytes(work, plan), 0)
    for index in range(top + 1):
        is_short = index == top and work.is_top_short
        is_graph = index >= lowest and index not in plan.recompute
        graph = _graph_bytes(work, sizes, is_short) if is_graph else 0
        held = _forward_bytes(work, sizes, is_short, is_graph)
        yield Moment(kept + graph + sizes.state, held, pages)
        kept += graph + (sizes.state if index >= lowest else 0)
    yield Moment(kept, _head_bytes(work, plan, sizes), pages)
    for index in range(top, lowest - 1, -1):
        is_short = index == top and work.is_top_short
        graph = _graph_bytes(work, sizes, is_short)
        again = graph if index in plan.recompute else 0
        result = 0 if is_short else sizes.state  # the layer above has let go of its input
        yield Moment(kept, again + result + _backward_bytes(work, sizes, is_short), pages)
        kept -= sizes.state + graph - again


def _graph_bytes(work: Workload, sizes: _Sizes, is_short: bool) -> int:
    """What a layer's graph holds beside the layer's input: see `layer_cost.autograd_keeps`.

    Norms by the root mean square keep a wider copy of what they get, in 16 bits.
    """
    shape, adapted = work.shape, adapted_linears(work.spec, work.shape)
    kept = columns(shape, autograd_keeps(shape, adapted, is_short)) * sizes.number
    if family_of(shape.architecture).is_rms and sizes.wide:
        kept += 2 * sizes.wide - sizes.state
    return kept + sizes.low * len(adapted)


def _forward_bytes(work: Workload, sizes: _Sizes, is_short: bool, is_graph: bool) -> int:
    """What a layer holds briefly in forward, beside its input and its graph."""
    heads = sizes.state + 2 * sizes.kv  # before they are laid out head by head
    if is_short:
        return sizes.state + 2 * sizes.kv + (0 if is_graph else 2 * sizes.kv)
    is_wide = bool({"up", "down"} & set(work.spec.adapted))
    inner = max(3 if is_wide else 2, inner_registers(work.shape)) - (1 if is_graph else 0)
    feed_forward = 2 * sizes.state + heads + inner * sizes.inner + sizes.wide
    attention = 2 * sizes.state + heads + 2 * sizes.scores
    return max(feed_forward, attention + (0 if is_graph else heads))


def _backward_bytes(work: Workload, sizes: _Sizes, is_short: bool) -> int:
    """What a layer holds briefly in backward, beside its graph."""
    attention = 2 * sizes.state + 2 * sizes.kv + 3 * sizes.scores
    if is_short:
        return 2 * sizes.state + 2 * sizes.kv
    inner = inner_registers(work.shape)
    return max(2 * sizes.state + inner * sizes.inner + sizes.wide, attention)


def _embedding_bytes(work: Workload, plan: Plan) -> int:
    """The rows of words, gathered, with positions added and normalized, in float32."""
    tokens = plan.micro_batch * (plan.tokens + work.spec.prompt_tokens)
    return 4 * 4 * tokens * work.shape.embedding


def _head_bytes(work: Workload, plan: Plan, sizes: _Sizes) -> int:
    """The head sees one row per text, or one of each answer."""
    # Beside the top layer's sum, and the gradient at it.
    return answers_bytes(work, plan) + 2 * sizes.state if work.has_many_answers else 0


def answers_bytes(work: Workload, plan: Plan) -> int:
    """What reading many places of a text holds at once; 0 where one is read."""
    if work.is_of_words:
        return _tags_bytes(work, plan)
    if work.is_of_mean:
        return _mean_bytes(work, plan)
    return _words_bytes(work, plan) if work.masked else 0


def _tags_bytes(work: Workload, plan: Plan) -> int:
    """States of all words, which may be as many as tokens, and their logits.

    In backward there are more of the one or of the other: the states behind the norm and their
    gradients, or the logits, their logarithms and gradients.
    """
    words = min(plan.micro_batch, work.batch) * plan.tokens
    states, logits = 4 * words * work.shape.hidden, 4 * words * work.num_labels
    return max(3 * states + logits, 2 * states + 4 * logits)


def _mean_bytes(work: Workload, plan: Plan) -> int:
    """States of all tokens behind the norm, in float32, and as they were in 16 bits."""
    tokens = min(plan.micro_batch, work.batch) * (plan.tokens + work.spec.prompt_tokens)
    return tokens * work.shape.hidden * (4 + DTYPE_BYTES[plan.dtype] % 4)


def words_together(work: Workload) -> int:
    """Rows of a head that are held together, where all words are asked for; else 0."""
    return min(word_rows(work.shape.embedding), work.shape.vocabulary) if work.masked else 0


def answers(work: Workload, plan: Plan) -> int:
    """Answers of which all words are asked together; the onnx engine's head takes some of them."""
    found = min(plan.micro_batch, work.batch) * work.masked
    return min(found, answers_together(work.shape.hidden)) if work.engine == "onnx" else found


def _words_bytes(work: Workload, plan: Plan) -> int:
    """States of the answers, a slice of the vocabulary's words, the answers' logits of it."""
    width, embedding = DTYPE_BYTES[plan.dtype], work.shape.embedding
    count = answers(work, plan)
    states = count * (3 * work.shape.hidden + 6 * embedding) * 4
    if work.engine == "onnx":  # words and logits lie in rooms
        has_dense = family_of(work.shape.architecture).head_dense
        return states if has_dense else 4 * 5 * count * embedding
    row = embedding * (4 + 4 + width) + count * (8 + width)
    return states + words_together(work) * row


def parts(estimated: MemoryEstimate) -> Mapping[str, int]:
    """The named parts, largest first, for people and JSON."""
    named = {name: getattr(estimated, name) for name in MemoryEstimate.__dataclass_fields__}
    return dict(sorted(named.items(), key=lambda part: -part[1]))

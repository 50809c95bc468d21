"""Cost of a layer's operations: chunk sizes, register widths, floating-point operations.

    widths = register_widths(shape)  # {"x": 768, "h": 768, "q": 768, ..., "up": 3072, "out": 768}

The engines and the formulas of `torch_memory` and `onnx_memory` read the same chunk sizes and walk
the same list of operations, so an engine cannot change without its prediction. Registers are named
as in `bases.families`; sizes are columns per row. nf4's block is `bases.quantization.BLOCK`.
"""

from collections.abc import Collection
from functools import cache

from smidgen.edge_client.adapters.spec import AdapterSpec
from smidgen.edge_client.bases.architectures import (
    Activate,
    Attend,
    Block,
    FeedForward,
    Gate,
    Linears,
    Norm,
    Shape,
    in_parts,
    late_registers,
    reads,
    writes,
)
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.layout import linear_size

SCORES = 1 << 20  # attention scores, in elements; at least one text's
WINDOW_QUERIES = 64  # tokens of a text whose attention is computed together, where it is in parts
LONG_CAUSAL = 128  # tokens above which a text's causal attention is in parts
LONG_TEXT = 512  # tokens above which a text's attention is in parts
TABLE_ROWS = 64  # rows of the word table that are dense at once
WORD_ROWS = 2048  # rows of a head held together, where every word is an answer; fewer wide ones
WORD_ELEMENTS = 1 << 21  # of such rows
SLICE = 1 << 20  # elements of a matrix made dense at once on all threads, where it is in slices
INNER_BLOCK = 256  # columns of the widest block of a stored matrix
TILE = 32  # rows of a slice at least, as products are tiled
ANSWER_ELEMENTS = 1 << 20  # of states that a head reads together
PASS_ELEMENTS = 1 << 19  # elements of a pass over states; what it holds stays in a core's cache


def window_of(tokens: int, window: int | None, is_causal: bool = False) -> int | None:
    """The window by which a text's attention is computed in parts; None: all at once.

    A window that sees all tokens of a longer text has every key for each part of its queries, or
    every key before it where none behind is seen.

    Args:
        tokens: Of the text, queries and keys alike.
        window: Tokens that are seen on either side of each; None: all.
        is_causal: Whether a token sees none behind it.
    """
    if window is not None and tokens > window + 1:
        return window
    return tokens if tokens > (LONG_CAUSAL if is_causal else LONG_TEXT) else None


def window_blocks(tokens: int, window: int, is_causal: bool = False) -> list[tuple[slice, slice]]:
    """Queries of one text that are computed together, and the keys that they see.

    Law: each query's own window lies in the keys of its block; of causal attention no block has a
    key behind its last query.
    """
    starts = range(0, tokens, WINDOW_QUERIES)
    ends = ((start, min(start + WINDOW_QUERIES, tokens)) for start in starts)
    behind = 0 if is_causal else window
    return [(slice(a, b), slice(max(0, a - window), min(tokens, b + behind))) for a, b in ends]


def is_large(size: tuple[int, int]) -> bool:
    """Whether a matrix is made dense a slice at a time where a plan says so."""
    return size[0] * size[1] > SLICE


def slice_size(size: tuple[int, int], axis: int, block: int, threads: int) -> int:
    """Rows (axis 0) or columns (1) of a matrix that a thread makes dense at once.

    Args:
        size: Rows and columns.
        axis: Which are counted.
        block: Columns that are not parted.
        threads: That work at the same time.
    """
    unit = block if axis else TILE
    return max(unit, SLICE // threads // size[1 - axis] // unit * unit)


def inner_parts(hidden: int, intermediate: int) -> list[slice]:
    """Columns inside a feed-forward that are computed together, where matrices are in slices.

    As many as a room of words has place for, in whole blocks of every kind of stored matrix. All,
    where parts and the gradient at one would take no less.
    """
    step = max(INNER_BLOCK, WORD_ELEMENTS // hidden // INNER_BLOCK * INNER_BLOCK)
    if 2 * intermediate < 3 * step:
        return [slice(0, intermediate)]
    starts = range(0, intermediate, step)
    return [slice(start, min(start + step, intermediate)) for start in starts]


def word_rows(embedding: int) -> int:
    """Rows of a head that are held together with their logits, of words of that width."""
    return max(1, min(WORD_ROWS, WORD_ELEMENTS // embedding))


def answers_together(width: int) -> int:
    """Answers that a head reads together, of states of that width."""
    return max(1, ANSWER_ELEMENTS // width)


HEADS = ("q", "k", "v")


@cache
def block_of(shape: Shape, is_short: bool = False, is_sliced: bool = False) -> Block:
    """The operations of a layer above the lowest; see `Family.block_of` and `sliced`."""
    block = family_of(shape.architecture).block_of(1, is_short)
    return sliced(shape, block) if is_sliced else block


def sliced(shape: Shape, block: Block) -> Block:
    """A layer's operations where large matrices are in slices."""
    return in_parts(block) if len(inner_parts(shape.hidden, shape.intermediate)) > 1 else block


@cache
def feed_forward(shape: Shape) -> FeedForward | None:
    """The feed-forward of a layer whose large matrices are in slices; None: it is not in parts."""
    block = block_of(shape, is_sliced=True)
    return next((op for op in block if isinstance(op, FeedForward)), None)


def inner_columns(shape: Shape) -> int:
    """Columns inside a feed-forward in parts that are computed together; 0: it is not in parts."""
    return inner_parts(shape.hidden, shape.intermediate)[0].stop if feed_forward(shape) else 0


@cache
def linear_sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Rows and columns of a layer's linears by short name; fused ones apart."""
    return {name: linear_size(shape, name) for name in family_of(shape.architecture).linears}


@cache
def register_widths(shape: Shape, is_sliced: bool = False) -> dict[str, int]:
    """Columns of each register."""
    widths, sizes = {"x": shape.hidden}, linear_sizes(shape)
    for op in block_of(shape, is_sliced=is_sliced):
        if isinstance(op, Linears):
            rows = [sizes[name][0] for name in op.names]
            widths |= dict(zip(op.results, rows, strict=True))
        elif isinstance(op, Attend):
            widths["context"] = widths["q"]
        else:
            widths |= dict.fromkeys(writes(op), widths[reads(op)[0]])
    return widths


def adapted_linears(spec: AdapterSpec, shape: Shape) -> frozenset[str]:
    """Short names of the linears that carry LoRA, alone or by a fused module."""
    family = family_of(shape.architecture)
    named = [target for target in spec.adapted if target in family.linears]
    return frozenset(name for target in named for name in family.fused(target))


@cache
def late(shape: Shape, is_short: bool) -> frozenset[str]:
    """The registers that have one row per text in a short layer; none in another."""
    return late_registers(block_of(shape, is_short)) if is_short else frozenset()


@cache
def autograd_keeps(shape: Shape, adapted: frozenset[str], is_short: bool) -> tuple[str, ...]:
    """The registers that the torch engine's graph of a layer holds, beside the layer's input.

    Queries, keys and values (never the scores), the input of a norm and of an activation; a LoRA
    keeps the input of the linear it sits on. A gate keeps both inputs and its activation, which
    comes as a second `of`. Late registers are left out.
    """
    found: list[str] = []
    for op in block_of(shape, is_short):
        match op:
            case Norm() | Activate():
                found.append(op.of)
            case Gate():
                found += [op.of, op.by, f"{op.of} active"]
            case Attend():
                found += HEADS
            case Linears() if adapted & set(op.names):
                found.append(op.of)
    left_out = late(shape, is_short) | {"x"}
    return tuple(name for name in dict.fromkeys(found) if name.partition(" ")[0] not in left_out)


@cache
def tape(shape: Shape, adapted: frozenset[str], is_short: bool, is_sliced: bool) -> tuple[str, ...]:
    """The registers that the onnx engine keeps of a layer: what linears and attention give.

    Attention's result only where it is learnt from; late registers are left out.
    """
    found: list[str] = []
    for op in block_of(shape, is_short, is_sliced):
        if isinstance(op, FeedForward) or (isinstance(op, Norm) and op.is_kept):
            found.append(op.into)
        elif isinstance(op, Linears):
            found += op.results
            found += ["context"] if op.of == "context" and adapted & set(op.names) else []
    left_out = late(shape, is_short) | {"out"}
    return tuple(name for name in dict.fromkeys(found) if name not in left_out)


@cache
def read_by_several(shape: Shape, is_sliced: bool) -> tuple[str, ...]:
    """The registers of several linears, whose gradients take turns in two places.

    And that of a feed-forward in parts, whose gradient is summed beside it.
    """
    block = block_of(shape, is_sliced=is_sliced)
    linears = [op for op in block if isinstance(op, Linears)]
    linears += [op.inner for op in block if isinstance(op, FeedForward) for _ in range(2)]
    counts = {op.of: sum(len(o.names) for o in linears if o.of == op.of) for op in linears}
    return tuple(name for name, count in counts.items() if count > 1)


def inner_registers(shape: Shape) -> int:
    """How many registers are as wide as the feed-forward's inside: two, or three with a gate."""
    block = block_of(shape)
    inside = next(op for op in block if isinstance(op, Activate | Gate))
    return len({*reads(inside), *writes(inside)})


def has_residual_norms(shape: Shape) -> bool:
    """Whether a normalization is added to what went before, and so has a gradient of its own."""
    return any(isinstance(op, Norm) and op.plus for op in block_of(shape))


def columns(shape: Shape, names: Collection[str]) -> int:
    widths = register_widths(shape)
    return sum(widths[name.partition(" ")[0]] for name in names)


def last_linear(shape: Shape) -> str:
    """The linear that gives a layer's result, which a recomputation leaves out; "" if none does."""
    ops = (op for op in block_of(shape) if isinstance(op, Linears))
    return next((op.names[0] for op in ops if op.into == "out"), "")


def seen_tokens(shape: Shape, layer: int, tokens: int) -> float:
    """Tokens whose keys a query is held against in the mean, of a text of that many.

    Causal attention leaves out the keys behind a block of queries, so half of all and half a block.
    """
    window = shape.window_of(layer)
    if not shape.is_decoder:
        return tokens if window is None else min(tokens, 2 * window + 1)
    blocks = window_blocks(tokens, tokens if window is None else window, is_causal=True)
    scores: int = sum((a.stop - a.start) * (b.stop - b.start) for a, b in blocks)
    return scores / tokens


def score_rows(shape: Shape, tokens: int) -> int:
    """Queries whose scores with all tokens of a text lie together; see `window_of`."""
    return tokens if window_of(tokens, None, shape.is_decoder) is None else WINDOW_QUERIES

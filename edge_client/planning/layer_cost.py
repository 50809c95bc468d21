"""What a layer's operations take: the list that the engines interpret, walked for sizes.

    widths = register_widths(shape)  # {"x": 768, "h": 768, "q": 768, ..., "up": 3072, "out": 768}

Registers are named as in `bases.families`; sizes are columns, to be multiplied by rows.
"""

from collections.abc import Collection
from functools import cache

from edge_client.adapters.spec import AdapterSpec
from edge_client.bases.architectures import (
    Activate,
    Attend,
    Block,
    Gate,
    Linears,
    Norm,
    Shape,
    late_registers,
    reads,
    writes,
)
from edge_client.bases.families import family_of
from edge_client.bases.layout import linear_size
from edge_client.planning.chunks import WINDOW_QUERIES, window_of

HEADS = ("q", "k", "v")


@cache
def block_of(shape: Shape, is_short: bool = False) -> Block:
    """The operations of a layer above the lowest; see `Family.block_of`."""
    return family_of(shape.architecture).block_of(1, is_short)


@cache
def linear_sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Rows and columns of a layer's linears by short name; fused ones apart."""
    return {name: linear_size(shape, name) for name in family_of(shape.architecture).linears}


@cache
def register_widths(shape: Shape) -> dict[str, int]:
    """Columns of each register."""
    widths, sizes = {"x": shape.hidden}, linear_sizes(shape)
    for op in block_of(shape):
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
def tape(shape: Shape, adapted: frozenset[str], is_short: bool) -> tuple[str, ...]:
    """The registers that the onnx engine keeps of a layer: what linears and attention give.

    Attention's result only where it is learnt from; late registers are left out.
    """
    found: list[str] = []
    for op in block_of(shape, is_short):
        if isinstance(op, Linears):
            found += op.results
            found += ["context"] if op.of == "context" and adapted & set(op.names) else []
    left_out = late(shape, is_short) | {"out"}
    return tuple(name for name in dict.fromkeys(found) if name not in left_out)


@cache
def read_by_several(shape: Shape) -> tuple[str, ...]:
    """The registers of several linears, whose gradients take turns in two places."""
    linears = [op for op in block_of(shape) if isinstance(op, Linears)]
    counts = {op.of: sum(len(o.names) for o in linears if o.of == op.of) for op in linears}
    return tuple(name for name, count in counts.items() if count > 1)


def inner_registers(shape: Shape) -> int:
    """How many registers are as wide as the feed-forward's inside: two, or three with a gate."""
    block = block_of(shape)
    inside = next(op for op in block if isinstance(op, Activate | Gate))
    return len({*reads(inside), *writes(inside)})


def columns(shape: Shape, names: Collection[str]) -> int:
    """Columns of registers, all together."""
    widths = register_widths(shape)
    return sum(widths[name.partition(" ")[0]] for name in names)


def last_linear(shape: Shape) -> str:
    """The linear that gives a layer's result, which a recomputation leaves out."""
    ops = (op for op in block_of(shape) if isinstance(op, Linears))
    return next(op.names[0] for op in ops if op.into == "out")


def seen_tokens(shape: Shape, layer: int, tokens: int) -> int:
    """Tokens whose keys a query is held against, of a text of that many."""
    window = shape.window_of(layer)
    return tokens if window is None else min(tokens, 2 * window + 1)


def score_rows(shape: Shape, tokens: int) -> int:
    """Queries whose scores with all tokens of a text lie together; see `chunks.window_of`."""
    is_parted = shape.kv_heads == shape.heads and window_of(tokens, None) is not None
    return WINDOW_QUERIES if is_parted else tokens

"""Layout of a pack's weights: which tensors, in which order, format and place in the file.

    embeddings | stored layer 0 | stored layer 1 | ... | language-model head | pooler

The last two are there if the checkpoint had them. Within each part the float32 tensors come first,
so that all of them are aligned. The layout follows from the model's configuration, the bits and
whether these two are there; a file that differs is not a pack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen.edge_client.bases.architectures import (
    BUCKETS,
    ArchitectureError,
    Family,
    Rotary,
    Shape,
)
from smidgen.edge_client.bases.configurations import shape_of
from smidgen.edge_client.bases.families import family_of, has_bias, has_embedding_map
from smidgen.edge_client.bases.header import SCALE, TensorEntry, write_header
from smidgen.edge_client.bases.quantization import BLOCK
from smidgen.edge_client.errors import WrongInput

MAX_LAYERS = 1024


class PackError(WrongInput):
    """A pack, or the source of one, that breaks a rule of the format."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a base.

    Attributes:
        name: Hugging Face's name of it.
        shape: Its sizes.
        is_quantized: Whether it is stored in the pack's bits; else as float32.
        aliases: Other names a checkpoint may hold it under, which count first.
    """

    name: str
    shape: tuple[int, ...]
    is_quantized: bool = False
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """The file of a pack before it is written.

    Attributes:
        tensors: What it holds, in order.
        header: Its first bytes.
        entries: Where each stored tensor lies; a quantized one has its scales apart.
        layers: First byte and the byte behind the last, of every stored layer.
        file_bytes: Size of the whole file.
    """

    tensors: tuple[Tensor, ...]
    header: bytes
    entries: Mapping[str, TensorEntry]
    layers: tuple[tuple[int, int], ...]
    file_bytes: int


def checked_shape(config: Mapping[str, Any]) -> Shape:
    """Read the sizes of a model from a configuration that may say anything.

    Raises:
        ArchitectureError: A family not known here, or sizes that no model has.
    """
    try:
        shape = shape_of(config)
        sizes = (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate)
        tables = (shape.vocabulary, shape.embedding, shape.positions)
        segments = shape.segments if family_of(shape.architecture).token_types else 1
        layers = (shape.layers, shape.stored_layers)
    except ArchitectureError:
        raise
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ArchitectureError(f"config.json has sizes that no model has: {error}") from error
    if min(*sizes, *tables, *layers, segments) < 1 or max(layers) > MAX_LAYERS:
        raise ArchitectureError(
            f"config.json has sizes that no model has: layers {layers}, widths {sizes}, "
            f"tables {tables}, segment types {segments}"
        )
    if family_of(shape.architecture).has(Rotary) and not shape.rope_theta > 0:
        raise ArchitectureError(f"config.json has a rotary base of {shape.rope_theta}; above 0")
    return shape


def tensors_of(config: Mapping[str, Any]) -> list[list[Tensor]]:
    """The tensors of a base with its language-model head: embeddings, each stored layer, head.

    Pooler (`pooler_of`) and classifiers are left out; so is a decoder that shares the word table.

    Raises:
        ArchitectureError: See `checked_shape`.
    """
    shape = checked_shape(config)
    family = family_of(shape.architecture)
    layers = [_layer(family, shape, layer) for layer in range(shape.stored_layers)]
    return [_embeddings(family, shape), *layers, _head(family, shape)]


def pooler_of(architecture: str) -> str:
    """The linear below a sequence classifier that is the base's own, or "" where there is none.

    transformers has it in BERT and ALBERT; the other families' classifiers have all linears of
    their own. Only `AutoModel` and `AutoModelForPreTraining` checkpoints hold it.
    """
    family = family_of(architecture)
    return next((name for name in family.classifier if name.startswith(f"{family.prefix}.")), "")


def lay_out(
    config: Mapping[str, Any], bits: int, *, has_pooler: bool = False, has_head: bool = True
) -> Layout:
    """Give every tensor its place.

    Law: without its pooler or head a pack has the same tensors in the same order and forms.

    Args:
        config: The model's Hugging Face configuration.
        bits: 4, 8 or 16.
        has_pooler: Whether the checkpoint has the linear that `pooler_of` names.
        has_head: Whether an encoder's checkpoint has its language-model head.

    Raises:
        ArchitectureError: See `checked_shape`.
        PackError: 4 bits and a matrix whose columns are not whole blocks.
    """
    groups = tensors_of(config)
    count, shape = len(groups) - 2, checked_shape(config)
    if not has_head:
        groups.pop()
    if has_pooler:
        groups.append(_linear(pooler_of(shape.architecture), shape.hidden, shape.hidden))
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    for group in groups:
        pieces = {name: form for tensor in group for name, form in _stored(tensor, bits).items()}
        stored |= dict(sorted(pieces.items(), key=lambda piece: piece[1][0] != "F32"))
    header, entries = write_header(stored)
    layers = tuple(_span(group, entries) for group in groups[1 : 1 + count])
    tensors = tuple(tensor for group in groups for tensor in group)
    return Layout(tensors, header, entries, layers, max(e.end for e in entries.values()))


def _embeddings(family: Family, shape: Shape) -> list[Tensor]:
    width = shape.embedding
    decoder = (f"{family.decoder}.weight",) if shape.is_tied else ()
    words = Tensor(f"{family.words}.weight", (shape.vocabulary, width), True, decoder)
    found = [words]
    if family.positions:
        rows = shape.positions + family.first_position(shape.pad_id)  # RoBERTa: unused ones too
        found.append(Tensor(f"{family.positions}.weight", (rows, width)))
    if family.token_types:
        found.append(Tensor(f"{family.token_types}.weight", (shape.segments, width)))
    if family.relative_bias:
        found.append(Tensor(f"{family.relative_bias}.weight", (BUCKETS, shape.heads)))
    if family.embedding_norm:
        found += _norm(family.embedding_norm, width, has_bias(shape, "norm"))
    if has_embedding_map(shape):
        found += _linear(family.embedding_map, shape.hidden, width)
    return found


def _layer(family: Family, shape: Shape, layer: int) -> list[Tensor]:
    found: list[Tensor] = []
    for target in family.linears:
        if target == family.fused(target)[0]:
            rows, columns = module_size(shape, target)
            found += _linear(family.linear(layer, target), rows, columns, has_bias(shape, target))
    for name, module in family.norms(layer).items():
        width = shape.head_dim if family.is_by_head(name) else shape.hidden
        found += _norm(module, width, has_bias(shape, "norm"))
    return found


def _head(family: Family, shape: Shape) -> list[Tensor]:
    found: list[Tensor] = []
    if family.final_norm:
        found += _norm(family.final_norm, shape.hidden, has_bias(shape, "norm"))
    if family.head_dense:
        found += _linear(family.head_dense, shape.embedding, shape.hidden, has_bias(shape, "head"))
    if family.head_norm:
        found += _norm(family.head_norm, shape.embedding, has_bias(shape, "norm"))
    if family.decoder_bias and has_bias(shape, "decoder"):
        *aliases, name = family.decoder_bias
        found.append(Tensor(name, (shape.vocabulary,), aliases=tuple(aliases)))
    if not shape.is_tied:
        size = (shape.vocabulary, shape.embedding)
        found.append(Tensor(f"{family.decoder}.weight", size, is_quantized=True))
    return found


def linear_size(shape: Shape, target: str) -> tuple[int, int]:
    """Rows (outputs) and columns (inputs) of a layer's linear, by its short name."""
    heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "q": (heads, shape.hidden),
        "k": (kv_heads, shape.hidden),
        "v": (kv_heads, shape.hidden),
        "o": (shape.hidden, heads),
        "gate": (shape.intermediate, shape.hidden),
        "up": (shape.intermediate, shape.hidden),
        "down": (shape.hidden, shape.intermediate),
    }[target]


def module_size(shape: Shape, target: str) -> tuple[int, int]:
    """Rows and columns of the module that a linear lies in, alone or with others."""
    parts = [linear_size(shape, name) for name in family_of(shape.architecture).fused(target)]
    return sum(rows for rows, _ in parts), parts[0][1]


def module_rows(shape: Shape, target: str) -> slice | None:
    """The rows of a layer's linear in a fused module; None: all of its own."""
    names = family_of(shape.architecture).fused(target)
    first = sum(linear_size(shape, name)[0] for name in names[: names.index(target)])
    rows = slice(first, first + linear_size(shape, target)[0])
    return None if len(names) == 1 else rows


def _linear(name: str, rows: int, columns: int, is_biased: bool = True) -> list[Tensor]:
    weight = Tensor(f"{name}.weight", (rows, columns), is_quantized=True)
    return [weight, *([Tensor(f"{name}.bias", (rows,))] if is_biased else [])]


def _norm(name: str, width: int, is_biased: bool = True) -> list[Tensor]:
    parts = ("weight", "bias") if is_biased else ("weight",)
    return [Tensor(f"{name}.{part}", (width,)) for part in parts]


def _stored(tensor: Tensor, bits: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What a tensor becomes in the file: name -> element type and shape."""
    if not tensor.is_quantized:
        return {tensor.name: ("F32", tensor.shape)}
    rows, columns = tensor.shape
    scale = tensor.name + SCALE
    if bits == 16:
        return {tensor.name: ("BF16", (rows, columns))}
    if bits == 8:
        return {scale: ("F32", (rows, 1)), tensor.name: ("I8", (rows, columns))}
    if columns % BLOCK:
        raise PackError(
            f"4 bits need columns in blocks of {BLOCK}, but {tensor.name} has {columns}; "
            "use --bits 8"
        )
    return {
        scale: ("F32", (rows, columns // BLOCK)),
        tensor.name: ("U8", (rows, columns // 2)),
    }


def _span(group: list[Tensor], entries: Mapping[str, TensorEntry]) -> tuple[int, int]:
    names = [name for t in group for name in (t.name, t.name + SCALE) if name in entries]
    starts, ends = zip(*((entries[name].start, entries[name].end) for name in names), strict=True)
    return min(starts), max(ends)

"""Codecs for adapter deltas, by name, with error feedback.

    float32      uncompressed
    int8, int4   integers with a scale per block, see `edge_client.codecs.blocks`
    int4:128     the same with blocks of 128, not 64: 4.25 bits per number instead of 4.5
    topk:0.01    the largest hundredth, see `edge_client.codecs.largest`

The encoder keeps its error and adds it to what it encodes next (Seide et al. 2014; Karimireddy et
al. 2019, arXiv:1901.09847). All tensors are coded together in order of their names, so that a small
adapter pays for one header. The decoder knows the adapter's shapes, and never allocates more than
its size.

    coded, residual = encode(delta, "int4", residual)
    decode(coded, kind_of("int4"), {name: tensor.shape for name, tensor in delta.items()})
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from edge_client.codecs.blocks import INT4, INT8, CodecError, quantize, restore
from edge_client.codecs.largest import MOST_SHARE, largest, spread
from edge_client.errors import demand

Tensors = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]

Kind = Literal["float32", "int8", "int4", "int4:128", "topk"]
PLAIN: Literal["float32"] = "float32"
TOPK: Literal["topk"] = "topk"
AUTO = "auto"
KINDS: tuple[Kind, ...] = get_args(Kind)
WIDTHS = {"int8": INT8, "int4": INT4, "int4:128": replace(INT4, block=128)}
NUMBERS, SCALES, PLACES, VALUES = "q", "s", "i", "v"  # tensors' names: short, for each is sent
KNOWN = "float32, int8, int4, int4:128, {}or topk:SHARE such as topk:0.01"


def check_codec(name: str, more: str = "") -> None:
    """Refuse a name that is not a codec's.

    Args:
        name: The name.
        more: What would do as well, as the message names it.

    Raises:
        WrongInput: Says which there are.
    """
    kind, colon, _ = name.partition(":")
    if kind == TOPK and colon:
        share_of(name)
        return
    demand(name == PLAIN or name in WIDTHS, f"unknown codec {name[:40]!r}: {KNOWN.format(more)}")


def check_setting(name: str) -> None:
    """Refuse what is neither a codec's name nor `auto`.

    Raises:
        WrongInput: Says which there are.
    """
    if name != AUTO:
        check_codec(name, f"{AUTO}, ")


def share_of(name: str) -> float:
    """The share that a `topk` keeps.

    Raises:
        WrongInput: It is not a number above 0, or more than half.
    """
    try:
        share = float(name.partition(":")[2])
    except ValueError:
        share = math.nan
    demand(
        0.0 < share <= MOST_SHARE, f"{name[:40]}: a share above 0, at most {MOST_SHARE}, expected"
    )
    return share


def encode(delta: Tensors, codec: str, residual: Tensors) -> tuple[Tensors, Tensors]:
    """The tensors to send of a difference and what was not sent before, and what is not sent now.

    Law: what `decode` gives of the first plus the second is `delta` plus `residual`, to rounding.

    Args:
        delta: float32 tensors.
        codec: Its name.
        residual: Of the same names and shapes; empty: zeros.

    Raises:
        CodecError: NaN or an infinity, or a residual of another adapter.
        WrongInput: No codec has this name.
    """
    check_codec(codec)
    shapes = {name: tensor.shape for name, tensor in delta.items()}
    if residual:
        check_residual(residual, shapes)
        delta = {name: tensor + residual[name] for name, tensor in delta.items()}
    if codec == PLAIN:
        return delta, {}
    numbers, sizes = _flat(delta), _sizes(shapes)
    demand(bool(np.isfinite(numbers).all()), f"{codec} cannot hold NaN or infinity", CodecError)
    if codec in WIDTHS:
        stored, scales = quantize(numbers, sizes, WIDTHS[codec])
        coded = {NUMBERS: stored, SCALES: scales}
    else:
        places, values = largest(numbers, share_of(codec))
        coded = {PLACES: places, VALUES: values}
    return coded, _shaped(numbers - _decoded(coded, kind_of(codec), sizes), shapes)


def kind_of(codec: str) -> Kind:
    """What a codec's tensors are read by: its name without a share."""
    check_codec(codec)
    return next((kind for kind in KINDS if kind == codec), TOPK)


def decode(coded: Mapping[str, np.ndarray], kind: Kind, shapes: Shapes) -> Tensors:
    """The difference that was encoded; float32.

    Args:
        coded: Tensors as they came.
        kind: What they are said to be.
        shapes: Those of the adapter; the result has them.

    Raises:
        CodecError: They are not what this codec gives of such an adapter.
    """
    if kind == PLAIN:
        return dict(coded)
    expected = {NUMBERS, SCALES} if kind in WIDTHS else {PLACES, VALUES}
    if set(coded) != expected:
        came = ", ".join(sorted(coded))[:80]
        raise CodecError(f"{kind}: tensors {', '.join(sorted(expected))} expected, {came} came")
    try:
        return _shaped(_decoded(coded, kind, _sizes(shapes)), shapes)
    except CodecError as error:
        raise CodecError(f"{kind}: {error}") from error


def check_residual(residual: Tensors, shapes: Shapes) -> None:
    """Refuse what is kept of another adapter.

    Raises:
        CodecError: Names or shapes are others.
    """
    is_same = {name: tensor.shape for name, tensor in residual.items()} == dict(shapes)
    demand(is_same, "what is kept of earlier updates is of another adapter", CodecError)


def _decoded(coded: Mapping[str, np.ndarray], kind: Kind, sizes: list[int]) -> np.ndarray:
    if kind in WIDTHS:
        return restore(coded[NUMBERS], coded[SCALES], sizes, WIDTHS[kind])
    return spread(coded[PLACES], coded[VALUES], sum(sizes))


def _sizes(shapes: Shapes) -> list[int]:
    return [math.prod(shapes[name]) for name in sorted(shapes)]


def _flat(tensors: Tensors) -> np.ndarray:
    parts = [np.asarray(tensors[name], np.float32).ravel() for name in sorted(tensors)]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _shaped(numbers: np.ndarray, shapes: Shapes) -> Tensors:
    ends = np.cumsum(_sizes(shapes), dtype=np.intp)[:-1]
    parts = np.split(numbers, ends)
    return {
        name: part.reshape(shapes[name]) for name, part in zip(sorted(shapes), parts, strict=False)
    }

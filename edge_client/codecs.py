"""Codecs for adapter deltas, by name, with error feedback.

    float32      uncompressed
    int8, int4   integers with a scale per block
    int4:128     the same with blocks of 128, not 64: 4.25 bits per number instead of 4.5
    topk:0.01    the largest hundredth, with their indices

The encoder keeps its error and adds it to what it encodes next (Seide et al. 2014; Karimireddy et
al. 2019, arXiv:1901.09847). All tensors are coded together in order of their names, so that a small
adapter pays for one header. The decoder knows the adapter's shapes, and never allocates more than
its size.

    coded, residual = encode(delta, "int4", residual)
    decode(coded, kind_of("int4"), {name: tensor.shape for name, tensor in delta.items()})

Block quantization (int8, int4): a block is a fixed number of consecutive values of one tensor; each
tensor starts a new block. Its float32 scale is the largest magnitude divided by 127 (int8) or 7
(int4); each value is stored as the nearest multiple of the scale, ties to even. Two int4 values
share a byte, the first in the low half, with 8 for zero. Laws: the error is at most half a scale;
equal values give equal bytes.

Top-k: indices run through all tensors in sequence; values without one decode as zero. Laws: no
omitted value is larger than a kept one; of equal ones those with the lowest indices are kept; kept
values are exact.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from smidgen.edge_client.errors import Failed, demand

FLOAT32 = np.finfo(np.float32)
MIDDLE = 8  # what stands for zero in four bits


class CodecError(Failed):
    """Numbers that a codec cannot hold, or bytes that it did not write."""


@dataclass(frozen=True)
class Width:
    """How wide a number is.

    Attributes:
        bits: 8 or 4.
        most: The largest whole number.
        block: Numbers of one scale.
    """

    bits: int
    most: int
    block: int

    def bytes_of(self, size: int) -> int:
        """Bytes that so many numbers take, without their scales."""
        return -(-size * self.bits // 8)


AT_ONCE = 1024  # blocks that are computed together: a memory of a few MiB whatever the adapter
INT8, INT4 = Width(8, 127, 128), Width(4, 7, 64)


def blocks_of(sizes: Sequence[int], width: Width) -> np.ndarray:
    """Where blocks begin in tensors of these sizes that lie one behind the other; intp."""
    ends = np.cumsum(sizes, dtype=np.intp)
    starts = [
        np.arange(end - size, end, width.block) for size, end in zip(sizes, ends, strict=True)
    ]
    return np.concatenate(starts) if starts else np.zeros(0, np.intp)


def quantize(
    numbers: np.ndarray, sizes: Sequence[int], width: Width
) -> tuple[np.ndarray, np.ndarray]:
    """The stored bytes and the scales of finite numbers.

    Args:
        numbers: float32, shape (sum of sizes,).
        sizes: Numbers of each tensor.
        width: How wide.

    Returns:
        int8 of shape (numbers,) or uint8 of shape (half as many, rounded up); float32 scales.
    """
    starts = blocks_of(sizes, width)
    bounds = np.append(starts, numbers.size)
    whole, scales = np.empty(numbers.size, np.int8), np.empty(starts.size, np.float32)
    # No subnormal scale, which would lose its digits, and none whose multiples leave the range.
    highest = np.nextafter(np.float32(FLOAT32.max / width.most), np.float32(0.0))
    for first in range(0, starts.size, AT_ONCE):
        some = slice(first, min(first + AT_ONCE, starts.size))
        begin, end = int(bounds[some.start]), int(bounds[some.stop])
        peaks = np.maximum.reduceat(np.abs(numbers[begin:end]), starts[some] - begin)
        fit = (peaks.astype(np.float64) / width.most).astype(np.float32)
        scales[some] = np.clip(fit, FLOAT32.tiny, highest)
        each = np.repeat(scales[some].astype(np.float64), np.diff(bounds[first : some.stop + 1]))
        np.divide(numbers[begin:end], each, out=each)
        whole[begin:end] = np.clip(np.rint(each, out=each), -width.most, width.most, out=each)
        scales[some][peaks == 0.0] = 0.0
    return pack(whole, width), scales


def restore(
    stored: np.ndarray, scales: np.ndarray, sizes: Sequence[int], width: Width
) -> np.ndarray:
    """The inverse of `quantize`, to half a scale: float32 of shape (sum of sizes,).

    Raises:
        CodecError: It is not what `quantize` gives of tensors of these sizes.
    """
    size, starts = sum(sizes), blocks_of(sizes, width)
    kind = np.dtype(np.int8 if width.bits == 8 else np.uint8)
    _check("numbers", stored, kind, width.bytes_of(size))
    _check("scales", scales, np.dtype(np.float32), starts.size)
    is_fit = np.isfinite(scales) & (scales >= 0.0) & (scales <= FLOAT32.max / width.most)
    demand(bool(is_fit.all()), "a scale is negative, too large, infinite or NaN", CodecError)
    whole = unpack(stored, size, width)
    is_within = not size or int(whole.min()) >= -width.most
    demand(is_within, f"a number below -{width.most}", CodecError)
    found: np.ndarray = np.repeat(scales, np.diff(np.append(starts, size))) * whole
    return found


def pack(whole: np.ndarray, width: Width) -> np.ndarray:
    if width.bits == 8:
        return whole
    padded = np.append(whole, np.zeros(whole.size % 2, np.int8))
    halves = (padded + MIDDLE).astype(np.uint8)
    return halves[0::2] | (halves[1::2] << 4)


def unpack(stored: np.ndarray, size: int, width: Width) -> np.ndarray:
    """The inverse of `pack`; int8."""
    if width.bits == 8:
        return stored
    halves = np.empty(2 * stored.size, np.int8)
    halves[0::2], halves[1::2] = stored & 15, stored >> 4
    halves -= MIDDLE
    demand(not halves[size:].any(), "what fills the last byte is not zero", CodecError)
    return halves[:size]


def _check(what: str, found: np.ndarray, kind: "np.dtype[np.generic]", size: int) -> None:
    is_same = found.dtype == kind and found.shape == (size,)
    came = f"{found.dtype} of shape {found.shape}"
    demand(is_same, f"{what}: {size} of {kind} expected, {came} came", CodecError)


MOST_SHARE = 0.5  # of more, place and value take more bytes than all values would


def kept_of(share: float, size: int) -> int:
    """How many of so many numbers are kept: at least one, where there is one."""
    return min(size, max(1, math.ceil(share * size)))


def largest(numbers: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Places (uint32, ascending) and values (float32) of the largest numbers.

    Args:
        numbers: float32, shape (size,), finite.
        share: How many of them, as a share.
    """
    kept, sizes = kept_of(share, numbers.size), np.abs(numbers)
    if not kept:
        return np.zeros(0, np.uint32), numbers[:0]
    least = np.partition(sizes, sizes.size - kept)[sizes.size - kept]
    above = np.flatnonzero(sizes > least)
    equal = np.flatnonzero(sizes == least)[: kept - above.size]
    places = np.sort(np.concatenate([above, equal]))
    return places.astype(np.uint32), numbers[places]


def spread(places: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """The inverse of `largest`, with zeros for what was left out; float32 of shape (size,).

    Raises:
        CodecError: It is not what `largest` gives of so many numbers.
    """
    most = kept_of(MOST_SHARE, size)
    is_whole = places.dtype == np.uint32 and places.ndim == 1 and places.size <= most
    demand(is_whole, f"up to {most} places as uint32 expected, {_of(places)} came", CodecError)
    kept = places.size
    is_whole = values.dtype == np.float32 and values.shape == (kept,)
    demand(is_whole, f"{kept} values as float32 expected, {_of(values)} came", CodecError)
    demand(bool(np.isfinite(values).all()), "a value is infinite or NaN", CodecError)
    found = places.astype(np.int64)
    demand(bool((np.diff(found) > 0).all()), "places do not rise: one comes twice", CodecError)
    demand(not kept or int(found[-1]) < size, f"a place beyond the last of {size}", CodecError)
    numbers = np.zeros(size, np.float32)
    numbers[found] = values
    return numbers


def _of(found: np.ndarray) -> str:
    return f"{found.dtype} of shape {found.shape}"


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
    return coded, shaped(numbers - _decoded(coded, kind_of(codec), sizes), shapes)


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
        return shaped(_decoded(coded, kind, _sizes(shapes)), shapes)
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


def shaped(numbers: np.ndarray, shapes: Shapes) -> Tensors:
    """Numbers that lie one behind the other, as tensors in order of their names."""
    ends = np.cumsum(_sizes(shapes), dtype=np.intp)[:-1]
    parts = np.split(numbers, ends)
    return {
        name: part.reshape(shapes[name]) for name, part in zip(sorted(shapes), parts, strict=False)
    }

"""Block quantization to int8 or int4: a quarter or an eighth of float32's bytes.

A block is a fixed number of consecutive values of one tensor; each tensor starts a new block. Its
float32 scale is the largest magnitude divided by 127 (int8) or 7 (int4); each value is stored as
the nearest multiple of the scale, ties to even. Two int4 values share a byte, the first in the low
half, with 8 for zero.

Laws: the error is at most half a scale; equal values give equal bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.errors import Failed, demand

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
    packed: np.ndarray = halves[0::2] | (halves[1::2] << 4)
    return packed


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

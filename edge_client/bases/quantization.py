"""Quantization with numpy alone: int8 by rows, nf4 by blocks of 64, bfloat16; GGUF's blocks.

Every row is quantized by itself, so quantizing or reading a few rows at a time gives the same
result. nf4 has bitsandbytes' codes and scales. GGUF's block types are read, not written.

    data, scale = quantize_nf4(weight)
    weight ≈ dequantize(Stored(4, "nf4", weight.shape, data, scale))
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smidgen.edge_client.bases.gguf.blocks import BLOCKS

BLOCK = 64  # columns that share one nf4 scale
# Quantiles of a normal distribution, scaled to [-1, 1] (QLoRA, Dettmers et al. 2023,
# arXiv:2305.14314, appendix E).
NF4 = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)
_MIDDLES = (NF4[:-1] + NF4[1:]) / 2
PAIRS = np.stack([np.repeat(NF4, 16), np.tile(NF4, 16)], axis=1)  # byte -> its two values
CACHED = 1 << 17  # elements made dense at once, so that they stay in a core's cache
_SMALLEST_BLOCK = 1e-38  # bitsandbytes' own bound: below it a block's scale is not inverted
_SMALLEST_ROW = 127 * float(np.finfo(np.float32).tiny)  # below it a row counts as zeros


@dataclass(frozen=True, eq=False)
class Stored:
    """A matrix as it lies in a file.

    Attributes:
        bits: Bits of one element: 4, 8, 16 or 32; of a GGUF block its codes' own, 4, 5, 6 or 8.
        kind: `nf4`, `int8`, `bfloat16`, `float16`, `float32`, or one of `BLOCKS`, such as `q4_1`.
        shape: Rows and columns of the matrix it stands for.
        data: nf4: uint8 (rows, columns / 2), the first of two elements in the high half; int8:
            int8 (rows, columns); bfloat16: uint16 (rows, columns); GGUF's: uint8 (rows, bytes of a
            row); else the floats themselves.
        scale: nf4: float32 (rows, columns / 64), a block's largest magnitude; int8: float32
            (rows, 1), what one step is worth; else None.
        order: Which row of `data` each row is, where a file has them in another order; else None.
    """

    bits: int
    kind: str
    shape: tuple[int, int]
    data: np.ndarray
    scale: np.ndarray | None = None
    order: np.ndarray | None = None

    @property
    def block(self) -> int:
        """Columns that are not parted."""
        return BLOCKS[self.kind].elements if self.kind in BLOCKS else BLOCK

    def some(self, part: slice, axis: int = 0) -> "Stored":
        """Some of its rows, or of its columns (axis 1) by whole blocks, as views."""
        size, data, scale = part.stop - part.start, self.data, self.scale
        if axis == 1:
            width = self.shape[1]
            own = slice(part.start * data.shape[1] // width, part.stop * data.shape[1] // width)
            if self.kind == "nf4" and scale is not None:
                scale = scale[:, part.start // BLOCK : part.stop // BLOCK]
            return replace(self, shape=(self.shape[0], size), data=data[:, own], scale=scale)
        shape = size, self.shape[1]
        if self.order is not None:
            return replace(self, shape=shape, order=self.order[part])
        scale = None if scale is None else scale[part]
        return replace(self, shape=shape, data=data[part], scale=scale)

    def places(self, rows: Any) -> Any:
        """Where rows lie in `data`; a slice or indices, as they are where no order is given."""
        return rows if self.order is None else self.order[rows]


def quantize_int8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round each row to 255 even steps about zero.

    An element moves by at most half its row's scale, but for float32's own rounding. Quantizing
    the result again gives the same codes. Scales are numbers that bfloat16 holds exactly, so that
    computing in it adds no error to a whole row.

    Args:
        weight: Finite, float32, (rows, columns).

    Returns:
        Codes, int8, (rows, columns), -127 to 127; scales, float32, (rows, 1), never zero.
    """
    largest = np.abs(weight).max(axis=1, keepdims=True)
    even = from_bfloat16(to_bfloat16(largest / np.float32(127.0)))
    scale = np.where(largest < _SMALLEST_ROW, np.float32(1.0), even)
    return np.clip(np.rint(weight / scale), -127, 127).astype(np.int8), scale


def quantize_nf4(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give each element the nearest of 16 codes times its block's largest magnitude.

    Of two codes equally near, the lower is taken, as bitsandbytes does. Quantizing the result
    again gives the same bytes.

    Args:
        weight: Finite, float32, (rows, columns), columns a multiple of 64.

    Returns:
        Pairs of codes, uint8, (rows, columns / 2); scales, float32, (rows, columns / 64).

    Raises:
        ValueError: Blocks of 64 do not divide the columns.
    """
    rows, columns = weight.shape
    if columns % BLOCK:
        raise ValueError(f"nf4 needs columns in blocks of {BLOCK}, not {columns}")
    blocks = weight.reshape(-1, BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True)
    relative = blocks * (1 / np.maximum(scale, _SMALLEST_BLOCK))
    codes = np.zeros(blocks.shape, np.uint8)
    for middle in _MIDDLES:  # fifteen passes over a block in cache beat a search per element
        codes += relative > middle
    codes = codes.reshape(rows, columns)
    return codes[:, ::2] << 4 | codes[:, 1::2], scale.reshape(rows, columns // BLOCK)


def to_bfloat16(weight: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16, ties to even; returns the bits as uint16.

    Args:
        weight: float32 of any shape, without NaN.
    """
    bits = np.ascontiguousarray(weight, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Widen bfloat16, given as uint16, to float32; exact."""
    wide: np.ndarray = bits.astype(np.uint32) << 16
    return wide.view(np.float32)


def dequantize(stored: Stored, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
    """A matrix, or some of its rows, as a new float32 array.

    Args:
        stored: The matrix.
        rows: Which rows, in which order; all if None. Only these are touched.
    """
    chosen = stored.places(slice(None) if rows is None else np.asarray(rows, np.int64))
    data: np.ndarray = stored.data[chosen]
    scale: np.ndarray | None = None if stored.scale is None else stored.scale[chosen]
    if stored.kind in BLOCKS:
        out = np.empty((len(data), stored.shape[1]), np.float32)
        fill(Stored(stored.bits, stored.kind, out.shape, data), slice(0, len(data)), out)
        return out
    if stored.kind == "bfloat16":
        return from_bfloat16(data)
    if stored.kind == "nf4" and scale is not None:
        blocks = PAIRS[data].reshape(*scale.shape, BLOCK)
        blocks *= scale[:, :, None]
        return np.reshape(blocks, (len(data), stored.shape[1]))
    values: np.ndarray = data.astype(np.float32)
    if scale is not None:
        values *= scale
    return values


def fill(stored: Stored, part: slice, out: np.ndarray) -> None:
    """Write a part of the rows to where they are in `out`, as many at once as a cache holds.

    Args:
        stored: A matrix of GGUF blocks, or of floats whose rows have an order.
        part: First row, and the row behind the last.
        out: float32, (rows, columns), of the whole matrix.
    """
    step, block = max(1, CACHED // stored.shape[1]), BLOCKS.get(stored.kind)
    for start in range(part.start, part.stop, step):
        rows = slice(start, min(start + step, part.stop))
        data = stored.data[stored.places(rows)]
        if block is not None:
            with np.errstate(all="ignore"):  # a scale that is infinite stays so
                block.fill(
                    data.reshape(-1).view(block.layout), out[rows].reshape(-1, block.elements)
                )
        else:
            out[rows] = from_bfloat16(data) if stored.kind == "bfloat16" else data

"""GGUF's block types: weights of neighbouring columns that share a scale, read and not written.

The layouts are those of llama.cpp's ggml-common.h; products and sums are rounded one by one, so
that the values are llama.cpp's to the bit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ4_BYTES = np.tile(np.array(IQ4, np.int8), 16).tobytes()  # of a byte whose high half is zero
D, M, SCALES = ("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12)


class Block(NamedTuple):
    """A block type.

    Attributes:
        bits: Of a code.
        elements: Weights in a block.
        layout: A block's bytes.
        fill: Writes blocks (N,) to `out` (N, elements), float32.
    """

    bits: int
    elements: int
    layout: np.dtype[Any]
    fill: Callable[[np.ndarray, np.ndarray], None]


def _nibbles(codes: np.ndarray, width: int) -> np.ndarray:
    """Of each `width` bytes the low halves, then the high ones: (N, bytes) to (parts, 2, width)."""
    codes = np.ascontiguousarray(codes)
    halves = np.empty((codes.size // width, 2, width), np.uint8)
    codes = codes.reshape(-1, width)
    np.bitwise_and(codes, 15, out=halves[:, 0])
    np.right_shift(codes, 4, out=halves[:, 1])
    return halves


def _scaled(codes: np.ndarray, d: np.ndarray, out: np.ndarray, m: np.ndarray | None = None) -> None:
    """codes * d + m, with a `d` and `m` for each equal part of a block."""
    parts = out.reshape(d.size, -1)
    np.copyto(parts, codes.reshape(parts.shape))
    np.multiply(parts, d.reshape(-1, 1), out=parts)
    if m is not None:
        np.add(parts, m.reshape(-1, 1), out=parts)


def _wide(halves: np.ndarray) -> np.ndarray:
    return halves.astype(np.float32)


def _q4_0(blocks: np.ndarray, out: np.ndarray) -> None:
    codes = _nibbles(blocks["q"], 16).view(np.int8)
    codes -= 8
    _scaled(codes, _wide(blocks["d"]), out)


def _q4_1(blocks: np.ndarray, out: np.ndarray) -> None:
    _scaled(_nibbles(blocks["q"], 16), _wide(blocks["d"]), out, _wide(blocks["m"]))


def _q5(blocks: np.ndarray) -> np.ndarray:
    """Codes of five bits: four as Q4's, and the fifths of all in a word."""
    codes = _nibbles(blocks["q"], 16).reshape(-1, 32)
    fifths = np.unpackbits(blocks["h"], axis=1, bitorder="little")
    fifths <<= 4
    codes |= fifths
    return codes


def _q5_0(blocks: np.ndarray, out: np.ndarray) -> None:
    codes = _q5(blocks).view(np.int8)
    codes -= 16
    _scaled(codes, _wide(blocks["d"]), out)


def _q5_1(blocks: np.ndarray, out: np.ndarray) -> None:
    _scaled(_q5(blocks), _wide(blocks["d"]), out, _wide(blocks["m"]))


def _q8_0(blocks: np.ndarray, out: np.ndarray) -> None:
    _scaled(blocks["q"], _wide(blocks["d"]), out)


def _scales_of_k(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and what is added, (N, 8) each: six bits of either in twelve bytes."""
    low, least, rest = (blocks["scales"][:, i : i + 4] for i in (0, 4, 8))
    scales = np.concatenate([low & 63, rest & 15 | low >> 2 & 48], axis=1)
    least = np.concatenate([least & 63, rest >> 4 | least >> 2 & 48], axis=1)
    d, m = _wide(blocks["d"])[:, None], _wide(blocks["m"])[:, None]
    return d * _wide(scales), -(m * _wide(least))


def _q4_k(blocks: np.ndarray, out: np.ndarray) -> None:
    d, m = _scales_of_k(blocks)
    _scaled(_nibbles(blocks["q"], 32), d, out, m)


def _q5_k(blocks: np.ndarray, out: np.ndarray) -> None:
    d, m = _scales_of_k(blocks)
    codes = _nibbles(blocks["q"], 32).reshape(-1, 8, 32)
    fifths = np.ascontiguousarray(blocks["h"])
    for part in range(8):
        codes[:, part] |= (fifths >> part & 1) << 4
    _scaled(codes, d, out, m)


def _q6_k(blocks: np.ndarray, out: np.ndarray) -> None:
    codes = _nibbles(blocks["q"], 64).reshape(-1, 2, 4, 32)
    upper = np.ascontiguousarray(blocks["h"]).reshape(-1, 2, 32)
    for part in range(4):
        codes[:, :, part] |= (upper >> 2 * part & 3) << 4
    codes = codes.view(np.int8)
    codes -= 32
    _scaled(codes, _wide(blocks["d"])[:, None] * _wide(blocks["scales"]), out)


def _iq4(codes: np.ndarray) -> np.ndarray:
    """The levels of codes; a byte at a time, without an index of eight bytes for each."""
    return np.frombuffer(_nibbles(codes, 16).tobytes().translate(_IQ4_BYTES), np.int8)


def _iq4_nl(blocks: np.ndarray, out: np.ndarray) -> None:
    _scaled(_iq4(blocks["q"]), _wide(blocks["d"]), out)


def _iq4_xs(blocks: np.ndarray, out: np.ndarray) -> None:
    lower = _nibbles(blocks["low"], 1).reshape(-1, 8)
    upper = (blocks["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scales = (lower | upper << 4).view(np.int8) - np.int8(32)
    _scaled(_iq4(blocks["q"]), _wide(blocks["d"])[:, None] * _wide(scales), out)


def _block(bits: int, elements: int, layout: list[Any], fill: Any) -> Block:
    return Block(bits, elements, np.dtype(layout), fill)


BLOCKS: dict[str, Block] = {
    "q4_0": _block(4, 32, [D, ("q", "u1", 16)], _q4_0),
    "q4_1": _block(4, 32, [D, M, ("q", "u1", 16)], _q4_1),
    "q5_0": _block(5, 32, [D, ("h", "u1", 4), ("q", "u1", 16)], _q5_0),
    "q5_1": _block(5, 32, [D, M, ("h", "u1", 4), ("q", "u1", 16)], _q5_1),
    "q8_0": _block(8, 32, [D, ("q", "i1", 32)], _q8_0),
    "q4_k": _block(4, 256, [D, M, SCALES, ("q", "u1", 128)], _q4_k),
    "q5_k": _block(5, 256, [D, M, SCALES, ("h", "u1", 32), ("q", "u1", 128)], _q5_k),
    "q6_k": _block(6, 256, [("q", "u1", 128), ("h", "u1", 64), ("scales", "i1", 16), D], _q6_k),
    "iq4_nl": _block(4, 32, [D, ("q", "u1", 16)], _iq4_nl),
    "iq4_xs": _block(4, 256, [D, ("high", "<u2"), ("low", "u1", 4), ("q", "u1", 128)], _iq4_xs),
}

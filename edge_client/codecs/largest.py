"""Top-k sparsification: values of largest magnitude with their indices; others decode as zero.

Indices run through all tensors in sequence. Laws: no omitted value is larger than a kept one; of
equal ones those with the lowest indices are kept; kept values are exact.
"""

import math

import numpy as np

from edge_client.codecs.blocks import CodecError
from edge_client.errors import demand

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

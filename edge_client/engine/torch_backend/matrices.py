"""Frozen weights as they are stored, made dense where they are used, and their two products."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from edge_client.bases.quantization import BLOCK, NF4, Stored


class Scratch:
    """Room for one dense weight at a time, kept from one use to the next.

    Memory that is new to a process is zeroed page by page when it is touched, which costs as much
    as dequantizing into it.
    """

    def __init__(self) -> None:
        self._rooms: dict[torch.dtype, Tensor] = {}

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """An uninitialized array (elements,); overwrites the last one taken of this type."""
        room = self._rooms.pop(dtype, None)
        if room is None or len(room) < elements:
            del room  # before the larger one is had
            room = torch.empty(elements, dtype=dtype)
        self._rooms[dtype] = room
        return room[:elements]

    def clear(self) -> None:
        self._rooms.clear()


class FrozenMatrix:
    """A weight as it is stored, and its two products.

    Args:
        stored: Views on the mapped file.
        device: Where it is used; on the processor nothing is copied.
        scratch: Where its dense form is made, shared by all matrices of a network.
    """

    def __init__(self, stored: Stored, device: torch.device, scratch: Scratch) -> None:
        self.shape, self.kind = stored.shape, stored.kind
        data = torch.from_numpy(stored.data)
        if self.kind == "bfloat16":
            data = data.view(torch.bfloat16)
        self.data = data.to(device)
        self.scale = None if stored.scale is None else torch.from_numpy(stored.scale).to(device)
        self._scratch = scratch

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`, (rows, columns); int8 rows are scaled later.

        Valid until another matrix of the same scratch is asked.
        """
        if self.kind == "nf4":
            assert self.scale is not None
            if self.data.is_cuda:
                return nf4_dense_by_bitsandbytes(self.data, self.scale, dtype)
            return nf4_dense(self.data, self.scale, dtype, self._scratch)
        if self.data.dtype == dtype or self.data.is_cuda:
            return self.data.to(dtype)
        return self._scratch.take(self.data.numel(), dtype).view(self.shape).copy_(self.data)

    def times(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x @ W.T + bias, (..., columns) -> (..., rows)."""
        bias = None if bias is None else bias.to(x.dtype)
        if self.kind != "int8":
            return functional.linear(x, self.dense(x.dtype), bias)
        assert self.scale is not None
        y = functional.linear(x, self.dense(x.dtype))
        scale = self.scale.view(-1).to(x.dtype)
        return y.mul_(scale) if bias is None else torch.addcmul(bias, y, scale, out=y)

    def times_transposed(self, g: Tensor) -> Tensor:
        """g @ W, (..., rows) -> (..., columns)."""
        dense = self.dense(g.dtype)
        if self.kind == "int8":
            assert self.scale is not None
            dense.mul_(self.scale.to(g.dtype))  # no second g, as large as the widest states
        return g @ dense


def nf4_dense(data: Tensor, scale: Tensor, dtype: torch.dtype, scratch: Scratch) -> Tensor:
    """Dequantize nf4 by table: four values at a look-up (two in float32).

    Args:
        data: uint8, (rows, columns / 2), the first of a pair in the high nibble.
        scale: float32, (rows, columns / 64).
        dtype: The result's, (rows, columns).
        scratch: Where the result lies.
    """
    rows, pairs = data.shape
    table = _nf4_table(dtype)
    is_wide = dtype == torch.float32
    places = data.view(-1) if is_wide else data.view(torch.int16).view(-1)
    index = scratch.take(len(places), torch.int32).copy_(places)
    if not is_wide:
        index.add_(1 << 15)
    found = scratch.take(len(places), torch.int64)
    torch.index_select(table, 0, index, out=found)
    values = found.view(dtype)  # (rows * columns,)
    values.view(-1, BLOCK).mul_(scale.reshape(-1, 1).to(dtype))
    return values.view(rows, 2 * pairs)


@cache
def _nf4_table(dtype: torch.dtype) -> Tensor:
    """Values of one byte (float32) or two bytes (16-bit types), as int64 to be looked up whole."""
    code = torch.from_numpy(NF4.copy()).to(dtype)
    byte = torch.arange(256)
    pairs = torch.stack([code[byte >> 4], code[byte & 15]], dim=1)  # (256, 2)
    if dtype == torch.float32:
        return pairs.view(torch.int64).view(-1)
    word = torch.arange(-(1 << 15), 1 << 15)  # little-endian int16: the low byte comes first
    quads = torch.cat([pairs[word & 255], pairs[(word >> 8) & 255]], dim=1)
    return quads.contiguous().view(torch.int64).view(-1)


def nf4_dense_by_bitsandbytes(data: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Like `nf4_dense`, with bitsandbytes' kernel: used on CUDA devices."""
    import bitsandbytes.functional as bitsandbytes  # 110 MB: only where a GPU computes

    state = bitsandbytes.QuantState(
        absmax=scale.reshape(-1),
        shape=torch.Size((data.shape[0], 2 * data.shape[1])),
        code=bitsandbytes.get_4bit_type("nf4", device=data.device),
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=dtype,
    )
    dense: Tensor = bitsandbytes.dequantize_4bit(data.reshape(-1, 1), state)
    return dense

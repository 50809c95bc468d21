"""Frozen matrices as stored, dequantized on use, and their forward and backward products.

A CPU uses them where they are mapped. A GPU needs copies: of all of them or, when streamed, of one
at a time.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from smidgen.edge_client.bases.gguf.blocks import BLOCKS
from smidgen.edge_client.bases.quantization import BLOCK, NF4, Stored, fill


class Data(NamedTuple):
    """A weight's stored numbers, and their scales where it has some."""

    values: Tensor
    scale: Tensor | None

    def to(self, device: torch.device) -> "Data":
        return Data(self.values.to(device), None if self.scale is None else self.scale.to(device))


class Scratch:
    """Room for one dense weight at a time, kept from one use to the next; and a card's copies.

    Memory that is new to a process is zeroed page by page when it is touched, which costs as much
    as dequantizing into it.

    Attributes:
        is_streamed: Whether a stored weight is copied to the card at each use, and not kept there.
    """

    def __init__(self) -> None:
        self.is_streamed = False
        self._rooms: dict[torch.dtype, Tensor] = {}
        self._copies: dict[int, Data] = {}

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """An uninitialized array (elements,); overwrites the last one taken of this type."""
        room = self._rooms.pop(dtype, None)
        if room is None or len(room) < elements:
            del room  # before the larger one is had
            room = torch.empty(elements, dtype=dtype)
        self._rooms[dtype] = room
        return room[:elements]

    def copy(self, mapped: Data, device: torch.device) -> Data:
        """A stored weight on a card; unless it is streamed it stays there until `clear`.

        Args:
            mapped: Where it is mapped; the caller keeps it, and asks with the same one each time.
            device: The card.
        """
        if self.is_streamed:
            return mapped.to(device)
        if id(mapped) not in self._copies:
            self._copies[id(mapped)] = mapped.to(device)
        return self._copies[id(mapped)]

    def clear(self) -> None:
        self._rooms.clear()
        self._copies.clear()


class FrozenMatrix:
    """A weight as it is stored, and its two products.

    Args:
        stored: Views on the mapped file.
        device: Where it is used; on the processor nothing is copied.
        scratch: Where its dense form is made and copies are kept, shared by all matrices of a
            network.

    Attributes:
        mapped: The weight as it lies in the file.
    """

    def __init__(self, stored: Stored, device: torch.device, scratch: Scratch) -> None:
        self.shape, self.kind = stored.shape, stored.kind
        is_gguf = stored.kind in BLOCKS or stored.order is not None
        self._blocks = stored if is_gguf else None
        values = torch.from_numpy(stored.data)
        if self.kind == "bfloat16":
            values = values.view(torch.bfloat16)
        scale = None if stored.scale is None else torch.from_numpy(stored.scale)
        self.mapped, self._device, self._scratch = Data(values, scale), device, scratch

    def _data(self) -> Data:
        is_here = self._blocks is not None or self._device == self.mapped.values.device
        return self.mapped if is_here else self._scratch.copy(self.mapped, self._device)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`, (rows, columns); int8 rows are scaled later.

        Valid until another matrix of the same scratch is asked.
        """
        return self._dense(self._data(), dtype)

    def _blocks_dense(self, stored: Stored, dtype: torch.dtype) -> Tensor:
        """A matrix of a GGUF, made dense in float32 by the processor wherever it is used."""
        rows, columns = self.shape
        wide = self._scratch.take(rows * columns, torch.float32).view(self.shape)
        fill(stored, slice(0, rows), wide.numpy())
        if self._device.type != "cpu":
            return wide.to(self._device, dtype)
        if dtype == torch.float32:
            return wide
        return self._scratch.take(rows * columns, dtype).view(self.shape).copy_(wide)

    def _dense(self, data: Data, dtype: torch.dtype) -> Tensor:
        if self._blocks is not None:
            return self._blocks_dense(self._blocks, dtype)
        values, scale = data
        is_on_card = values.device.type != "cpu"
        if self.kind == "nf4":
            assert scale is not None
            if is_on_card:
                return nf4_dense_by_bitsandbytes(values, scale, dtype)
            return nf4_dense(values, scale, dtype, self._scratch)
        if values.dtype == dtype or is_on_card:
            return values.to(dtype)
        return self._scratch.take(values.numel(), dtype).view(self.shape).copy_(values)

    def times(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x @ W.T + bias, (..., columns) -> (..., rows)."""
        bias, data = None if bias is None else bias.to(x.dtype), self._data()
        if self.kind != "int8":
            return functional.linear(x, self._dense(data, x.dtype), bias)
        assert data.scale is not None
        y = functional.linear(x, self._dense(data, x.dtype))
        scale = data.scale.view(-1).to(x.dtype)
        return y.mul_(scale) if bias is None else torch.addcmul(bias, y, scale, out=y)

    def times_transposed(self, g: Tensor) -> Tensor:
        """g @ W, (..., rows) -> (..., columns)."""
        data = self._data()
        dense = self._dense(data, g.dtype)
        if self.kind == "int8":
            assert data.scale is not None
            dense.mul_(data.scale.to(g.dtype))  # no second g, as large as the widest states
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
    """Like `nf4_dense`, with bitsandbytes' kernel: used on CUDA devices.

    In 16 bits it rounds once, `nf4_dense` three times; in float32 both give the same numbers.
    """
    import bitsandbytes.functional as bitsandbytes  # 110 MB: only where a GPU computes

    state = bitsandbytes.QuantState(
        absmax=scale.reshape(-1),
        shape=torch.Size((data.shape[0], 2 * data.shape[1])),
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=dtype,
    )
    dense: Tensor = bitsandbytes.dequantize_4bit(data.reshape(-1, 1), state)
    return dense

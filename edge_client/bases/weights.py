"""Memory-mapped weights of a base: nothing is read before it is used.

Packs, plain Hugging Face folders and GGUF files are read by the same class. A quantized tensor `X`
of a pack has its scales beside it as `X.scale`; they belong to it and are not listed.

    weights = Weights(base.weights)
    row = weights.rows("bert.embeddings.word_embeddings.weight", [101])  # float32 (1, hidden)
    weights.release(weights.names)  # releases the pages; the tensors stay usable
"""

import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np

from smidgen.edge_client.bases.architectures import Family, modern_name
from smidgen.edge_client.bases.gguf.blocks import BLOCKS
from smidgen.edge_client.bases.gguf.header import GgufFile, is_gguf
from smidgen.edge_client.bases.gguf.model import config_of, entries_of
from smidgen.edge_client.bases.header import SCALE, TensorEntry, WeightsError, read_header
from smidgen.edge_client.bases.quantization import (
    BLOCK,
    Stored,  # what `Weights.stored` gives
    dequantize,
    from_bfloat16,
)

FLOATS = {"F32": ("float32", 32), "F16": ("float16", 16), "BF16": ("bfloat16", 16)}
_CODES = {"U8": "nf4", "I8": "int8"}
Spans = tuple[tuple[int, int], ...]
_NUMPY = {"F32": "f4", "F16": "f2", "BF16": "u2", "I8": "i1", "U8": "u1"}


class Weights:
    """A safetensors or GGUF file, mapped; its arrays are writable views, the file never changes.

    Args:
        path: The file.
        family: The model's, for names as `Family.full_name` gives them; a GGUF names its own.

    Raises:
        ArchitectureError: A GGUF of an architecture that is not known here.
        WeightsError: The file is not there, cut short, or its header is not what the format says.
    """

    def __init__(self, path: Path, family: Family | None = None) -> None:
        self.path, self._orders = path, dict[str, np.ndarray]()
        try:
            if is_gguf(path):
                with GgufFile(path) as header:
                    entries, self._orders = entries_of(header, config_of(header))
            with path.open("rb") as file:
                if not is_gguf(path):
                    entries = read_header(file, path)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise WeightsError(f"cannot read weights {path}: {error.strerror}") from error
        self._closed = weakref.finalize(self, os.close, self._file)
        full_name = family.full_name if family else modern_name
        self._entries = {full_name(name): entry for name, entry in entries.items()}
        if len(self._entries) < len(entries):
            raise WeightsError(
                f"{path} names a tensor twice: as `gamma` or `beta`, or without the model's "
                "prefix, and as today; save the model again with save_pretrained"
            )

    @property
    def names(self) -> list[str]:
        """The tensors in the order of the file, without the scales of the quantized ones."""
        return [name for name in self._entries if not self._is_scale(name)]

    def __contains__(self, name: str) -> bool:
        return name in self._entries and not self._is_scale(name)

    def __enter__(self) -> "Weights":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the tensor that is meant; of a packed nf4 matrix twice the stored columns."""
        entry = self._entry(name)
        if self._kind(name) == "nf4":
            return (*entry.shape[:-1], 2 * entry.shape[-1])
        return entry.shape

    def raw(self, name: str) -> tuple[str, np.ndarray]:
        """A tensor's element type by the format's name, and a view of it; bfloat16 as its bits."""
        return self._entry(name).dtype, self._view(name)

    def stored(self, name: str) -> Stored:
        """A matrix as it lies in the file; views, nothing is copied.

        Raises:
            WeightsError: No such matrix.
        """
        kind, shape = self._kind(name), self.shape(name)
        if len(shape) != 2:
            raise WeightsError(f"{self.path}: {name} has shape {shape}, a matrix is expected")
        rows, columns = shape
        if kind not in ("nf4", "int8"):
            bits = BLOCKS[kind].bits if kind in BLOCKS else FLOATS[self._entry(name).dtype][1]
            order = self._orders.get(name)
            return Stored(bits, kind, (rows, columns), self._view(name), order=order)
        scale = self._view(name + SCALE)
        expected = (rows, columns // BLOCK if kind == "nf4" else 1)
        if scale.dtype != np.float32 or scale.shape != expected:
            raise WeightsError(
                f"{self.path}: the scales of {name} are {scale.dtype} {scale.shape}, "
                f"float32 {expected} expected"
            )
        bits = 4 if kind == "nf4" else 8
        return Stored(bits, kind, (rows, columns), self._view(name), scale)

    def vector(self, name: str) -> np.ndarray:
        """A float32 copy of a tensor that is not quantized, of any shape.

        Raises:
            WeightsError: No such tensor, or a quantized one.
        """
        kind = self._kind(name)
        if kind in ("nf4", "int8", *BLOCKS):
            raise WeightsError(f"{self.path}: {name} is quantized; read its rows")
        view = self._view(name)
        wide = from_bfloat16(view) if kind == "bfloat16" else view.astype(np.float32)
        return wide[self._orders[name]] if name in self._orders else wide

    def rows(self, name: str, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Rows of a matrix as float32 (indices, columns).

        They are read, not mapped: around a mapped row a kernel may map two megabytes.

        Raises:
            IndexError: No such row.
            WeightsError: No such matrix, or a file that was cut short since it was opened.
        """
        stored, rows = self.stored(name), np.asarray(indices, np.int64)
        if ((rows < 0) | (rows >= stored.shape[0])).any():  # else another matrix's would be read
            raise IndexError(f"{self.path}: {name} has {stored.shape[0]} rows")
        places = stored.places(rows)
        data = self._read(name, stored.data, places)
        scale = None if stored.scale is None else self._read(name + SCALE, stored.scale, places)
        shape = len(places), stored.shape[1]
        return dequantize(replace(stored, shape=shape, data=data, scale=scale, order=None))

    def spans(self, stored: Stored) -> Spans:
        """From and to which bytes of the file a matrix lies, its scales too; or a part of one."""
        base = np.frombuffer(self._map, np.uint8).ctypes.data
        arrays = [stored.data] if stored.scale is None else [stored.data, stored.scale]
        ends = [np.lib.array_utils.byte_bounds(array) for array in arrays]
        return tuple((low - base, high - base) for low, high in ends)

    def read_ahead(self, spans: Spans) -> None:
        """Have the kernel read bytes of the file into its page cache, without waiting for them."""
        step = 1 << 17  # of one call a kernel reads no more than it may read ahead
        for low, high in spans:
            parts = [(start, min(start + step, high)) for start in range(low, high, step)]
            self._advise(mmap.MADV_WILLNEED, parts)

    def release(self, names: Sequence[str]) -> None:
        """Give back the memory of tensors; what was written into their views is lost.

        Only whole pages are given back. They stay in the kernel's page cache, so touching
        them later costs no read from disk while memory is plenty.
        """
        spans = [(entry.start, entry.end) for name in names for entry in self._parts(name)]
        for start, end in _joined(sorted(spans)):
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            length = end // mmap.PAGESIZE * mmap.PAGESIZE - first
            if length > 0:
                self._map.madvise(mmap.MADV_DONTNEED, first, length)

    def _advise(self, advice: int, spans: Iterable[tuple[int, int]]) -> None:
        """Tell the kernel about all pages on which there is a byte of a span, if it listens."""
        for start, end in spans:
            first = start - start % mmap.PAGESIZE
            with suppress(OSError):  # a file system that takes no advice
                self._map.madvise(advice, first, end - first)

    def close(self) -> None:
        """Unmap the file, once no view of it is left."""
        with suppress(BufferError):  # somebody holds a view; the map goes with the last one
            self._map.close()
        self._closed()
        self._file = -1

    def _read(self, name: str, view: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Rows of a tensor as they lie in the file, those in sequence at once."""
        found = np.empty((len(rows), view.shape[1]), view.dtype)
        ends = np.flatnonzero(np.diff(rows) != 1) + 1
        for first, end in pairwise(sorted({0, *ends.tolist(), len(rows)})):
            part = found[first:end]
            start = self._entry(name).start + int(rows[first]) * view.strides[0]
            if os.preadv(self._file, [part.data], start) < part.nbytes:
                raise WeightsError(f"{self.path} was cut short since it was opened: {name}")
        return found

    def _parts(self, name: str) -> list[TensorEntry]:
        scale = self._entries.get(name + SCALE)
        return [self._entry(name), *([scale] if scale else [])]

    def _is_scale(self, name: str) -> bool:
        return name.endswith(SCALE) and name.removesuffix(SCALE) in self._entries

    def _entry(self, name: str) -> TensorEntry:
        if name not in self._entries:
            raise WeightsError(f"{self.path} has no tensor {name}")
        return self._entries[name]

    def _kind(self, name: str) -> str:
        entry = self._entry(name)
        if entry.dtype in FLOATS:
            return FLOATS[entry.dtype][0]
        if entry.dtype.lower() in BLOCKS:
            return entry.dtype.lower()
        if entry.dtype in _CODES and len(entry.shape) == 2 and name + SCALE in self._entries:
            return _CODES[entry.dtype]
        repair = "; `smidgen pack` reads it" if entry.dtype == "F64" else ""
        raise WeightsError(
            f"{self.path}: {name} is {entry.dtype}, which no base here is made of{repair}"
        )

    def _view(self, name: str) -> np.ndarray:
        entry = self._entry(name)
        # Not np.ndarray(buffer=...): it would not keep the map from being closed under it.
        body = np.frombuffer(self._map, np.uint8)[entry.start : entry.end]
        if entry.dtype not in _NUMPY:
            return body.reshape(entry.shape[0], -1)
        return body.view(_NUMPY[entry.dtype]).reshape(entry.shape)


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted spans, those that touch made one."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined

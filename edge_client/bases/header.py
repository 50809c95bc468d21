"""Safetensors headers: parsed with strict checks, written deterministically.

A file is eight bytes (the header's length, little-endian), the header (JSON: name -> type, shape
and offsets), and the tensors without a gap. The safetensors library only writes tensors that are
all in memory at once; a packer that holds one at a time needs the header by itself.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from smidgen.edge_client.bases.gguf.blocks import BLOCKS
from smidgen.edge_client.errors import WrongInput, demand

MAX_HEADER_BYTES = 16 << 20
ALIGNMENT = 8
FORMAT = {"format": "pt"}  # what transformers asks of a file's metadata
SCALE = ".scale"  # a quantized tensor X has its scales beside it as X.scale
ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}


class WeightsError(WrongInput):
    """A file that is not a weights file, is broken, or lacks what is asked for."""


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies.

    Attributes:
        dtype: The format's own name of the element type, such as `F32`, or of GGUF's block type.
        shape: Its sizes.
        start: Its first byte, counted from the start of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def end(self) -> int:
        """The byte behind its last one."""
        elements, size = item_bytes(self.dtype)
        return self.start + math.prod(self.shape) // elements * size


def item_bytes(dtype: str) -> tuple[int, int]:
    """Elements that lie together, and their bytes: 1 but in GGUF's block types."""
    block = BLOCKS.get(dtype.lower())
    return (block.elements, block.layout.itemsize) if block else (1, ITEM_BYTES[dtype])


def write_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    metadata: Mapping[str, str] = FORMAT,
) -> tuple[bytes, dict[str, TensorEntry]]:
    """A file's first bytes, and where behind them each tensor belongs.

    Args:
        tensors: Name -> element type and shape, in the order they shall lie.
        metadata: What the file says of itself.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    places: dict[str, TensorEntry] = {}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        places[name] = TensorEntry(dtype, shape, offset)
        end = places[name].end
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    body = json.dumps(header, separators=(",", ":")).encode()
    body += b" " * (-len(body) % ALIGNMENT)
    start = 8 + len(body)
    moved = {name: replace(place, start=start + place.start) for name, place in places.items()}
    return len(body).to_bytes(8, "little") + body, moved


def read_header(file: BinaryIO, path: Path) -> dict[str, TensorEntry]:
    """Name -> place of every tensor, in the order in which they lie in the file.

    Args:
        file: Open at its first byte.
        path: The file's path, for messages.

    Raises:
        WeightsError: The file is cut short, or its header is not what the format says.
    """
    file_bytes = path.stat().st_size
    length = int.from_bytes(file.read(8), "little")
    if file_bytes < 8 or length > min(file_bytes - 8, MAX_HEADER_BYTES):
        raise WeightsError(
            f"{path} is not a whole safetensors file: its header of {length} bytes does not fit "
            f"into its {file_bytes} bytes (or passes {MAX_HEADER_BYTES}); copy the file again"
        )
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_without_twins)
        header.pop("__metadata__", None)
        places = {name: _place(place, 8 + length) for name, place in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path} has no valid safetensors header: {error}") from error
    entries = dict(sorted(places.items(), key=lambda item: (item[1].start, item[1].end)))
    _check_gapless(entries, 8 + length, file_bytes, path)
    return entries


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known = dict(pairs)
    demand(len(known) >= len(pairs), "a name comes twice", ValueError)
    return known


def _place(place: dict[str, Any], data_start: int) -> TensorEntry:
    dtype, shape, (first, end) = place["dtype"], place["shape"], place["data_offsets"]
    numbers = [*shape, first, end]
    if dtype not in ITEM_BYTES or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        raise ValueError(f"type {dtype!r}, shape {shape}, place {first}-{end} is not a tensor")
    entry = TensorEntry(dtype, tuple(shape), data_start + first)
    if entry.end != data_start + end:
        raise ValueError(f"shape {shape} of {dtype} does not fill bytes {first} to {end}")
    return entry


def _check_gapless(
    entries: Mapping[str, TensorEntry], start: int, file_bytes: int, path: Path
) -> None:
    for name, entry in entries.items():
        if entry.start != start:
            raise WeightsError(f"{path}: tensor {name!r} starts at {entry.start}, not at {start}")
        start = entry.end
    if start != file_bytes:
        raise WeightsError(
            f"{path} has {file_bytes} bytes, its header speaks of {start}; copy the file again"
        )

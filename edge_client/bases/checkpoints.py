"""Checkpoint readers for packing: at most a few rows of a tensor are in memory at a time.

Safetensors files, whole or sharded, are read in place; a pickle is loaded by torch with weights
only and memory-mapped, and mapped again now and then to release pages that were read.
"""

import math
import pickle
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from smidgen.edge_client.bases.architectures import Family
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.header import TensorEntry, WeightsError, read_header
from smidgen.edge_client.bases.layout import PackError, tensors_of
from smidgen.edge_client.bases.manifest import read_json
from smidgen.edge_client.bases.quantization import from_bfloat16
from smidgen.edge_client.errors import installing

WHOLE, INDEX, PICKLE = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
BUFFERS = (".rotary_emb.inv_freq", ".masked_bias")  # of old checkpoints, computed anew here
REMAP_BYTES = 32 << 20
ROWS = 256  # compared at once
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


class Checkpoint(Protocol):
    """Tensors by Hugging Face's names of today."""

    @property
    def names(self) -> Collection[str]: ...

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's sizes; None if there is no such tensor."""

    def rows(self, name: str, first: int, end: int) -> np.ndarray:
        """Rows `first` to before `end` as float32."""


def open_checkpoint(folder: Path, family: Family) -> Checkpoint:
    """Find the weights of a Hugging Face folder.

    Args:
        folder: The folder.
        family: The model's, which knows the names of its tensors.

    Raises:
        PackError: None there, or of a kind that is not read.
        WeightsError: A safetensors file is broken.
    """
    if (folder / WHOLE).is_file():
        return SafetensorsCheckpoint([folder / WHOLE], family)
    if (folder / INDEX).is_file():
        return SafetensorsCheckpoint(_shards(folder), family)
    if (folder / PICKLE).is_file():
        return PickledCheckpoint(folder / PICKLE, family)
    raise PackError(
        f"{folder} has no weights; {WHOLE}, {INDEX} or {PICKLE} is expected (save the model with "
        "save_pretrained)"
    )


class SafetensorsCheckpoint:
    """Tensors of safetensors files, read row by row.

    Raises:
        WeightsError: A file is broken, or a tensor comes twice.
    """

    def __init__(self, paths: list[Path], family: Family) -> None:
        self._places: dict[str, tuple[Path, TensorEntry]] = {}
        for path in paths:
            with path.open("rb") as file:
                entries = read_header(file, path)
            for name, entry in entries.items():
                if (full_name := family.full_name(name)) in self._places:
                    raise WeightsError(f"{path}: tensor {name} comes twice in this checkpoint")
                self._places[full_name] = path, entry

    @property
    def names(self) -> Collection[str]:
        return self._places

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._places[name][1].shape if name in self._places else None

    def rows(self, name: str, first: int, end: int) -> np.ndarray:
        path, entry = self._places[name]
        if entry.dtype not in _DTYPES:
            raise PackError(f"{path}: {name} is {entry.dtype}; {', '.join(_DTYPES)} are packed")
        dtype, width = np.dtype(_DTYPES[entry.dtype]), math.prod(entry.shape[1:])
        offset = entry.start + first * width * dtype.itemsize
        flat = np.fromfile(path, dtype, (end - first) * width, offset=offset)
        wide = from_bfloat16(flat) if entry.dtype == "BF16" else flat.astype(np.float32)
        return wide.reshape(end - first, *entry.shape[1:])


class PickledCheckpoint:
    """Tensors of a `pytorch_model.bin`, loaded by torch without running anything in it.

    Raises:
        PackError: No torch here, code in the pickle, or a file that torch cannot map.
    """

    def __init__(self, path: Path, family: Family) -> None:
        self._path, self._family, self._read_bytes = path, family, 0
        self._tensors = _load_pickle(path, family)

    @property
    def names(self) -> Collection[str]:
        return self._tensors

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self._tensors[name].shape) if name in self._tensors else None

    def rows(self, name: str, first: int, end: int) -> np.ndarray:
        """Rows `first` to before `end` as float32."""
        if self._read_bytes > REMAP_BYTES:
            self._tensors, self._read_bytes = {}, 0  # unmapped before it is mapped again
            self._tensors = _load_pickle(self._path, self._family)
        part = self._tensors[name][first:end]
        if not part.is_floating_point():
            raise PackError(f"{self._path}: {name} is {part.dtype}; floats are packed")
        self._read_bytes += part.numel() * part.element_size()
        rows: np.ndarray = part.float().numpy().copy()
        return rows


def _shards(folder: Path) -> list[Path]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise PackError(f"{folder / INDEX} has no weight_map; copy the checkpoint again")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise PackError(f"{folder / INDEX} speaks of {name!r}, which is not in the folder")
    return [folder / name for name in names]


def _load_pickle(path: Path, family: Family) -> dict[str, Any]:
    try:
        torch: Any = import_module("torch")  # only for this one kind of checkpoint
    except ModuleNotFoundError as error:
        raise PackError(
            f"{path} needs torch to be read: save the model as safetensors, or "
            f"{installing('torch')}"
        ) from error
    again = "save the model with save_pretrained of today, as safetensors"
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise PackError(
            f"{path} is not a pickle of tensors alone; code in it is never run; {again}"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise PackError(
            f"{path} cannot be mapped by torch (too old, or broken); {again}"
        ) from error
    if not isinstance(loaded, Mapping) or not all(torch.is_tensor(t) for t in loaded.values()):
        raise PackError(f"{path} is not a flat table of tensors; {again}")
    tensors = {family.full_name(str(name)): tensor for name, tensor in loaded.items()}
    if len(tensors) < len(loaded):
        raise WeightsError(f"{path}: a tensor comes twice, by an old name and by today's; {again}")
    return tensors


def check_layers(folder: Path, checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose layers hold other tensors than the family's operations read.

    Raises:
        PackError: Names the first that is missing, or that nothing reads.
    """
    _, *layers, _ = tensors_of(config)
    kind = str(config["model_type"])
    for number, group in enumerate(layers):
        known = {tensor.name for tensor in group}
        prefix = family_of(kind).layer.format(layer=number)
        if missing := sorted(known - set(checkpoint.names)):
            raise PackError(
                f"{folder} lacks {missing[0]}, which a {kind}'s layer {number} reads; copy the "
                "checkpoint again, or correct its config.json"
            )
        inside = {name for name in checkpoint.names if name.startswith(prefix)} - known
        if unread := sorted(name for name in inside if not name.endswith(BUFFERS)):
            raise PackError(
                f"{folder} holds {unread[0]}, which no operation of a {kind}'s layers reads: it is "
                "another model than its config.json says"
            )


def has_own_decoder(checkpoint: Checkpoint, family: Family) -> bool:
    """Whether the head's matrix lies in the file and is not the word table.

    Such a head is not tied, whatever the configuration says: transformers 5 compares both, too.
    """
    words, decoder = f"{family.words}.weight", f"{family.decoder}.weight"
    shape = checkpoint.shape(words)
    if shape is None or checkpoint.shape(decoder) is None:
        return False
    if checkpoint.shape(decoder) != shape:
        return True
    for first in range(0, shape[0], ROWS):
        end = min(first + ROWS, shape[0])
        if not np.array_equal(
            checkpoint.rows(words, first, end), checkpoint.rows(decoder, first, end)
        ):
            return True
    return False

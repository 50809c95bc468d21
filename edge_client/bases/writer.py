"""Pack writer: a few rows at a time into a folder beside the target, renamed when synced to disk.

On any error what was written is removed. Only a process killed outright leaves a folder
`NAME.partial-PID`, which is never taken for a pack: it has that name or no manifest.
"""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from smidgen.edge_client.bases.header import SCALE
from smidgen.edge_client.bases.layout import Layout, PackError, Tensor
from smidgen.edge_client.bases.manifest import (
    MANIFEST,
    WEIGHTS,
    FileFacts,
    Manifest,
    is_pack,
    partial_folder,
    read_pack,
)
from smidgen.edge_client.bases.quantization import quantize_int8, quantize_nf4, to_bfloat16
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.files import file_sha256, reserve, sync_folder, write_synced

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Blocks = Callable[[Tensor], Iterator[np.ndarray]]  # a tensor's rows in order, float32
Progress = Callable[[int, int], None]  # parameters done, parameters in all


class PackingError(Failed):
    """Packing began and could not be finished: a full disk, a file that cannot be written."""


@dataclass(frozen=True)
class Packed:
    """A pack in its place.

    Attributes:
        folder: Where it lies.
        manifest: What it is.
        parameters: Weights it stands for, biases and normalizations included.
        is_new: False if the very same pack lay there before.
    """

    folder: Path
    manifest: Manifest
    parameters: int
    is_new: bool


def quiet(_done: int, _total: int) -> None: ...


def write_pack(
    out: Path,
    draft: Manifest,
    layout: Layout,
    blocks: Blocks,
    files: Mapping[str, bytes],
    progress: Progress,
) -> Packed:
    """Write a pack into its place.

    Args:
        out: The pack's folder; it may exist only as the very same pack.
        draft: The manifest but for its files.
        layout: Where every tensor goes.
        blocks: Gives a tensor's rows.
        files: Every other file.
        progress: Called after each block.

    Raises:
        PackError: `out` is taken, or a weight is not finite.
        PackingError: The disk is full or cannot be written.
    """
    _refuse_taken(out, draft)
    partial = partial_folder(out, os.getpid())
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a process that had this number before
        partial.mkdir(parents=True)
        _write_weights(partial / WEIGHTS, layout, draft.bits, blocks, progress)
        for name, body in files.items():
            write_synced(partial / name, body)
        manifest = replace(
            draft, files={name: _facts(partial / name) for name in (WEIGHTS, *files)}
        )
        document = json.dumps(asdict(manifest), indent=1, sort_keys=True, ensure_ascii=False)
        write_synced(partial / MANIFEST, f"{document}\n".encode())
        is_new = _put_in_place(partial, out, manifest)
    except OSError as error:
        raise _failure(out, partial, layout, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    parameters = sum(math.prod(tensor.shape) for tensor in layout.tensors)
    return Packed(out, manifest, parameters, is_new)


def _failure(out: Path, partial: Path, layout: Layout, error: OSError) -> PackingError:
    if error.errno in FULL:
        what = f"{error.strerror}; {layout.file_bytes} bytes are needed. Free space"
    else:
        what = f"{error}. Look after that"
    return PackingError(
        f"--out {out} could not be written: {what} or choose another folder; the half-written "
        f"{partial} is removed"
    )


def _refuse_taken(out: Path, draft: Manifest) -> None:
    """Say before hours of work that its end would be refused."""
    if not out.exists():
        return
    if not is_pack(out):
        raise PackError(f"--out {out} exists and is not a pack; choose another folder or delete it")
    try:
        present = read_pack(out)
    except ValueError as error:
        raise PackError(f"--out {out} is a broken pack, delete it first: {error}") from error
    if replace(present, files={}) != draft:
        raise _taken(out, present)


def _taken(out: Path, present: Manifest) -> PackError:
    return PackError(
        f"--out {out} is another pack ({present.name}, {present.bits} bits, "
        f"{present.pack_id[:12]}); choose another folder or delete it"
    )


def _put_in_place(partial: Path, out: Path, manifest: Manifest) -> bool:
    """Rename a whole pack into its place; False if it is there already."""
    place = Path(os.path.realpath(out))  # a link's end, which need not be there
    if place.exists():
        present = read_pack(place)
        if present.pack_id != manifest.pack_id:
            raise _taken(out, present)
        return False
    sync_folder(partial)
    partial.rename(place)
    sync_folder(place.parent)
    return True


def _write_weights(
    path: Path, layout: Layout, bits: int, blocks: Blocks, progress: Progress
) -> None:
    total, done = sum(math.prod(tensor.shape) for tensor in layout.tensors), 0
    with path.open("wb") as file:
        reserve(file.fileno(), layout.file_bytes)
        file.write(layout.header)
        for tensor in layout.tensors:
            row = 0
            for block in blocks(tensor):
                _write_rows(file, layout, tensor, bits, row, block)
                row, done = row + len(block), done + block.size
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())


def _write_rows(
    file: BinaryIO, layout: Layout, tensor: Tensor, bits: int, first: int, block: np.ndarray
) -> None:
    if not np.isfinite(block).all():
        raise PackError(
            f"{tensor.name} holds NaN or infinity; a model that was trained is expected"
        )
    for name, body in _stored_rows(tensor, bits, block).items():
        file.seek(layout.entries[name].start + first * (body.nbytes // len(body)))
        file.write(np.ascontiguousarray(body).data)


def _stored_rows(tensor: Tensor, bits: int, block: np.ndarray) -> dict[str, np.ndarray]:
    """Rows as they are stored, by the names of the file."""
    if not tensor.is_quantized:
        return {tensor.name: block}
    if bits == 16:
        return {tensor.name: to_bfloat16(block)}
    data, scale = (quantize_nf4 if bits == 4 else quantize_int8)(block)
    return {tensor.name + SCALE: scale, tensor.name: data}


def _facts(path: Path) -> FileFacts:
    return FileFacts(path.stat().st_size, file_sha256(path))

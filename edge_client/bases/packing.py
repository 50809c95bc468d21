"""Pack creation from a Hugging Face checkpoint or from random weights, a few rows at a time.

No tensor is ever whole in memory. Equal input gives equal bytes, hence the same base id.

    pack_model("FacebookAI/roberta-large", bits=4, out=Path("roberta-large-4"))
    pack_random("roberta-large", bits=4, out=Path("random"), seed=0)

A pack is written into a folder beside the target, renamed when synced to disk. On any error what
was written is removed. Only a process killed outright leaves a folder `NAME.partial-PID`, which is
never taken for a pack: it has that name or no manifest.
"""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from smidgen.edge_client.bases.base import EMBEDDED, find_folder, read_config
from smidgen.edge_client.bases.checkpoints import (
    INDEX,
    PICKLE,
    WHOLE,
    Checkpoint,
    check_layers,
    has_own_decoder,
    open_checkpoint,
)
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.header import SCALE
from smidgen.edge_client.bases.layout import (
    Layout,
    PackError,
    Tensor,
    checked_shape,
    lay_out,
    pooler_of,
    tensors_of,
)
from smidgen.edge_client.bases.manifest import (
    MANIFEST,
    QUANTIZATIONS,
    WEIGHTS,
    Manifest,
    canonical,
    is_pack,
    partial_folder,
    read_pack,
)
from smidgen.edge_client.bases.quantization import quantize_int8, quantize_nf4, to_bfloat16
from smidgen.edge_client.bases.random_models import (
    draw_blocks,
    hub_config,  # for benchmarks
    tokenizer_files,
)
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.files import file_sha256, reserve, sync_folder, write_synced
from smidgen.edge_client.texts.tokens import TEMPLATE, configured
from smidgen.edge_client.wire.fleet import PackFile

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


def _facts(path: Path) -> PackFile:
    return PackFile(path.stat().st_size, file_sha256(path))


BLOCK_ELEMENTS = 1 << 18  # rows handled at once; 1 MiB of float32 stays in a core's cache
COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json")
HUB_FILES = (*COPIED, TEMPLATE, WHOLE, INDEX, "model-*.safetensors")


def pack_model(
    model: str, bits: int, out: Path, licence: str | None = None, progress: Progress = quiet
) -> Packed:
    """Pack a Hugging Face model.

    Args:
        model: A folder, a hub name, or `embedded`.
        bits: 4 (nf4), 8 (int8) or 16 (bfloat16).
        out: The pack's folder; it may exist only as the very same pack.
        licence: The weights' licence, for the manifest.
        progress: Called with parameters done and parameters in all.

    Raises:
        BaseError: No such model.
        PackError: Not a checkpoint that can be packed, or `out` is taken.
        ArchitectureError: A model of no family known here.
        WeightsError: A broken safetensors file.
        PackingError: The disk is full or cannot be written; nothing is left of the attempt.
    """
    folder = _model_folder(model)
    config = read_config(folder)
    shape = checked_shape(config)
    family = family_of(shape.architecture)
    checkpoint = open_checkpoint(folder, family)
    files = {name: (folder / name).read_bytes() for name in COPIED if (folder / name).is_file()}
    if (folder / TEMPLATE).is_file():  # in a pack it stands where transformers 4 had it
        files[COPIED[-1]] = json.dumps(configured(folder), indent=2).encode()
    if shape.is_tied and has_own_decoder(checkpoint, family):
        config["tie_word_embeddings"] = False
        files["config.json"] = json.dumps(config, indent=2).encode()
    is_hub_name = model != EMBEDDED and not Path(model).is_dir()
    name = model if is_hub_name or model == EMBEDDED else folder.resolve().name
    layout = lay_out(
        config,
        _checked(bits),
        has_pooler=checkpoint.shape(f"{pooler_of(shape.architecture)}.weight") is not None,
        has_head=shape.is_decoder or _has_any(checkpoint, tensors_of(config)[-1]),
    )
    draft = _draft(name, config, bits, licence, None, layout)
    names = _found_names(checkpoint, layout, folder)
    check_layers(folder, checkpoint, config)

    def blocks(tensor: Tensor) -> Iterator[np.ndarray]:
        step = block_rows(tensor)
        for first in range(0, tensor.shape[0], step):
            end = min(first + step, tensor.shape[0])
            yield checkpoint.rows(names[tensor.name], first, end)

    return write_pack(out, draft, layout, blocks, files, progress)


def pack_random(
    name: str, bits: int, out: Path, seed: int = 0, progress: Progress = quiet
) -> Packed:
    """Pack a randomly initialised model of a real shape; see `pack_model`.

    Args:
        name: One of `random_models.CONFIGS`.
        bits: 4, 8 or 16.
        out: The pack's folder.
        seed: Root seed of the weights.
        progress: Called with parameters done and parameters in all.
    """
    config = hub_config(name)
    layout = lay_out(config, _checked(bits))
    draft = _draft(name, config, bits, None, seed, layout)
    files = {"config.json": json.dumps(config, indent=2).encode(), **tokenizer_files(config)}

    def blocks(tensor: Tensor) -> Iterator[np.ndarray]:
        return draw_blocks(tensor, seed, block_rows(tensor))

    return write_pack(out, draft, layout, blocks, files, progress)


def block_rows(tensor: Tensor) -> int:
    """Rows of a tensor that are handled at once."""
    return max(1, BLOCK_ELEMENTS // math.prod(tensor.shape[1:]))


def _model_folder(model: str) -> Path:
    folder = find_folder(model, HUB_FILES)
    if is_pack(folder):
        raise PackError(f"{model} is a pack already; give the model it was made from")
    if not (Path(model).is_dir() or model == EMBEDDED or any(folder.glob("*.safetensors"))):
        folder = find_folder(model, (*COPIED, PICKLE))
    if not (folder / "tokenizer.json").is_file():
        raise PackError(
            f"{model} lacks tokenizer.json; save its fast tokenizer beside it with save_pretrained"
        )
    return folder


def _draft(
    name: str,
    config: dict[str, Any],
    bits: int,
    licence: str | None,
    seed: int | None,
    layout: Layout,
) -> Manifest:
    """The manifest but for its files."""
    architecture, quantization = str(config["model_type"]), QUANTIZATIONS[bits]
    draft = Manifest(name, licence, architecture, config, quantization, seed, layout.layers, {})
    try:
        canonical(asdict(draft))
    except ValueError as error:
        raise PackError(
            f"{name!r}: its name, licence or config.json has no canonical JSON: {error}"
        ) from error
    return draft


def _checked(bits: int) -> int:
    if bits not in QUANTIZATIONS:
        raise PackError(f"--bits {bits} is not one of {', '.join(map(str, QUANTIZATIONS))}")
    return bits


def _has_any(checkpoint: Checkpoint, tensors: Iterable[Tensor]) -> bool:
    names = (name for tensor in tensors for name in (tensor.name, *tensor.aliases))
    return any(checkpoint.shape(name) is not None for name in names)


def _found_names(checkpoint: Checkpoint, layout: Layout, folder: Path) -> dict[str, str]:
    """Pack's name -> checkpoint's name of every tensor, shapes compared."""
    names: dict[str, str] = {}
    missing: list[str] = []
    for tensor in layout.tensors:
        known = [n for n in (*tensor.aliases, tensor.name) if checkpoint.shape(n) is not None]
        if not known:
            missing.append(tensor.name)
        elif (found := checkpoint.shape(known[0])) != tensor.shape:
            raise PackError(
                f"{folder}: {known[0]} has shape {found}, its config.json says {tensor.shape}"
            )
        else:
            names[tensor.name] = known[0]
    if missing == [layout.tensors[-1].name] and layout.tensors[-1].is_quantized:
        raise PackError(
            f"{folder} lacks {missing[0]}, though its config.json says tie_word_embeddings false; "
            "correct that to true if the head shares the word table"
        )
    if missing:
        more = f" and {len(missing) - 1} more tensors" if missing[1:] else ""
        raise PackError(
            f"{folder} lacks {missing[0]}{more}; a checkpoint with its language-model head is "
            "expected (AutoModelForMaskedLM or AutoModelForCausalLM, save_pretrained)"
        )
    return names

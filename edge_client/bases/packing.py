"""Pack creation from a Hugging Face checkpoint or from random weights, a few rows at a time.

No tensor is ever whole in memory. Equal input gives equal bytes, hence the same base id.

    pack_model("FacebookAI/roberta-large", bits=4, out=Path("roberta-large-4"))
    pack_random("roberta-large", bits=4, out=Path("random"), seed=0)
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from smidgen.edge_client.bases.layout import (
    Layout,
    PackError,
    Tensor,
    checked_shape,
    lay_out,
    pooler_of,
    tensors_of,
)
from smidgen.edge_client.bases.manifest import QUANTIZATIONS, Manifest, canonical, is_pack
from smidgen.edge_client.bases.random_models import (
    draw_blocks,
    hub_config,  # for benchmarks
    tokenizer_files,
)
from smidgen.edge_client.bases.writer import Packed, Progress, quiet, write_pack
from smidgen.edge_client.texts.tokens import TEMPLATE, configured

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

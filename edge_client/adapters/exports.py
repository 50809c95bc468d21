"""Adapters for other programs: merged into their base as a Hugging Face folder, or as a GGUF file.

The folder is one that transformers loads alone. A matrix W that carries LoRA is written as W +
alpha / r B A, a trained bias in the place of the base's, all else byte for byte: a few rows at a
time, so that no tensor is ever whole in memory. What is written has the base's own type; a pack's
quantized matrices are dequantized, to bfloat16. Each sum is computed in float32 and rounded to that
type once.

The GGUF file holds the LoRA alone; llama.cpp loads it beside the base's own.

    llama-cli -m model.gguf --lora adapter.gguf

What llama.cpp reads: `adapter.lora.alpha`, above 0, over the rank of the tensors is the scale; of
an architecture whose rotary angles turn neighbours the rows of q's and k's B are permuted as the
base's are (docs/gguf.md of the ggml repository, `convert_lora_to_gguf.py` of llama.cpp).
"""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from smidgen.edge_client.adapters.spec import (
    LORA_ALPHA,
    PREFIX,
    AdapterError,
    AdapterSpec,
    lora_modules,
)
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.base import HUB_FILES, Base
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.gguf.header import STRING
from smidgen.edge_client.bases.gguf.model import (
    ARCHITECTURES,
    INTERLEAVED,
    linears_of,
    rotary_order,
)
from smidgen.edge_client.bases.header import write_header
from smidgen.edge_client.bases.manifest import read_json
from smidgen.edge_client.bases.quantization import to_bfloat16
from smidgen.edge_client.bases.weights import FLOATS, Weights
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState

MERGED = "merged"  # the folder, and what `--with-base` calls it
BLOCK_ELEMENTS = 1 << 18  # handled at once


def check_mergeable(spec: AdapterSpec, base: Base) -> None:
    """Refuse what is no change of a base's weights, and a base that has no folder of its own.

    Raises:
        AdapterError: A soft prompt, a head, a net or a ridge regression; a GGUF file.
    """
    parts = {
        "a soft prompt": spec.prompt_tokens,
        "a head": spec.head,
        "a net": spec.net,
        "a ridge regression": spec.ridge,
    }
    named = next((part for part, is_there in parts.items() if is_there), "")
    said = f"--with-base {MERGED}: adapter {spec} has {named}, which is in no matrix of the base"
    demand(not named, f"{said}; take --with-base copied", AdapterError)
    said = f"--with-base {MERGED}: base {base.name} is a GGUF file, which is served beside "
    said += "adapter.gguf; a pack, or the Hugging Face folder of the same model, is merged"
    demand(not base.is_gguf, said, AdapterError)


def write_merged(folder: Path, base: Base, spec: AdapterSpec, state: AdapterState) -> None:
    """Write a base's folder with an adapter in its weights.

    Args:
        folder: Where to; it is made.
        base: A pack or a Hugging Face folder.
        spec: LoRA or `bias`, see `check_mergeable`.
        state: The adapter, PEFT's names.

    Raises:
        Failed: A sum that its type does not hold.
        OSError: It cannot be written.
    """
    folder.mkdir()
    changes = _changes(base, spec, state)
    with base.open_weights() as weights, (folder / "model.safetensors").open("wb") as file:
        # Old checkpoints hold position ids, which transformers counts by itself.
        types = {n: _type(weights, n) for n in weights.names if not n.endswith(".position_ids")}
        ordered = sorted(types, key=lambda name: types[name] != "F32")  # so that these are aligned
        header, _ = write_header({name: (types[name], weights.shape(name)) for name in ordered})
        file.write(header)
        for name in ordered:
            for rows in _rows(weights, name, types[name], changes.get(name)):
                file.write(np.ascontiguousarray(rows).data)
                weights.release(ordered)  # the kernel maps up to a megabyte around each vector
    for name in HUB_FILES:
        if (base.folder / name).is_file() and not (folder / name).exists():
            shutil.copyfile(base.folder / name, folder / name)
    if base.bits < 16:
        config = read_json(folder / "config.json") | {"dtype": "bfloat16"}
        config.pop("torch_dtype", None)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


Change = tuple[np.ndarray, ...]  # a trained bias, or LoRA's A and its B times alpha / r


def _changes(base: Base, spec: AdapterSpec, state: AdapterState) -> dict[str, Change]:
    """What changes, by the tensor's name."""
    found: dict[str, Change] = {
        name.removeprefix(PREFIX): (one,) for name, one in state.items() if name.endswith(".bias")
    }
    for module, one in lora_modules(spec, base.shape).items():
        lora_a, lora_b = (state[f"{PREFIX}{module}{part}"] for part in (LORA_A, LORA_B))
        found[f"{module}.weight"] = lora_a, lora_b * np.float32(one.scaling)
    return found


def _type(weights: Weights, name: str) -> str:
    dtype, _ = weights.raw(name)
    return dtype if dtype in FLOATS else "BF16"  # of a pack's matrix in 4 or 8 bits


def _rows(weights: Weights, name: str, dtype: str, change: Change | None) -> Iterator[np.ndarray]:
    """A tensor's rows as they are written, some at a time."""
    given, body = weights.raw(name)
    size = weights.shape(name)
    step = max(1, BLOCK_ELEMENTS // int(np.prod(size[1:], dtype=np.int64)))
    for first in range(0, size[0] if size else 0, step):
        part = slice(first, first + step)
        if change is None and given == dtype:
            yield body[part]
            continue
        if change is not None and len(change) == 1:
            rows = change[0][part]
        else:
            rows = weights.rows(name, np.arange(size[0])[part])
        if change is not None and len(change) == 2:
            rows += change[1][part] @ change[0]
        yield _rounded(name, dtype, rows)


def _rounded(name: str, dtype: str, rows: np.ndarray) -> np.ndarray:
    """Rows in a type of float; bfloat16 as its bits."""
    with np.errstate(over="ignore"):
        found = rows.astype(np.float16 if dtype == "F16" else np.float32)
    demand(
        bool(np.isfinite(found).all()),
        f"{name}, merged, is beyond {dtype}; its adapter has diverged, take another round's",
        Failed,
    )
    return to_bfloat16(found) if dtype == "BF16" else found


ADAPTER = "adapter.gguf"
VERSION, ALIGNMENT = 3, 32
FLOAT32 = 6  # a type of fields
F32 = 0  # ggml's number of it


def has_gguf_form(spec: AdapterSpec, shape: Shape) -> bool:
    """Whether llama.cpp loads such an adapter: LoRA alone, of linears that it knows."""
    more = spec.head or spec.prompt_tokens or spec.bias or spec.net or spec.ridge
    return bool(spec.rank and not more) and shape.architecture in ARCHITECTURES.values()


def write_gguf_adapter(path: Path, spec: AdapterSpec, shape: Shape, state: AdapterState) -> None:
    """Write an adapter, in float32.

    Args:
        path: Where to.
        spec: With a form that llama.cpp loads, see `has_gguf_form`.
        shape: The base's.
        state: The adapter, PEFT's names.
    """
    shorts = {t: name for name, t in linears_of(family_of(shape.architecture)).items()}
    named = {theirs: name for name, theirs in ARCHITECTURES.items()}
    tensors = dict[str, np.ndarray]()
    for module, one in lora_modules(spec, shape).items():
        rows = state[f"{PREFIX}{module}{LORA_B}"]
        if shape.architecture in INTERLEAVED and one.target in ("q", "k"):
            permuted = np.empty_like(rows)
            permuted[rotary_order(len(rows), shape.head_dim)] = rows
            rows = permuted
        # One alpha holds for all tensors: where a module's own differs, its B has the difference.
        rows = rows * np.float32(one.alpha / LORA_ALPHA)
        name = f"blk.{one.layer}.{shorts[one.target]}.weight"
        tensors[f"{name}.lora_a"] = state[f"{PREFIX}{module}{LORA_A}"]
        tensors[f"{name}.lora_b"] = rows
    fields = [
        _text_field("general.type", "adapter"),
        _text_field("general.architecture", named[shape.architecture]),
        _text_field("adapter.type", "lora"),
        _text("adapter.lora.alpha") + struct.pack("<If", FLOAT32, LORA_ALPHA),
    ]
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", VERSION, len(tensors), len(fields)))
        file.write(b"".join(fields))
        start = 0
        for name, tensor in tensors.items():
            sizes = struct.pack(f"<I{tensor.ndim}Q", tensor.ndim, *reversed(tensor.shape))
            file.write(_text(name) + sizes + struct.pack("<IQ", F32, start))
            start += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        for tensor in tensors.values():
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            file.write(np.ascontiguousarray(tensor, "<f4").tobytes())
        file.write(b"\0" * (-file.tell() % ALIGNMENT))


def _text(value: str) -> bytes:
    body = value.encode()
    return struct.pack("<Q", len(body)) + body


def _text_field(key: str, value: str) -> bytes:
    return _text(key) + struct.pack("<I", STRING) + _text(value)

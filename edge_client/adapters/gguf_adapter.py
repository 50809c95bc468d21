"""LoRA as a GGUF file, which llama.cpp loads beside the base's own.

    llama-cli -m model.gguf --lora adapter.gguf

What llama.cpp reads: `adapter.lora.alpha`, above 0, over the rank of the tensors is the scale; of
an architecture whose rotary angles turn neighbours the rows of q's and k's B are permuted as the
base's are (docs/gguf.md of the ggml repository, `convert_lora_to_gguf.py` of llama.cpp).
"""

import struct
from pathlib import Path

import numpy as np

from smidgen.edge_client.adapters.ranks import LORA_ALPHA
from smidgen.edge_client.adapters.spec import PREFIX, AdapterSpec, lora_modules
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.gguf.header import STRING
from smidgen.edge_client.bases.gguf.model import (
    ARCHITECTURES,
    INTERLEAVED,
    linears_of,
    rotary_order,
)
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState

ADAPTER = "adapter.gguf"
VERSION, ALIGNMENT = 3, 32
FLOAT32 = 6  # a type of fields
F32 = 0  # ggml's number of it


def has_gguf_form(spec: AdapterSpec, shape: Shape) -> bool:
    """Whether llama.cpp loads such an adapter: LoRA alone, of linears that it knows."""
    is_lora = bool(spec.rank) and not (spec.head or spec.prompt_tokens or spec.bias or spec.net)
    return is_lora and shape.architecture in ARCHITECTURES.values()


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

"""Small GGUF files: a writer of the format, a tiny decoder, and one of each block type."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from smidgen.edge_client.bases.gguf.blocks import BLOCKS

NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12}
NUMBERS |= {"Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "Q2_K": 10}
HIDDEN, HEADS, KV_HEADS, LAYERS, INNER = 64, 4, 2, 2, 96
WORDS = [*sorted(ByteLevel.alphabet()), "ab", "Ġa", "Ġab", "<|end|>", "<|pad|>", "<tool>"]
Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]


def string(text: str | bytes) -> bytes:
    body = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(body)) + body


def value(item: Any, number: int = 4) -> bytes:
    """A field's type and value, of counts uint32 and of lists int32, as llama.cpp wants them."""
    if isinstance(item, bytes):  # as it is
        return item
    if isinstance(item, list):
        parts = [value(one, 5) for one in item]
        return (
            struct.pack("<I", 9)
            + parts[0][:4]
            + struct.pack("<Q", len(item))
            + b"".join(part[4:] for part in parts)
        )
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    if isinstance(item, bool):
        return struct.pack("<IB", 7, item)
    return (
        struct.pack("<If", 6, item) if isinstance(item, float) else struct.pack("<Ii", number, item)
    )


def gguf(fields: Mapping[str, Any], tensors: Tensors, version: int = 3, unit: int = 32) -> bytes:
    """A file's bytes."""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(fields))
    head += b"".join(string(key) + value(item) for key, item in fields.items())
    data = b""
    for name, (dtype, shape, body) in tensors.items():
        data += b"\0" * (-len(data) % unit)
        head += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", NUMBERS[dtype], len(data))
        data += body
    return head + b"\0" * (-len(head) % unit) + data


def blocks(kind: str, rows: int, columns: int, seed: str = "") -> np.ndarray:
    """Rows of blocks with random codes and small finite scales, uint8, (rows, bytes of a row)."""
    block = BLOCKS[kind]
    size = rows * columns // block.elements * block.layout.itemsize
    body = np.frombuffer(hashlib.shake_256(f"{kind} {seed}".encode()).digest(size), np.uint8).copy()
    parts = body.view(block.layout)
    for name in {"d", "m"}.intersection(block.layout.names or ()):
        parts[name] = (parts[name].view(np.uint16) & 0xA7FF).view(np.float16)  # below 2 ** -5
    return body.reshape(rows, -1)


def fields(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """A tiny decoder's metadata; None takes a field out, `__` stands for a dot."""
    own = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    merges = ["Ġ a", "Ġa b", "a b"]
    tokenizer: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": WORDS,
        "merges": merges,
    }
    tokenizer["token_type"] = [1] * (len(WORDS) - 3) + [3, 3, 4]
    tokenizer |= {"eos_token_id": len(WORDS) - 3, "padding_token_id": len(WORDS) - 2}
    found: dict[str, Any] = {"general.architecture": architecture, "general.license": "mit"}
    found |= {f"{architecture}.{key}": item for key, item in own.items()}
    found |= {f"tokenizer.ggml.{key}": item for key, item in tokenizer.items()}
    found |= {key.replace("__", "."): item for key, item in changes.items()}
    return {key: item for key, item in found.items() if item is not None}


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentence_piece_fields(words: Sequence[str], **changes: Any) -> dict[str, Any]:
    """Metadata with SentencePiece's BPE, the first words of the highest scores.

    Args:
        words: Four of Gemma's specials or others, `BYTES` among them, then pieces.
        changes: As `fields` takes them.
    """
    bytes_ = set(BYTES)
    kinds = [6 if word in bytes_ else 1 for word in words]
    kinds[:4] = [3, 3, 3, 2]
    own: dict[str, Any] = {"model": "llama", "pre": "default", "merges": None, "tokens": [*words]}
    own |= {"scores": [-float(place) for place in range(len(words))], "token_type": kinds}
    own |= {"padding_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "unknown_token_id": 3}
    return fields(**{f"tokenizer__ggml__{key}": item for key, item in own.items()} | changes)


def tensors(
    kind: str = "q8_0", biased: bool = False, words: int = len(WORDS)
) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """A tiny decoder's tensors, its matrices in one block type or `f32`."""
    kv = HIDDEN // HEADS * KV_HEADS
    sizes: dict[str, tuple[int, ...]] = {
        "token_embd": (words, HIDDEN),
        "output_norm": (HIDDEN,),
    }
    for layer in range(LAYERS):
        inner = {"attn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (kv, HIDDEN)}
        inner |= {"attn_v": (kv, HIDDEN), "attn_output": (HIDDEN, HIDDEN), "ffn_norm": (HIDDEN,)}
        inner |= dict.fromkeys(("ffn_gate", "ffn_up"), (INNER, HIDDEN))
        sizes |= {f"blk.{layer}.{name}": size for name, size in inner.items()}
        sizes[f"blk.{layer}.ffn_down"] = (HIDDEN, INNER)
    found = {f"{name}.weight": _tensor(name, size, kind) for name, size in sizes.items()}
    if biased:
        for layer in range(LAYERS):
            for name, rows in (("q", HIDDEN), ("k", kv), ("v", kv)):
                name = f"blk.{layer}.attn_{name}.bias"
                found[name] = _tensor(name, (rows,), kind)
    return found


def _tensor(name: str, size: tuple[int, ...], kind: str) -> tuple[str, tuple[int, ...], bytes]:
    if len(size) == 2 and kind != "f32":
        return kind.upper(), size, blocks(kind, *size, name).tobytes()
    draw = np.random.Generator(np.random.PCG64(len(name) * 1000 + size[0]))
    drawn = draw.standard_normal(size, dtype=np.float32) / 8
    return "F32", size, (drawn + (len(size) == 1 and "norm" in name)).astype("<f4").tobytes()


def write_gguf(path: Path, kind: str = "q8_0", **changes: Any) -> Path:
    """A tiny decoder's file."""
    path.write_bytes(gguf(fields(**changes), tensors(kind)))
    return path


def scaled_rope(
    theta: float = 500000.0, factor: float = 32.0
) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The tensor that llama.cpp's converter makes of Llama 3's rotary scaling."""
    width = HIDDEN // HEADS
    waves = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)
    smooth = (8192 / waves - 1) / 3
    divisors = np.where(waves < 2048, 1, 1 / ((1 - smooth) / factor + smooth))
    divisors = np.where(waves > 8192, factor, divisors).astype("<f4")
    return {"rope_freqs.weight": ("F32", (width // 2,), divisors.tobytes())}

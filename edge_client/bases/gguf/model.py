"""A GGUF's metadata and tensors, as Hugging Face's config.json and names have them."""

import re
from collections.abc import Collection
from typing import Any

import numpy as np

from smidgen.edge_client.bases.architectures import ArchitectureError, Family
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.gguf.header import AGAIN, FLOATS, TOKENS, GgufFile
from smidgen.edge_client.bases.header import TensorEntry, WeightsError
from smidgen.edge_client.bases.layout import checked_shape, tensors_of

ARCHITECTURES = {  # llama.cpp's names -> transformers'
    **{name: name for name in ("llama", "qwen2", "qwen3", "smollm3", "phi3")},
    "gemma3": "gemma3_text",
}
# Whose rotary angles turn neighbours (`LLAMA_ROPE_TYPE_NORM`), for which llama.cpp's converter
# permutes the rows of q and k.
INTERLEAVED = ("llama", "smollm3")
_KEYS = {  # of config.json -> of metadata, behind the architecture's name
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
_GEMMA3_KEYS = {
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "rope_local_base_freq": "rope.freq_base_swa",
}
_PHI3_KEYS = {
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
}
# llama.cpp has a default of these.
_OPTIONAL = ("num_key_value_heads", "head_dim", "rope_theta", *_GEMMA3_KEYS, *_PHI3_KEYS)
_IDLE = ("vocab_size", "rope.dimension_count", "attention.value_length", "tensor_data_layout")
LINEARS = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o"}
LINEARS |= {f"ffn_{name}": name for name in ("gate", "up", "down")}
_FUSED = {"attn_qkv": "q", "attn_output": "o", "ffn_up": "up", "ffn_down": "down"}
_FREQUENCIES = "rope_freqs.weight"  # what each rotary frequency is divided by
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"  # likewise, of LongRoPE


def config_of(file: GgufFile) -> dict[str, Any]:
    """What a model's config.json would say, from a GGUF's metadata.

    Raises:
        ArchitectureError: An architecture, or a field or value of it, that is not known here.
    """
    architecture = file.value("general.architecture")
    if architecture not in (*ARCHITECTURES,):  # a field may be a list, too
        raise ArchitectureError(
            f"{file.path} is of architecture {str(architecture)[:40]!r}, which is not read from "
            f"GGUF here; {', '.join(ARCHITECTURES)} are (pack another from its Hugging Face folder)"
        )
    config: dict[str, Any] = {"model_type": ARCHITECTURES[architecture]}
    keys = _KEYS | {"gemma3": _GEMMA3_KEYS, "phi3": _PHI3_KEYS}.get(architecture, {})
    for key, name in keys.items():
        value = file.value(f"{architecture}.{name}")
        if value is None and key in _OPTIONAL:
            continue
        if type(value) not in (int, float) or not 0 < value < 1 << 40:
            raise ArchitectureError(
                f"{file.path} has {architecture}.{name} {str(value)[:40]!r}; one number above 0, "
                "the same for all layers, is expected"
            )
        # A float32 that was written as 1e-05 in config.json is 1e-05 again.
        config[key] = float(str(np.float32(value))) if isinstance(value, float) else value
    # What llama.cpp takes where a file is silent, whatever the family's class does.
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config.setdefault("rope_theta", 10000.0)
    if architecture == "gemma3":
        config |= _gemma3(config)
    known = [*keys.values()]
    if architecture == "phi3":  # whose windows llama.cpp does not compute
        known += ["attention.sliding_window", "rope.dimension_count"]
        config |= _phi3(file, config)
    elif file.value(f"{architecture}.rope.scaling.type") == "linear" and (
        _FREQUENCIES not in file.tensors
    ):
        known += (names := ["rope.scaling.type", "rope.scaling.factor"])
        config["rope_scaling"] = {
            "rope_type": "linear",
            "factor": file.value(f"{architecture}.{names[1]}"),
        }
    _refuse_variants(file, architecture, known, config["head_dim"])
    words = file.tensors.get("token_embd.weight")
    if words is None or len(words.shape) != 2:
        raise ArchitectureError(f"{file.path} lacks token_embd.weight, the table of its words")
    if (tokens := file.count(TOKENS)) != words.shape[0]:
        raise ArchitectureError(
            f"{file.path} has {words.shape[0]} words in token_embd.weight and {tokens} in "
            f"{TOKENS}; a file whose tokenizer is the model's is expected"
        )
    config["vocab_size"] = words.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    for key in ("bos", "eos", "padding"):
        config[f"{key[:3]}_token_id"] = file.value(f"tokenizer.ggml.{key}_token_id")
    if (scaling := _rope_scaling(file, config)) is not None:
        config["rope_scaling"] = scaling
    return config


def _gemma3(config: dict[str, Any]) -> dict[str, Any]:
    """What llama.cpp has in its code: scores' scale, and all layers global without a window."""
    width, layers = config["head_dim"], config["num_hidden_layers"]
    if layers == 62:  # layers of the 27B, whose scores alone are not scaled by the heads' width
        width = config["hidden_size"] // config["num_attention_heads"]
    found: dict[str, Any] = {"query_pre_attn_scalar": width}
    if "sliding_window" not in config:
        found["layer_types"] = ["full_attention"] * layers
    return found


def _phi3(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """The columns of a head that are turned, and LongRoPE's divisors."""
    width, name = config["head_dim"], "phi3.rope.dimension_count"
    turned = file.value(name, width)
    if type(turned) is not int or not 0 < turned <= width or turned % 2:
        raise ArchitectureError(
            f"{file.path} has {name} {str(turned)[:40]!r}; an even number up to a head's {width} "
            "columns is expected"
        )
    is_long = _SHORT in file.tensors or "attention_factor" in config
    scaling = {
        "rope_type": "longrope",
        "short_factor": _divisors(file, _SHORT, turned // 2).tolist(),
        "long_factor": _divisors(file, _LONG, turned // 2).tolist(),  # not computed here
        "attention_factor": config.pop("attention_factor", 1.0),
    }
    return {
        "partial_rotary_factor": min(1.0, (turned + 0.5) / width),  # rounded down when it is read
        "original_max_position_embeddings": config.get(
            "original_max_position_embeddings", config["max_position_embeddings"]
        ),
        "rope_scaling": scaling if is_long else None,
    }


def _refuse_variants(file: GgufFile, architecture: str, known: Collection[str], width: int) -> None:
    """Refuse fields that may change what the model computes, but for those that are known."""
    for key in file:
        name = key.removeprefix(f"{architecture}.")
        if name == key or name in known or name in _IDLE:
            continue
        value = file.value(key)
        if value in ((True,) if name == "attention.causal" else (0, "none")):
            continue
        raise ArchitectureError(
            f"{file.path} has {key[:80]!r}, {str(value)[:40]!r}, which is not supported here, "
            "since it may change what the model computes"
        )
    for name in ("rope.dimension_count", "attention.value_length"):
        value = file.value(f"{architecture}.{name}", width)
        if name not in known and (value != width or width % 2):
            raise ArchitectureError(
                f"{file.path} has {architecture}.{name} {value} and heads of {width}; only whole "
                "heads of an even width are supported here"
            )


def _divisors(file: GgufFile, name: str, numbers: int) -> np.ndarray:
    """What each rotary frequency is divided by, float64, (numbers,); 1 without such a tensor."""
    if name not in file.tensors:
        return np.ones(numbers)
    entry = file.tensors[name]
    if entry.dtype != "F32" or entry.shape != (numbers,):
        raise ArchitectureError(
            f"{file.path} has {name} of shape {entry.shape} in {entry.dtype}; {(numbers,)} in F32 "
            "is expected"
        )
    return file.floats(name).astype(np.float64)


def _rope_scaling(file: GgufFile, config: dict[str, Any]) -> dict[str, Any] | None:
    """Llama 3's scaling, recovered from the divisors that llama.cpp's converter made of it.

    They are 1 below a wavelength of original / high, the factor above original / low, and
    between the two interpolated; every model of the family has low 1, high 4, original 8192.
    """
    width, theta = config["head_dim"], config["rope_theta"]
    divisors = _divisors(file, _FREQUENCIES, width // 2)
    waves = 2 * np.pi * np.float64(theta) ** (np.arange(0, width, 2) / width)
    factor, low, high, original = float(divisors.max()), 1.0, 4.0, 8192
    if np.all(divisors == 1):
        return None
    smooth = (original / waves - low) / (high - low)
    with np.errstate(all="ignore"):
        between = 1 / ((1 - smooth) / factor + smooth)
    expected = np.where(waves < original / high, 1.0, between)
    expected = np.where(waves > original / low, factor, expected)
    if not np.allclose(divisors, expected, rtol=1e-5, atol=0):
        raise ArchitectureError(
            f"{file.path} has {_FREQUENCIES} that are not those of Llama 3's scaling; no other "
            "is supported here"
        )
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def entries_of(
    file: GgufFile, config: dict[str, Any]
) -> tuple[dict[str, TensorEntry], dict[str, np.ndarray]]:
    """Tensors by Hugging Face's names, and for those whose rows are permuted their order.

    Raises:
        ArchitectureError: See `checked_shape`.
        WeightsError: Other tensors, or of other shapes, than the family's operations read.
    """
    shape = checked_shape(config)
    family = family_of(shape.architecture)
    wanted = {tensor.name: tensor.shape for group in tensors_of(config) for tensor in group}
    entries: dict[str, TensorEntry] = {}
    orders: dict[str, np.ndarray] = {}
    is_interleaved = file.value("general.architecture") in INTERLEAVED
    for given, entry in file.tensors.items():
        if given == _FREQUENCIES or (given in (_SHORT, _LONG) and shape.rope_divisors):
            continue
        name = _full_name(family, given)
        if name not in wanted or name in entries:
            raise WeightsError(
                f"{file.path} holds {given!r}, which no operation of a {shape.architecture} reads: "
                "it is another model than its metadata says"
            )
        if entry.shape != wanted[name] or (len(entry.shape) == 1 and entry.dtype not in FLOATS):
            raise WeightsError(
                f"{file.path}: {given} has shape {entry.shape} in {entry.dtype}, its metadata says "
                f"{wanted[name]}{' in floats' if len(entry.shape) == 1 else ''}"
            )
        entries[name] = entry
        if is_interleaved and re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", given):
            orders[name] = rotary_order(entry.shape[0], shape.head_dim)
    if missing := sorted(wanted.keys() - entries.keys()):
        raise WeightsError(
            f"{file.path} lacks {missing[0]}, which a {shape.architecture} reads; {AGAIN}"
        )
    return entries, orders


def rotary_order(rows: int, head_dim: int) -> np.ndarray:
    """Which row of a GGUF each row of Hugging Face's q or k is, of an interleaved architecture.

    There the two halves of a pair that rotary positions turn are neighbours, here half a head
    apart: row (head, half, place) is the file's (head, place, half).
    """
    return np.arange(rows).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def linears_of(family: Family) -> dict[str, str]:
    """llama.cpp's short names of a layer's matrices, each with that of (the first of) its linears.

    Where queries, keys and values are one matrix, gate and up are ffn_up.
    """
    return LINEARS if len(family.fused("q")) == 1 else _FUSED


def _full_name(family: Family, given: str) -> str:
    top = {
        "token_embd.weight": f"{family.words}.weight",
        "output_norm.weight": f"{family.final_norm}.weight",
        "output.weight": f"{family.decoder}.weight",
    }
    inner = re.fullmatch(r"blk\.(0|[1-9]\d{0,3})\.(\w+)\.(weight|bias)", given)
    if inner is None:
        return top.get(given, "")
    layer, short, part = int(inner[1]), inner[2], inner[3]
    norms = {"attn_norm": "attention_norm", "ffn_norm": "output_norm"}
    norms |= {"attn_q_norm": "q_norm", "attn_k_norm": "k_norm"}
    norms |= {"post_attention_norm": "attended_norm", "post_ffw_norm": "fed_norm"}
    if (norm := family.norms(layer).get(norms.get(short, ""))) is not None:
        return f"{norm}.{part}"
    target = linears_of(family).get(short, "")
    return f"{family.linear(layer, target)}.{part}" if target in family.linears else ""

"""Random models of every family, made by transformers and saved as it saves them."""

import json
from pathlib import Path

from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.texts.tokens import Tokens

FAMILIES = (
    *("bert", "roberta", "xlm-roberta", "camembert", "albert", "distilbert", "electra", "mpnet"),
    "modernbert",
    *("llama", "qwen2", "qwen3", "gemma3_text", "smollm3", "phi3"),
)
DECODERS = ("llama", "qwen2", "qwen3", "gemma3_text", "smollm3", "phi3")
ENCODERS = tuple(name for name in FAMILIES if name not in DECODERS)
HIDDEN, LAYERS, FEED_FORWARD, HEADS = 64, 3, 128, 4


def write_family(
    name: str, tiny_base: Base, folder: Path, seed: int = 0, **changes: object
) -> Base:
    """A random model with the tiny base's tokenizer; norms and biases are random too.

    `changes` are keys of its config.json.
    """
    import torch
    import transformers

    sizes = _sizes(name) | {"vocab_size": Tokens(tiny_base.folder).size, "pad_token_id": 0}
    sizes |= changes
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(name, **sizes)
    kind = transformers.AutoModelForMaskedLM
    if name in DECODERS:
        kind = transformers.AutoModelForCausalLM
    model = kind.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        spread = 0.1 if parameter.dim() == 1 else 0.05
        parameter.data.add_(torch.randn_like(parameter) * spread)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((tiny_base.folder / file).read_bytes())
    json.loads((folder / "config.json").read_text())
    return open_base(str(folder))


def _sizes(name: str) -> dict[str, object]:
    if name == "distilbert":
        return {"dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": FEED_FORWARD}
    sizes: dict[str, object] = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FEED_FORWARD,
        "max_position_embeddings": 80 if name not in DECODERS else 160,
    }
    if name == "albert":
        sizes |= {"embedding_size": 64, "num_hidden_groups": 1}
    if name == "modernbert":  # two local layers and a global one, windows of eight tokens
        sizes |= {"local_attention": 8, "norm_bias": True, "attention_bias": True}
        sizes |= dict.fromkeys(("bos_token_id", "cls_token_id"), 1)
        sizes |= dict.fromkeys(("eos_token_id", "sep_token_id"), 2)
    if name == "electra":
        sizes |= {"embedding_size": 128}
    if name in DECODERS:
        sizes |= {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
    if name == "llama":  # waves longer and shorter than both bounds, and between them
        scaled = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        scaled |= {"original_max_position_embeddings": 64}
        sizes["rope_parameters"] = scaled | {"rope_type": "llama3", "rope_theta": 1e3}
    if name == "qwen3":
        sizes["head_dim"] = 32  # not hidden / heads
    if name == "gemma3_text":  # a layer without a window between two of nine tokens
        sizes |= {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 9}
        sizes["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    if name == "smollm3":  # the middle layer does not turn
        sizes["no_rope_layers"] = [1, 0, 1]
    if name == "phi3":  # 12 of a head's 16 columns turn; all layers have a window of 20
        long = {"rope_type": "longrope", "rope_theta": 1e3, "partial_rotary_factor": 0.75}
        long |= {"short_factor": [1.0, 1.1, 1.5, 2.0, 3.5, 5.0], "long_factor": [9.0] * 6}
        sizes |= {"rope_parameters": long, "sliding_window": 20}
        sizes |= {"max_position_embeddings": 640, "original_max_position_embeddings": 160}
    return sizes

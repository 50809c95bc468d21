"""A tiny decoder made on the spot: a random Llama of width 32 that reads bytes, with ChatML."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HIDDEN, LAYERS, HEADS, KV_HEADS, POSITIONS = 32, 2, 4, 2, 256
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tiny_decoder(folder: Path, template: str = TEMPLATE) -> Path:
    """Write config.json, model.safetensors, the tokenizer's files and a chat template.

    Args:
        folder: Made if it is not there.
        template: The chat template; empty: none is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    letters = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {entry: index for index, entry in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2], "unk_token": SPECIALS[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "config.json").write_text(json.dumps(_config(len(vocabulary)), indent=2))
    save_file(_weights(len(vocabulary)), folder / "model.safetensors", {"format": "pt"})
    return folder


def _config(size: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def _weights(size: int) -> dict[str, np.ndarray]:
    generator, tensors = np.random.Generator(np.random.PCG64(0)), dict[str, np.ndarray]()
    inner, keys = 2 * HIDDEN, HIDDEN // HEADS * KV_HEADS

    def matrix(name: str, rows: int, columns: int) -> None:
        tensors[f"{name}.weight"] = generator.normal(0, 0.2, (rows, columns)).astype(np.float32)

    matrix("model.embed_tokens", size, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", HIDDEN), ("k", keys), ("v", keys), ("o", HIDDEN)):
            matrix(f"{prefix}.self_attn.{name}_proj", rows, HIDDEN)
        matrix(f"{prefix}.mlp.gate_proj", inner, HIDDEN)
        matrix(f"{prefix}.mlp.up_proj", inner, HIDDEN)
        matrix(f"{prefix}.mlp.down_proj", HIDDEN, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    return tensors

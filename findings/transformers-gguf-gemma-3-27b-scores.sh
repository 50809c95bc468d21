#!/usr/bin/env bash
# transformers 5.23.0, `from_pretrained(..., gguf_file=...)`: the attention scores of a Gemma 3 27B
# are divided by another number than those of the model that the file was made of.
#
# Gemma divides scores by the root of `query_pre_attn_scalar`: 256 in the small models, 168 in the
# 27B (hidden size / heads). GGUF has no field for it; llama.cpp knows the 27B by its 62 layers and
# takes hidden size / heads. transformers reads heads, width and layers, and leaves 256. No error,
# no warning. A file of a model with 256 gives its logits.
#
# Seen with transformers 5.23.0, gguf 0.19.0, torch 2.13.0 (62 layers, hidden size / heads 16):
#   query_pre_attn_scalar 256 read as 256, differs: False
#   query_pre_attn_scalar 16 read as 256, differs: True
# What helps: a config of one's own, `from_pretrained(..., gguf_file=..., config=config)`.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0
cd "$place"
HF_HUB_OFFLINE=1 "$place/venv/bin/python" - <<'PYTHON' 2> log || { cat log; exit 1; }
import numpy as np
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

WIDTH, HEADS, HEAD, LAYERS, WORDS = 64, 4, 32, 62, 64
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def name_in_gguf(module):
    if module in TOP:
        return TOP[module]
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{NAMES[inner]}"


def write(model):
    writer = GGUFWriter("model.gguf", "gemma3")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1000000.0)
    writer.add_sliding_window(512)
    writer.add_vocab_size(WORDS)
    for name, tensor in model.state_dict().items():
        module, matrix = name.removesuffix(".weight"), tensor.numpy()
        if module != "lm_head":  # tied
            plus = np.float32(1) if module.endswith("norm") else 0  # as the converter adds it
            writer.add_tensor(f"{name_in_gguf(module)}.weight", np.ascontiguousarray(matrix + plus))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


ids = torch.arange(2, 60)[None]
for scalar in (256, WIDTH // HEADS):
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD,
        intermediate_size=WIDTH,
        vocab_size=WORDS,
        max_position_embeddings=512,
        sliding_window=512,
        query_pre_attn_scalar=scalar,
        initializer_range=0.3,
    )
    model = Gemma3ForCausalLM(config).eval()
    write(model)
    read = AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf").eval()
    with torch.no_grad():
        expected = model(ids).logits
        difference = (read(ids).logits - expected).abs().max().item()
    taken = read.config.query_pre_attn_scalar
    print("query_pre_attn_scalar", scalar, "read as", f"{taken}, differs: {difference > 0.1}")
    assert taken == 256, "it is read now"
    assert difference < 1e-4 if scalar == 256 else difference > 0.1, difference
read = AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf", config=config).eval()
with torch.no_grad():
    assert torch.allclose(read(ids).logits, expected, atol=1e-4), "this does not help"
PYTHON
if grep -i "scalar\|attention" log; then echo "there is a warning now"; exit 1; fi

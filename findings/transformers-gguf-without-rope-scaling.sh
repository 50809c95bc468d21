#!/usr/bin/env bash
# transformers 5.23.0, `from_pretrained(..., gguf_file=...)`: a Llama's rotary scaling is left out.
#
# llama.cpp's converter writes the scaling of Llama 3.1 to 3.3 as a tensor, rope_freqs.weight, and a
# linear one as the fields llama.rope.scaling.type and .factor. transformers reads neither (it knows
# the fields of gpt-oss alone): rope_type is "default", and the logits move with the position. No
# error, no warning. The same file without scaling gives the same logits to the last bit.
#
# Seen with transformers 5.23.0, gguf 0.19.0, torch 2.13.0 (logits of 60 words):
#   default read as default, differs: False
#   llama3 read as default, differs: True
#   linear read as default, differs: True
# What helps: a config of one's own, `from_pretrained(..., gguf_file=..., config=config)`.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0
cd "$place"
HF_HUB_OFFLINE=1 "$place/venv/bin/python" - <<'PYTHON' 2> log || { cat log; exit 1; }
import math

import numpy as np
import torch
from gguf import GGUFWriter, RopeScalingType
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

WIDTH, HEADS, WORDS, THETA = 32, 4, 64, 500000.0
HEAD = WIDTH // HEADS
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
CASES = {"default": {}, "llama3": LLAMA3, "linear": {"factor": 4.0}}
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
NAMES |= {
    f"model.layers.0.{theirs}": f"blk.0.{name}"
    for theirs, name in {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }.items()
}


def divisors():
    """What each frequency is divided by, as llama.cpp's converter computes it."""
    for pair in range(0, HEAD, 2):
        turns = 64 / (2 * math.pi * THETA ** (pair / HEAD))
        smooth = (turns - 1.0) / (4.0 - 1.0)
        yield 1.0 if turns > 4.0 else 8.0 if turns < 1.0 else 1 / ((1 - smooth) / 8.0 + smooth)


def interleaved(matrix):
    """Rows of q and k in the order that llama.cpp turns them in."""
    return matrix.reshape(HEADS, 2, HEAD // 2, WIDTH).transpose(0, 2, 1, 3).reshape(WIDTH, WIDTH)


def write(kind, model):
    writer = GGUFWriter("model.gguf", "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(THETA)
    writer.add_vocab_size(WORDS)
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(CASES[kind]["factor"])
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", np.array([*divisors()], np.float32))
    for name, tensor in model.state_dict().items():
        name, matrix = NAMES[name.removesuffix(".weight")], tensor.numpy()
        matrix = interleaved(matrix) if name.endswith(("attn_q", "attn_k")) else matrix
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(matrix))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


ids = torch.arange(60)[None]
for kind, scaling in CASES.items():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        intermediate_size=WIDTH,
        vocab_size=WORDS,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        initializer_range=0.3,
        rope_parameters={"rope_type": kind, "rope_theta": THETA, **scaling},
    )
    model = LlamaForCausalLM(config).eval()
    write(kind, model)
    read = AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf").eval()
    found = read.config.rope_parameters
    with torch.no_grad():
        difference = (model(ids).logits - read(ids).logits).abs().max().item()
        read = AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf", config=config)
        assert torch.equal(model(ids).logits, read.eval()(ids).logits), "this does not help"
    print(kind, "read as", found["rope_type"] + ", differs:", difference > 0.1)
    assert found == {"rope_type": "default", "rope_theta": THETA}, "the scaling is read now"
    assert difference == 0 if kind == "default" else difference > 0.1
PYTHON
if grep -i "rope\|scaling" log; then echo "there is a warning now"; exit 1; fi

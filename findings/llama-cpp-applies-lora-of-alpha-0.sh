#!/usr/bin/env bash
# llama.cpp (xllamacpp 2026.10.11549) takes a LoRA file whose `adapter.lora.alpha` is 0, or that has
# no such field, at scale 1: alpha is divided by the rank only where it is not 0. So an adapter that
# was switched off by alpha 0, as PEFT switches one off, is applied in full, without a message.
#
# Output seen:
#   alpha 4 of rank 4 moves the next word's log-probabilities by 3.3793
#   alpha 0 by 3.3793
#   no alpha by 3.3793
# Written by gguf 0.19.0. What helps: an alpha above 0, or no adapter.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gguf==0.19.0 xllamacpp==2026.10.11549
cat > "$folder/write.py" <<'PYTHON'
import sys

import numpy as np
from gguf import GGUFWriter, TokenType

WIDTH, RANK, WORDS = 32, 4, 259
draw = np.random.default_rng(0)


def matrix(*shape):
    return draw.normal(0, 0.3, shape).astype(np.float32)


def model(path):
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["Ċ", "a", "aa", *(f"w{n}" for n in range(WORDS - 5)), "<end>", "<pad>"])
    writer.add_token_types([TokenType.NORMAL] * (WORDS - 2) + [TokenType.CONTROL] * 2)
    writer.add_token_merges(["a a"])
    writer.add_eos_token_id(WORDS - 2)
    writer.add_tensor("token_embd.weight", matrix(WORDS, WIDTH))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for norm in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{norm}.weight", np.ones(WIDTH, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", matrix(WIDTH, WIDTH))
    finish(writer)


def lora(path, alpha, a, b):
    writer = GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    writer.add_tensor("blk.0.attn_v.weight.lora_a", a)
    writer.add_tensor("blk.0.attn_v.weight.lora_b", b)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


folder = sys.argv[1]
model(f"{folder}/model.gguf")
a, b = matrix(RANK, WIDTH), matrix(WIDTH, RANK)
for name, alpha in (("rank", float(RANK)), ("zero", 0.0), ("none", None)):
    lora(f"{folder}/{name}.gguf", alpha, a, b)
PYTHON
cat > "$folder/ask.py" <<'PYTHON'
import json
import os
import sys

import xllamacpp as llama

folder, adapter = sys.argv[1:]
asked = llama.CommonParams()
asked.model.path, asked.n_ctx, asked.warmup = f"{folder}/model.gguf", 64, False
if adapter != "base":
    lora = llama.CommonAdapterLoraInfo()
    lora.path, lora.scale = f"{folder}/{adapter}.gguf", 1.0
    asked.lora_adapters = [lora]
question = {"prompt": [40, 3, 77], "n_predict": 1, "n_probs": 259, "temperature": 0}
told = llama.Server(asked).handle_completions(question)
rows = told["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
with open(f"{folder}/{adapter}.json", "w") as file:
    json.dump({one["id"]: one["logprob"] for one in rows}, file)
os._exit(0)
PYTHON
"$folder/venv/bin/python" "$folder/write.py" "$folder"
for adapter in base rank zero none; do
  "$folder/venv/bin/python" "$folder/ask.py" "$folder" "$adapter" > "$folder/log" 2>&1
done
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import sys

told = {n: json.load(open(f"{sys.argv[1]}/{n}.json")) for n in ("base", "rank", "zero", "none")}
moved = {n: max(abs(told["base"][w] - one[w]) for w in one) for n, one in told.items()}
print(f"alpha 4 of rank 4 moves the next word's log-probabilities by {moved['rank']:.4f}")
print(f"alpha 0 by {moved['zero']:.4f}")
print(f"no alpha by {moved['none']:.4f}")
assert moved["rank"] > 0.01, "the adapter does nothing"
assert told["zero"] == told["rank"] == told["none"], "alpha 0 is off, or refused, now"
PYTHON

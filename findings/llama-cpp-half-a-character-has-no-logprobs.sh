#!/usr/bin/env bash
# The server in llama.cpp (xllamacpp 2026.10.11549) answers a completion whose last token is half a
# character, such as the byte <0xC3>, without any log-probabilities: `logprobs` is null although
# `n_probs` asked for them and a token was written. Whoever compares models by the next token's
# log-probabilities loses those prompts; a token that ends a character has them.
#
# Output seen:
#   next token <0xC3>: completion_tokens 1, logprobs null
#   next token a: completion_tokens 1, logprobs of 4 tokens
# Written by gguf 0.19.0. What helps: ask for further tokens, or leave such places out and say so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gguf==0.19.0 xllamacpp==2026.10.11549
cat > "$folder/write.py" <<'PYTHON'
import sys

import numpy as np
from gguf import GGUFWriter, TokenType

WIDTH = 32
folder, chosen = sys.argv[1:]
bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
words = ["<unk>", "<s>", "</s>", *bytes_, "a", "b"]
kinds = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, *[TokenType.BYTE] * 256]
writer = GGUFWriter(f"{folder}/{words.index(chosen)}.gguf", "llama")
writer.add_context_length(64)
writer.add_embedding_length(WIDTH)
writer.add_block_count(1)
writer.add_feed_forward_length(WIDTH)
writer.add_head_count(4)
writer.add_head_count_kv(4)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_tokenizer_model("llama")
writer.add_tokenizer_pre("default")
writer.add_token_list(words)
writer.add_token_scores([0.0] * len(words))
writer.add_token_types([*kinds, TokenType.NORMAL, TokenType.NORMAL])
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)
writer.add_unk_token_id(0)
writer.add_tensor("token_embd.weight", np.ones((len(words), WIDTH), np.float32))
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
    writer.add_tensor(f"blk.0.{name}.weight", np.zeros((WIDTH, WIDTH), np.float32))
answer = np.zeros((len(words), WIDTH), np.float32)
answer[words.index(chosen)] = 0.1  # the likeliest, whatever stands before
writer.add_tensor("output.weight", answer)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
print(f"{folder}/{words.index(chosen)}.gguf")
PYTHON
cat > "$folder/ask.py" <<'PYTHON'
import os
import sys

import xllamacpp as llama

asked = llama.CommonParams()
asked.model.path, asked.n_ctx, asked.warmup, asked.verbosity = sys.argv[1], 64, False, -1
question = {"prompt": [1, 259, 260], "n_predict": 1, "n_probs": 4, "temperature": 0}
told = llama.Server(asked).handle_completions(question)
rows = told["choices"][0]["logprobs"]
count = "null" if rows is None else f"of {len(rows['content'][0]['top_logprobs'])} tokens"
print(f"completion_tokens {told['usage']['completion_tokens']}, logprobs {count}", flush=True)
os._exit(0)
PYTHON
python="$folder/venv/bin/python"
check() {
  said=$("$python" "$folder/ask.py" "$("$python" "$folder/write.py" "$folder" "$1")" 2> "$folder/log") || cat "$folder/log"
  echo "next token $1: $said"
  [ "$said" = "completion_tokens 1, logprobs $2" ]
}
check "<0xC3>" "null"
check "a" "of 4 tokens"

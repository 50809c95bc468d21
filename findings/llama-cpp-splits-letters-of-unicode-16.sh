#!/usr/bin/env bash
# llama.cpp (xllamacpp 2026.10.11549) does not know the letters that Unicode has had since version
# 16 (4,000 hieroglyphs, Garay, Todhri, ...): it splits a byte-level text before and behind each,
# where tokenizers 0.23.1, by which the model was trained, lets them stand in one word with their
# neighbours. So merges across the boundary are never made, and the ids are others.
#
# Output seen:
#   U+13000 (Unicode 5.2): tokenizers að ĵ Ģ Ģ, llama.cpp að ĵ Ģ Ģ
#   U+13460 (Unicode 16): tokenizers að ĵ ĳ ł, llama.cpp a ð ĵ ĳ ł
# Pre-tokenizer `gpt-2`, a vocabulary of the 256 bytes and one merge, written by gguf 0.19.0. What
# helps: ids from one of the two for training and serving.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gguf==0.19.0 tokenizers==0.23.1 xllamacpp==2026.10.11549
cat > "$folder/ask.py" <<'PYTHON'
import json
import os
import sys
import time
import urllib.request

import numpy as np
import xllamacpp as llama
from gguf import GGUFWriter, TokenType
from tokenizers import Tokenizer, models, pre_tokenizers

WIDTH, path, text = 32, f"{sys.argv[1]}/model.gguf", "a" + chr(int(sys.argv[2], 16))
words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "a\u00f0"]
theirs = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, [("a", "\u00f0")]))
theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
draw = np.random.default_rng(0)
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
writer.add_token_list(words)
writer.add_token_types([TokenType.NORMAL] * len(words))
writer.add_token_merges(["a \u00f0"])
writer.add_tensor("token_embd.weight", draw.normal(0, 1, (len(words), WIDTH)).astype(np.float32))
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
    matrix = draw.normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32)
    writer.add_tensor(f"blk.0.{name}.weight", matrix)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

asked = llama.CommonParams()
asked.model.path, asked.n_ctx, asked.warmup, asked.port = path, 64, False, 0
asked.verbosity = -1
server = llama.Server(asked)
body = {"content": text, "add_special": False, "parse_special": False}
head = {"content-type": "application/json"}
place = server.listening_address + "/tokenize"
asking = urllib.request.Request(place, json.dumps(body).encode(), head)
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
for _ in range(100):  # it tells its port before it listens
    try:
        ids = json.loads(ask(asking, timeout=5).read())["tokens"]
        break
    except OSError:
        time.sleep(0.2)
else:
    raise SystemExit("the server does not answer")
served = " ".join(words[one] for one in ids)
print(f"tokenizers {' '.join(theirs.encode(text).tokens)}, llama.cpp {served}", flush=True)
os._exit(0)
PYTHON
check() {
  found=$("$folder/venv/bin/python" "$folder/ask.py" "$folder" "$1" 2> "$folder/log") ||
    cat "$folder/log"
  echo "U+$1 ($2): $found"
  [ "$found" = "$3" ]
}
check 13000 "Unicode 5.2" "tokenizers að ĵ Ģ Ģ, llama.cpp að ĵ Ģ Ģ"
check 13460 "Unicode 16" "tokenizers að ĵ ĳ ł, llama.cpp a ð ĵ ĳ ł"

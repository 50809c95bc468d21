#!/usr/bin/env bash
# llama.cpp (xllamacpp 2026.10.11549) puts SentencePiece's space in front of what stands behind a
# user-defined word, as it does at a text's beginning; sentencepiece 0.2.1 itself puts one at the
# beginning alone. So a model whose vocabulary has such words (`<tool>`, line ends, runs of spaces)
# and a space in front reads texts by other ids when it is served than when it was trained.
#
# Output seen:
#   front: sentencepiece ▁a <tool> b, llama.cpp ▁a <tool> ▁b
#   bare: sentencepiece a <tool> b, llama.cpp a <tool> b
# Written by gguf 0.19.0, token by token as sentencepiece has them. What helps: ids from one of the
# two for training and serving, or a vocabulary without a space in front.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gguf==0.19.0 sentencepiece==0.2.1 xllamacpp==2026.10.11549
cat > "$folder/write.py" <<'PYTHON'
import sys

import numpy as np
import sentencepiece
from gguf import GGUFWriter, TokenType

WIDTH, TEXT = 32, "a<tool>b"
folder, front = sys.argv[1], sys.argv[2] == "front"
with open(f"{folder}/texts.txt", "w") as file:
    file.write("a b c d\nab ba cd dc\n" * 50)
sentencepiece.SentencePieceTrainer.train(
    input=f"{folder}/texts.txt",
    model_prefix=f"{folder}/pieces",
    model_type="bpe",
    vocab_size=275,
    byte_fallback=True,
    hard_vocab_limit=False,
    user_defined_symbols=["<tool>"],
    add_dummy_prefix=front,
    minloglevel=2,
)
pieces = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/pieces.model")
words = [pieces.id_to_piece(n) for n in range(pieces.get_piece_size())]
kinds = [
    TokenType.UNKNOWN
    if pieces.is_unknown(n)
    else TokenType.CONTROL
    if pieces.is_control(n)
    else TokenType.BYTE
    if pieces.is_byte(n)
    else TokenType.USER_DEFINED
    if word == "<tool>"
    else TokenType.NORMAL
    for n, word in enumerate(words)
]
draw = np.random.default_rng(0)
writer = GGUFWriter(f"{folder}/model.gguf", "llama")
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
writer.add_token_scores([pieces.get_score(n) for n in range(len(words))])
writer.add_token_types(kinds)
writer.add_bos_token_id(pieces.bos_id())
writer.add_eos_token_id(pieces.eos_id())
writer.add_unk_token_id(pieces.unk_id())
writer.add_add_space_prefix(front)
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
print(*pieces.encode(TEXT, out_type=str))
PYTHON
cat > "$folder/ask.py" <<'PYTHON'
import json
import os
import sys
import time
import urllib.request

import sentencepiece
import xllamacpp as llama

folder = sys.argv[1]
asked = llama.CommonParams()
asked.model.path, asked.n_ctx, asked.warmup, asked.port = f"{folder}/model.gguf", 64, False, 0
asked.verbosity = -1
server = llama.Server(asked)
body = {"content": "a<tool>b", "add_special": False, "parse_special": False}
head = {"content-type": "application/json"}
asking = urllib.request.Request(
    server.listening_address + "/tokenize", json.dumps(body).encode(), head
)
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
for _ in range(100):  # it tells its port before it listens
    try:
        ids = json.loads(ask(asking, timeout=5).read())["tokens"]
        break
    except OSError:
        time.sleep(0.2)
else:
    raise SystemExit("the server does not answer")
pieces = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/pieces.model")
print(*map(pieces.id_to_piece, ids), flush=True)
os._exit(0)
PYTHON
python="$folder/venv/bin/python"
check() {
  theirs=$("$python" "$folder/write.py" "$folder" "$1")
  served=$("$python" "$folder/ask.py" "$folder" 2> "$folder/log") || cat "$folder/log"
  echo "$1: sentencepiece $theirs, llama.cpp $served"
  [ "$theirs" = "$2" ] && [ "$served" = "$3" ]
}
check front "▁a <tool> b" "▁a <tool> ▁b"
check bare "a <tool> b" "a <tool> b"

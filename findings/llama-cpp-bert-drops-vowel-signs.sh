#!/usr/bin/env bash
# llama.cpp (xllamacpp 2026.10.11549), WordPiece of an uncased BERT: vowel signs that take up room
# (Unicode's category Mc: Devanagari, Bengali, Tamil, Burmese ...) are dropped with the accents.
# tokenizers' BertNormalizer, by which such models are trained, drops category Mn alone. So Hindi
# "की" and "का" ("of" before a feminine and before a masculine noun) are one word to the served
# model, and entries of its vocabulary with such a sign are never reached.
#
# Output seen:
#   की (U+0915 U+0940): tokenizers क ##ी, llama.cpp क
#   का (U+0915 U+093E): tokenizers क ##ा, llama.cpp क
#   কি (U+0995 U+09BF): tokenizers ক ##ি, llama.cpp ক
#   கா (U+0B95 U+0BBE): tokenizers க ##ா, llama.cpp க
#   कु (U+0915 U+0941): tokenizers क, llama.cpp क
# Written by gguf 0.19.0. What helps: ids from one of the two for training and serving.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q gguf==0.19.0 tokenizers==0.23.1 xllamacpp==2026.10.11549
cd "$folder"
cat > write.py <<'PYTHON'
import json

import numpy as np
from gguf import GGUFWriter, PoolingType, TokenType
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

WIDTH = 32
TEXTS = ["की", "का", "কি", "கா", "कु"]
letters = sorted({letter for text in TEXTS for letter in text})
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *[f"##{one}" for one in letters]]
tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}))
tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
with open("asked.json", "w") as file:
    ids = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS}
    json.dump({"words": words, "ids": ids}, file)

# A word's beginning is marked in the file, as llama.cpp's converter does, not what goes on.
spelled = words[:5] + [one[2:] if one.startswith("##") else f"▁{one}" for one in words[5:]]
kinds = [TokenType.CONTROL] * 5 + [TokenType.NORMAL] * (len(words) - 5)
kinds[1] = TokenType.UNKNOWN
draw = np.random.default_rng(0)
writer = GGUFWriter("model.gguf", "bert")
writer.add_context_length(64)
writer.add_embedding_length(WIDTH)
writer.add_block_count(1)
writer.add_feed_forward_length(WIDTH)
writer.add_head_count(4)
writer.add_layer_norm_eps(1e-12)
writer.add_causal_attention(False)
writer.add_pooling_type(PoolingType.MEAN)
writer.add_tokenizer_model("bert")
writer.add_tokenizer_pre("default")
writer.add_token_list(spelled)
writer.add_token_types(kinds)
writer.add_token_type_count(2)
writer.add_pad_token_id(0)
writer.add_unk_token_id(1)
writer.add_bos_token_id(2)
writer.add_sep_token_id(3)
writer.add_mask_token_id(4)
writer.add_bool("tokenizer.ggml.normalizer.lowercase", True)


def table(name, rows):
    writer.add_tensor(f"{name}.weight", draw.normal(0, 0.3, (rows, WIDTH)).astype(np.float32))


def vector(name, kind, value):
    writer.add_tensor(f"{name}.{kind}", np.full(WIDTH, value, np.float32))


for name, rows in {"token_embd": len(words), "position_embd": 64, "token_types": 2}.items():
    table(name, rows)
for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
    vector(name, "weight", 1.0)
    vector(name, "bias", 0.0)
for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
    table(f"blk.0.{name}", WIDTH)
    vector(f"blk.0.{name}", "bias", 0.0)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
PYTHON
cat > ask.py <<'PYTHON'
import json
import os
import time
import unicodedata
import urllib.request

import xllamacpp as llama

asked = llama.CommonParams()
asked.model.path, asked.n_ctx, asked.warmup, asked.port = "model.gguf", 64, False, 0
asked.verbosity, asked.embedding = -1, True
server = llama.Server(asked)
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def tokens(text):
    body = {"content": text, "add_special": False, "parse_special": False}
    asking = urllib.request.Request(
        server.listening_address + "/tokenize",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    for _ in range(100):  # it tells its port before it listens
        try:
            return json.loads(ask(asking, timeout=5).read())["tokens"]
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server does not answer")


told = json.load(open("asked.json"))
done = 0
for text, ids in told["ids"].items():
    served = tokens(text)
    points = " ".join(f"U+{ord(letter):04X}" for letter in text)
    names = [" ".join(told["words"][id_] for id_ in one) for one in (ids, served)]
    print(f"{text} ({points}): tokenizers {names[0]}, llama.cpp {names[1]}")
    done += (served == ids[:1]) and (len(ids) == 1 + (unicodedata.category(text[1]) == "Mc"))
print(f"{done} of {len(told['ids'])}", flush=True)
os._exit(done != len(told["ids"]))
PYTHON
venv/bin/python write.py
venv/bin/python ask.py 2> log || { cat log; exit 1; }

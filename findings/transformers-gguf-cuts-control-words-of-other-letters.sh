#!/usr/bin/env bash
# transformers 5.23.0, `AutoTokenizer.from_pretrained(..., gguf_file=...)`, byte-level BPE: control
# and user-defined words with a letter outside the byte alphabet, as `<｜User｜>` of DeepSeek's
# distilled Qwen models, are not kept whole. They are cut into bytes, so that the chat template's
# marks reach the model as plain text; the one that is `bos_token` is added behind the vocabulary,
# under an id that the file does not have. `<|user|>` in ASCII is read as the file says.
#
# A file's words are respelled in the byte alphabet unless they consist of it, and then neither
# kind is looked up under the respelled name.
#
# Seen with transformers 5.23.0, gguf 0.19.0, torch 2.13.0 (file -> transformers):
#   <|user|> 258 -> [258]
#   <｜User｜> 259 -> [27, 171, 121, 250, 52, 82, 68, 81, 171, 121, 250, 29]
#   <|tool|> 261 -> [261]
#   <｜tool｜> 262 -> [27, 171, 121, 250, 83, 78, 78, 75, 171, 121, 250, 29]
#   bos_token 260 -> 264, of 263 words
# What helps: the tokenizer.json of the model's own folder.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q transformers==5.23.0 gguf==0.19.0
cd "$place"
HF_HUB_OFFLINE=1 "$place/venv/bin/python" - <<'PYTHON'
from gguf import GGUFWriter, TokenType
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

plain = [*bytes_to_unicode().values(), "Ġa", "hi"]
control = ["<|user|>", "<｜User｜>", "<｜begin▁of▁sentence｜>"]
defined = ["<|tool|>", "<｜tool｜>"]
words = plain + control + defined
kinds = [TokenType.NORMAL] * len(plain) + [TokenType.CONTROL] * len(control)
kinds += [TokenType.USER_DEFINED] * len(defined)
writer = GGUFWriter("model.gguf", "qwen2")
writer.add_context_length(64)
writer.add_embedding_length(32)
writer.add_block_count(1)
writer.add_feed_forward_length(32)
writer.add_head_count(4)
writer.add_head_count_kv(4)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("deepseek-r1-qwen")
writer.add_token_list(words)
writer.add_token_types(kinds)
writer.add_token_merges(["Ġ a", "h i"])
writer.add_bos_token_id(words.index(control[-1]))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.close()
tokenizer = AutoTokenizer.from_pretrained(".", gguf_file="model.gguf")
for word in control[:2] + defined:
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    print(word, words.index(word), "->", ids)
    is_whole = ids == [words.index(word)]
    assert is_whole if word.isascii() else len(ids) > 1, "the word is kept whole now"
bos = words.index(tokenizer.bos_token)
print("bos_token", bos, "->", f"{tokenizer.bos_token_id}, of {len(words)} words")
assert tokenizer.bos_token_id >= len(words), "its id is the file's now"
PYTHON

#!/usr/bin/env bash
# transformers 5.23.0, `AutoTokenizer.from_pretrained(..., gguf_file=...)`, SentencePiece vocabulary
# ("llama"): `tokenizer.ggml.add_space_prefix` is read from the file and never used. A model that
# was trained without a space in front of its texts gets one, so that the first piece of nearly
# every text is another. No warning; decoded, the two are the same text.
#
# Seen with transformers 5.23.0, gguf 0.19.0, sentencepiece 0.2.1, torch 2.13.0:
#   with the space: sentencepiece ▁ab ▁cd, transformers ▁ab ▁cd
#   without it: sentencepiece ab ▁cd, transformers ▁ab ▁cd
# What helps: `tokenizer.backend_tokenizer.pre_tokenizer.prepend_scheme = "never"`.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q transformers==5.23.0 gguf==0.19.0 sentencepiece==0.2.1
cd "$place"
HF_HUB_OFFLINE=1 "$place/venv/bin/python" - <<'PYTHON' 2> log || { cat log; exit 1; }
import sentencepiece
from gguf import GGUFWriter, TokenType
from transformers import AutoTokenizer

TEXT = "ab cd"
with open("texts.txt", "w") as file:
    file.write("ab cd ab\ncd ab cd\nab ab\ncd cd\nxab xcd\n" * 50)


def pieces_of(front):
    sentencepiece.SentencePieceTrainer.train(
        input="texts.txt",
        model_prefix="pieces",
        model_type="bpe",
        vocab_size=275,
        byte_fallback=True,
        hard_vocab_limit=False,
        add_dummy_prefix=front,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file="pieces.model")


def kind(pieces, id_):
    if pieces.is_unknown(id_):
        return TokenType.UNKNOWN
    if pieces.is_control(id_):
        return TokenType.CONTROL
    return TokenType.BYTE if pieces.is_byte(id_) else TokenType.NORMAL


def write(pieces, front):
    ids = range(pieces.get_piece_size())
    writer = GGUFWriter("model.gguf", "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([pieces.id_to_piece(id_) for id_ in ids])
    writer.add_token_scores([pieces.get_score(id_) for id_ in ids])
    writer.add_token_types([kind(pieces, id_) for id_ in ids])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_unk_token_id(pieces.unk_id())
    writer.add_add_space_prefix(front)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


for front in (True, False):
    pieces = pieces_of(front)
    write(pieces, front)
    tokenizer = AutoTokenizer.from_pretrained(".", gguf_file="model.gguf")
    ours = pieces.encode(TEXT)
    theirs = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    name = "with the space" if front else "without it"
    told = [" ".join(map(pieces.id_to_piece, ids)) for ids in (ours, theirs)]
    print(f"{name}: sentencepiece {told[0]}, transformers {told[1]}")
    assert (ours == theirs) is front, "the field is used now"
tokenizer.backend_tokenizer.pre_tokenizer.prepend_scheme = "never"
assert tokenizer(TEXT, add_special_tokens=False)["input_ids"] == ours, "this does not help"
PYTHON
if grep -i "space\|prefix" log; then echo "there is a warning now"; exit 1; fi

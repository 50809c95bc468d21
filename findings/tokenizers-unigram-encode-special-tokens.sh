#!/usr/bin/env bash
# tokenizers 0.22.0 and 0.23.3: `encode_special_tokens = True` does not make a typed special token
# plain text where the model holds it among its own pieces. Unigram tokenizers (XLM-RoBERTa, T5,
# ALBERT) list `<s>`, `</s>` and `<mask>` there with score 0, the best there is, and find them in any
# text. So does WordPiece behind a splitting that leaves brackets on words. With byte-level BPE and
# with BertPreTokenizer the same property does what it says.
#
# Output seen:
#   0.22.0 Unigram: a <s> b -> ['▁a', '▁', '<s>', '▁', 'b']
#   0.22.0 WordPiece by spaces: a [MASK] -> ['a', '[MASK]']
#   0.22.0 byte-level BPE: a <s> b -> ['a', 'Ġ', '<', 's', '>', 'Ġ', 'b']
#   (0.23.3: the same three)
# What helps: give those pieces other names in the model (`tokenizer.model`); ids stay.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
for version in 0.22.0 0.23.3; do
  "$folder/venv/bin/pip" install --quiet "tokenizers==$version"
  "$folder/venv/bin/python" - <<'PYTHON'
import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def tokens(name, model, split, specials, text):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split
    tokenizer.add_special_tokens(specials)
    tokenizer.encode_special_tokens = True
    found = tokenizer.encode(text).tokens
    print(f"{tokenizers.__version__} {name}: {text} -> {found}")
    return found


scores = [(word, 0.0) for word in SPECIALS] + [(letter, -5.0) for letter in "▁absmk<>/"]
unigram = models.Unigram([*scores, ("▁a", -3.0)], unk_id=3)
split = pre_tokenizers.Metaspace()
assert "<s>" in tokens("Unigram", unigram, split, SPECIALS, "a <s> b")

words = {word: place for place, word in enumerate(["[UNK]", "[MASK]", "a", "[", "##M"])}
split = pre_tokenizers.WhitespaceSplit()
wordpiece = models.WordPiece(words, unk_token="[UNK]")
assert "[MASK]" in tokens("WordPiece by spaces", wordpiece, split, ["[MASK]"], "a [MASK]")

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {word: place for place, word in enumerate([*SPECIALS, *letters])}
split = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe = models.BPE(vocabulary, [])
assert "<s>" not in tokens("byte-level BPE", bpe, split, SPECIALS, "a <s> b")
PYTHON
done

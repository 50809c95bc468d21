#!/usr/bin/env bash
# transformers 5.23.0 with tokenizers 0.23.3: a folder whose class is BertTokenizer is not read as
# its tokenizer.json says. Of that file the vocabulary is taken; lower case comes from do_lower_case
# of tokenizer_config.json (true by default), [CLS] and [SEP] from the class. With the class
# PreTrainedTokenizerFast the same tokenizer.json counts as it is.
# So a program that reads tokenizer.json by the tokenizers library alone gets other ids, of which
# neither library says a word. Seen:
#   tokenizer.json               Rain
#   PreTrainedTokenizerFast      Rain
#   BertTokenizer                [CLS] rain [SEP]
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet transformers==5.23.0 tokenizers==0.23.3
cd "$place"
HF_HUB_OFFLINE=1 "$place/venv/bin/python" - <<'PYTHON'
import json
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Rain", "rain"]
cased = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
cased.normalizer = normalizers.BertNormalizer(lowercase=False)
cased.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
specials = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
specials |= {"sep_token": "[SEP]", "mask_token": "[MASK]"}
seen = {"tokenizer.json": cased.encode("Rain").tokens}
for name in ("PreTrainedTokenizerFast", "BertTokenizer"):
    folder = Path(name)
    folder.mkdir()
    cased.save(str(folder / "tokenizer.json"))
    config = specials | {"tokenizer_class": name}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    loaded = AutoTokenizer.from_pretrained(folder)
    seen[name] = loaded.convert_ids_to_tokens(loaded("Rain")["input_ids"])
for name, tokens in seen.items():
    print(f"{name:<28} {' '.join(tokens)}")
assert seen == {
    "tokenizer.json": ["Rain"],
    "PreTrainedTokenizerFast": ["Rain"],
    "BertTokenizer": ["[CLS]", "rain", "[SEP]"],
}, "transformers reads such a folder otherwise now"
PYTHON

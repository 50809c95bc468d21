#!/usr/bin/env bash
# transformers 4.57.6 and 5.23.0 read a pair of texts otherwise on ALBERT: with the same
# tokenizer.json (its template marks the second text as type 1) 4.57 gives `token_type_ids` of 0 and
# 1, 5.23 gives none, and the model takes 0 for all. A classifier of pairs that was trained with one
# is asked otherwise by the other, without a word. Any folder whose class is
# `PreTrainedTokenizerFast` is in the same place. 5.23 has them with `return_token_type_ids=True`.
#
# Output seen:
#   4.57.6 AlbertTokenizer ['input_ids', 'token_type_ids', 'attention_mask']
#   4.57.6 PreTrainedTokenizerFast ['input_ids', 'token_type_ids', 'attention_mask']
#   5.23.0 AlbertTokenizer ['input_ids', 'attention_mask']
#   5.23.0 PreTrainedTokenizerFast ['input_ids', 'attention_mask']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 4.57.6 5.23.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install --quiet "transformers==$version"
  HF_HUB_OFFLINE=1 "$folder/$version/bin/python" - "$folder" <<'PYTHON' 2>/dev/null
import json
import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

names = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
pieces = [(name, 0.0) for name in names.values()] + [(letter, -3.0) for letter in "▁ab"]
tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1))
tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]",
    pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
    special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
)
tokenizer.add_special_tokens(list(names.values()))
base = Path(sys.argv[1], f"base-{transformers.__version__}")
base.mkdir()
tokenizer.save(str(base / "tokenizer.json"))
(base / "config.json").write_text('{"model_type": "albert"}')
is_old = transformers.__version__.startswith("4.")
for kind in ("AlbertTokenizer", "PreTrainedTokenizerFast"):
    config = {f"{name}_token": word for name, word in names.items()} | {"tokenizer_class": kind}
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    found = AutoTokenizer.from_pretrained(base)("a", "b")
    print(transformers.__version__, kind, list(found))
    assert found.encodings[0].type_ids == [0, 0, 0, 0, 1, 1, 1]
    assert ("token_type_ids" in found) == is_old
PYTHON
done

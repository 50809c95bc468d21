#!/usr/bin/env bash
# doccano-transformer 1.0.2, utils.create_bio_tags (used by `to_conll2003`).
# A token that ends where a span begins, such as an opening bracket, gets the span's B- tag and the
# span's first token an I-: the entity written to CoNLL is "(Rome", the one annotated was "Rome".
#
# Seen:
#   [['(', 'B-LOC'], ['Rome', 'I-LOC'], [')', 'O']]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-deps doccano-transformer==1.0.2
cd "$folder"
cat > show.py <<'PYTHON'
from doccano_transformer.utils import create_bio_tags, get_offsets

text, tokens = "(Rome)", ["(", "Rome", ")"]
tags = create_bio_tags(tokens, get_offsets(text, tokens), [[1, 5, "LOC"]])
print([list(pair) for pair in zip(tokens, tags)])
PYTHON
seen=$("$folder/env/bin/python" show.py)
echo "$seen"
test "$seen" = "[['(', 'B-LOC'], ['Rome', 'I-LOC'], [')', 'O']]"

#!/usr/bin/env bash
# tokenizers 0.23.3 takes twice the memory to read byte-level BPE from tokenizer.json that it takes to
# read the same vocabulary and merges from files of their own (`BPE.from_file`): the JSON document
# lies beside the model that is made of it. Both end in the same state. On a small device, reading a
# vocabulary of 150,000 entries may be the peak of a whole training run.
#
# Output seen (x86-64, glibc; bytes an entry, 120,000 entries, above what the process held before):
#   tokenizer.json: 865 at the peak
#   vocab.json and merges.txt: 409 at the peak
#   same state: True
# What helps: put the model's two parts into files, read these, and set the rest from the document.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tokenizers==0.23.3
cat > "$folder/write.py" <<'PYTHON'
import json
import sys
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer, models

folder = Path(sys.argv[1])
letters = "abcdefghijklmnopqrstuvwxyz"
pairs = ["".join(each) for each in product(letters, repeat=2)]
longer = [first + second for first, second in product(pairs, pairs)][: 120_000 - 26 - 676]
words = [*letters, *pairs, *longer]
merges = [(w[0], w[1]) for w in pairs] + [(w[:2], w[2:]) for w in longer]
ids = {word: place for place, word in enumerate(words)}
Tokenizer(models.BPE(ids, merges)).save(str(folder / "tokenizer.json"))
(folder / "vocab.json").write_text(json.dumps(ids))
(folder / "merges.txt").write_text("".join(f"{first} {second}\n" for first, second in merges))
PYTHON
cat > "$folder/measure.py" <<'PYTHON'
import hashlib
import sys
from pathlib import Path

from tokenizers import Tokenizer, models

folder, way = Path(sys.argv[1]), sys.argv[2]
Tokenizer(models.BPE({"a": 0}, [])).encode("a")


def kib(name: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


before = kib("VmRSS")
if way == "json":
    read = Tokenizer.from_file(str(folder / "tokenizer.json"))
else:
    model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    read = Tokenizer(model)
peak = (kib("VmHWM") - before) * 1024 // read.get_vocab_size()
print(peak, hashlib.sha256(read.to_str().encode()).hexdigest())
PYTHON
python="$folder/venv/bin/python"
"$python" "$folder/write.py" "$folder"
read -r json state < <("$python" "$folder/measure.py" "$folder" json)
read -r files same < <("$python" "$folder/measure.py" "$folder" files)
echo "tokenizer.json: $json at the peak"
echo "vocab.json and merges.txt: $files at the peak"
test "$state" = "$same" && echo "same state: True"
test $((10 * json)) -gt $((15 * files))

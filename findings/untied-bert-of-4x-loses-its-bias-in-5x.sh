#!/usr/bin/env bash
# A BERT with tie_word_embeddings=False that transformers 4.57.1 saved loses the bias of its
# masked-LM head when transformers 5.23.0 loads it: version 4 saves the shared bias once, as
# cls.predictions.bias; version 5 computes with cls.predictions.decoder.bias, ties the two only
# where the word embeddings are tied, and begins the missing one with zeros (its load report names
# it as missing). Seen: bias[0] 3.0 with 4.57.1, 0.0 with 5.23.0. torch 2.13.0.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
pip="$place/venv/bin/pip install --quiet"
$pip torch==2.13.0 transformers==4.57.1
cd "$place"
export HF_HUB_OFFLINE=1
"$place/venv/bin/python" - <<'PYTHON'
import torch
from safetensors import safe_open
from transformers import BertConfig, BertForMaskedLM

sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 11}
model = BertForMaskedLM(BertConfig(**sizes, intermediate_size=8, tie_word_embeddings=False))
torch.nn.init.constant_(model.cls.predictions.bias, 3.0)
model.save_pretrained("model")
again = BertForMaskedLM.from_pretrained("model")
with safe_open("model/model.safetensors", "pt") as file:
    saved = [name for name in file.keys() if name.endswith("bias") and "cls.predictions" in name]
print("4.57.1 saves", *saved, "and computes with", again.get_output_embeddings().bias[0].item())
assert "cls.predictions.bias" in saved and "cls.predictions.decoder.bias" not in saved
assert again.get_output_embeddings().bias[0].item() == 3.0
PYTHON
HF_HUB_OFFLINE=0 $pip transformers==5.23.0
"$place/venv/bin/python" - <<'PYTHON'
from transformers import BertForMaskedLM

model, report = BertForMaskedLM.from_pretrained("model", output_loading_info=True)
bias = model.get_output_embeddings().bias[0].item()
print("5.23.0 computes with", bias, "and reports as missing", *report["missing_keys"])
assert bias == 0.0, "transformers 5 keeps the bias now"
PYTHON

#!/usr/bin/env bash
# A BERT with position_embedding_type "relative_key" that transformers 4.57.6 saved is opened by
# 5.23.0 as one with absolute positions: its distance_embedding tensors are left out (the load
# report names them as unexpected), no error is raised, and the logits are others. torch 2.13.0.
#
# Seen: 4.57.6 wrote relative_key
#       5.23.0 differs in the logits: True, left out: 2
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
pip="$place/venv/bin/pip install --quiet"
$pip torch==2.13.0 transformers==4.57.6
cd "$place"
"$place/venv/bin/python" - 2> /dev/null <<'PYTHON'
import torch
import transformers
from transformers import BertConfig, BertForMaskedLM

torch.manual_seed(0)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
config = BertConfig(**sizes, intermediate_size=32, position_embedding_type="relative_key")
model = BertForMaskedLM(config)
for parameter in model.parameters():
    parameter.data.add_(torch.randn_like(parameter) * 0.3)
model.save_pretrained("model")
with torch.no_grad():
    logits = BertForMaskedLM.from_pretrained("model").eval()(torch.arange(5, 17)[None]).logits
torch.save(logits, "logits.pt")
print(transformers.__version__, "wrote", config.position_embedding_type)
PYTHON
$pip transformers==5.23.0
"$place/venv/bin/python" - 2> /dev/null <<'PYTHON'
import torch
import transformers
from transformers import BertForMaskedLM

model, report = BertForMaskedLM.from_pretrained("model", output_loading_info=True)
with torch.no_grad():
    apart = (model.eval()(torch.arange(5, 17)[None]).logits - torch.load("logits.pt")).abs().max()
left_out = [name for name in report["unexpected_keys"] if "distance_embedding" in name]
print(f"{transformers.__version__} differs in the logits: {bool(apart > 0.1)}, left out: {len(left_out)}")
assert apart > 0.1 and len(left_out) == 2, "transformers 5 reads relative positions now"
PYTHON

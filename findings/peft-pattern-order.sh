#!/usr/bin/env bash
# PEFT 0.21.2: a saved LoRA with overlapping keys in `alpha_pattern` gives other logits when loaded.
#
# The first key that matches a module's name counts (`get_pattern_key`), so the order of the keys is
# part of the configuration. `save_pretrained` writes the table with sorted keys: here `query` comes
# first in memory and last in the file, and layer 0 is loaded with alpha 64 instead of 8. No warning.
#
# Seen with peft 0.21.2, transformers 5.23.0, torch 2.13.0:
#   keys in memory ['query', 'layer.0.attention.self.query']
#   keys in the file ['layer.0.attention.self.query', 'query']
#   largest difference of logits: above 1e-3
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q transformers==5.23.0 peft==0.21.2
"$place/venv/bin/python" - "$place/adapter" <<'PYTHON'
import json
import sys
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BertConfig, BertForMaskedLM

sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
sizes |= {"vocab_size": 50, "intermediate_size": 32, "initializer_range": 1.0}


def base():
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**sizes)).eval()


pattern = {"query": 8, "layer.0.attention.self.query": 64}
config = LoraConfig(r=2, target_modules=["query"], alpha_pattern=pattern)
model = get_peft_model(base(), config).eval()
torch.manual_seed(1)
for parameter in model.parameters():
    if parameter.requires_grad:
        parameter.data.normal_()
model.save_pretrained(sys.argv[1])
ids = torch.tensor([[1, 2, 3, 4]])
with warnings.catch_warnings(record=True) as said, torch.no_grad():
    warnings.simplefilter("always")
    before = model(input_ids=ids).logits
    after = PeftModel.from_pretrained(base(), sys.argv[1]).eval()(input_ids=ids).logits
saved = json.load(open(f"{sys.argv[1]}/adapter_config.json"))["alpha_pattern"]
difference = (before - after).abs().max().item()
print("keys in memory", list(pattern))
print("keys in the file", list(saved))
print("largest difference of logits:", "above 1e-3" if difference > 1e-3 else difference)
assert list(saved) == sorted(pattern), "the order is kept now"
assert difference > 1e-3, "the logits are kept now"
assert not [one for one in said if "pattern" in str(one.message)], "there is a warning now"
PYTHON

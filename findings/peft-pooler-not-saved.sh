#!/usr/bin/env bash
# PEFT 0.21.2 and transformers 5.23.0: a LoRA classifier on a masked-language-model checkpoint of
# BERT gives other logits when it is saved and loaded, if nothing sets torch's seed.
#
# The checkpoint has no pooler, so AutoModelForSequenceClassification draws one at random. PEFT saves
# the classifier for task type SEQ_CLS, but not the pooler, which lies in the base. The next
# `from_pretrained` draws another one. transformers lists the pooler as newly initialized; PEFT says
# nothing. With modules_to_save=["pooler", "classifier"] the logits are the same.
#
# Seen with peft 0.21.2, transformers 5.23.0, torch 2.13.0:
#   saved ['classifier.bias', 'classifier.weight'] largest difference of logits: above 1e-3
#   saved [... 'bert.pooler.dense.weight' ...] largest difference of logits: 0.0
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q transformers==5.23.0 peft==0.21.2
"$place/venv/bin/python" - "$place" <<'PYTHON'
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, BertConfig, BertForMaskedLM

place = sys.argv[1]
sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
sizes |= {"vocab_size": 50, "intermediate_size": 32, "initializer_range": 1.0}
BertForMaskedLM(BertConfig(**sizes)).save_pretrained(f"{place}/base")
ids = torch.tensor([[1, 2, 3, 4]])


def plain():
    return AutoModelForSequenceClassification.from_pretrained(f"{place}/base", num_labels=3)


for modules in (None, ["pooler", "classifier"]):
    folder = f"{place}/{'both' if modules else 'default'}"
    config = LoraConfig(task_type="SEQ_CLS", target_modules=["query"], modules_to_save=modules)
    model = get_peft_model(plain(), config).eval()
    model.save_pretrained(folder)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        after = PeftModel.from_pretrained(plain(), folder).eval()(input_ids=ids).logits
    names = safe_open(f"{folder}/adapter_model.safetensors", "numpy").keys()
    saved = [name.removeprefix("base_model.model.") for name in names if "lora_" not in name]
    difference = (before - after).abs().max().item()
    shown = "above 1e-3" if difference > 1e-3 else difference
    print("saved", sorted(saved), "largest difference of logits:", shown)
    assert (difference > 1e-3) == (modules is None), "this has changed"
PYTHON

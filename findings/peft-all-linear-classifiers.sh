#!/usr/bin/env bash
# PEFT 0.21.2: `target_modules="all-linear"` fails for token classifiers, and for DistilBERT's
# sequence classifier.
#
# PEFT leaves the classifier out of "all-linear" for task type SEQ_CLS alone. For TOKEN_CLS it puts
# LoRA on the classifier and then wants to save that same module as a whole. For SEQ_CLS on
# DistilBERT the module to save, `classifier`, is looked for by the end of the name, so it also
# means `pre_classifier`, which carries LoRA; the rule that keeps LoRA off saved modules compares
# whole parts of the name.
#
# Seen with peft 0.21.2, transformers 5.23.0, torch 2.13.0:
#   BertForTokenClassification: TypeError: modules_to_save cannot be applied to modules of type
#       <class 'peft.tuners.lora.layer.Linear'>
#   DistilBertForSequenceClassification: the same
#   BertForSequenceClassification: works
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q transformers==5.23.0 peft==0.21.2
"$place/venv/bin/python" - <<'PYTHON'
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
)

BERT = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
DISTIL = DistilBertConfig(vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=32)
CASES = [
    (BertForTokenClassification(BERT), "TOKEN_CLS", True),
    (DistilBertForSequenceClassification(DISTIL), "SEQ_CLS", True),
    (BertForSequenceClassification(BERT), "SEQ_CLS", False),
]
for model, task_type, fails in CASES:
    try:
        get_peft_model(model, LoraConfig(task_type=task_type, target_modules="all-linear"))
        said = "works"
    except TypeError as error:
        said = f"TypeError: {error}"
    print(f"{type(model).__name__}: {said}")
    assert said.startswith("TypeError: modules_to_save cannot" if fails else "works"), "changed"
PYTHON

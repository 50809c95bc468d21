#!/usr/bin/env bash
# PEFT 0.21.2: `add_weighted_adapter` on an adapter that began as PiSSA or OLoRA changes the base
# model's weights, and with them every adapter that is loaded, the source among them. No warning.
#
# The new adapter takes the first one's configuration, with `init_lora_weights`; putting it into the
# model runs that initialization once more, which takes another product of two matrices out of the
# base. Only then are the new matrices overwritten. A combination of one adapter at weight 1 should
# be that adapter; it is for LoRA, also with `init_lora_weights="orthogonal"`.
#
# Seen with peft 0.21.2, transformers 5.23.0, torch 2.13.0 (do the outputs differ):
#   True: base changed False, source afterwards False, combination False
#   orthogonal: base changed False, source afterwards False, combination False
#   pissa: base changed True, source afterwards True, combination True
#   olora: base changed True, source afterwards True, combination True
# What helps: `model.peft_config[name].init_lora_weights = True` before.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q transformers==5.23.0 peft==0.21.2
HF_HUB_OFFLINE=1 "$place/venv/bin/python" -W ignore - <<'PYTHON'
import warnings

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertModel

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"vocab_size": 50, "intermediate_size": 32, "initializer_range": 1.0}
IDS = torch.tensor([[1, 2, 3, 4]])


def combine(initialization, helped=False):
    """Whether the base, the source and the combination are others than the source was."""
    torch.manual_seed(0)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=["query"], init_lora_weights=initialization
    )
    model = get_peft_model(BertModel(BertConfig(**SIZES)), config, adapter_name="first").eval()
    for name, parameter in model.named_parameters():  # some training
        if "lora_" in name:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    weight = model.base_model.model.encoder.layer[0].attention.self.query.base_layer.weight
    if helped:
        model.peft_config["first"].init_lora_weights = True
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        base, source = weight.clone(), model(IDS).last_hidden_state
        model.add_weighted_adapter(["first"], [1.0], "copy", combination_type="cat")
        after = model(IDS).last_hidden_state
        model.set_adapter("copy")
        copy = model(IDS).last_hidden_state
    assert not [one for one in said if "base" in str(one.message)], "there is a warning now"
    pairs = (base, weight), (source, after), (source, copy)
    return [not torch.allclose(one, other, atol=1e-4) for one, other in pairs]


for initialization in (True, "orthogonal", "pissa", "olora"):
    changed = combine(initialization)
    told = "base changed {}, source afterwards {}, combination {}".format(*changed)
    print(f"{initialization}: {told}")
    assert changed == [initialization in ("pissa", "olora")] * 3, "it is otherwise now"
    assert not any(combine(initialization, helped=True)), "this does not help"
PYTHON

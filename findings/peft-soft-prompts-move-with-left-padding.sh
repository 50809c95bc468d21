#!/usr/bin/env bash
# PEFT 0.21.2: a decoder with a soft prompt answers otherwise in a batch that is padded on the left.
#
# The prompt is put before the padding, and positions are counted through: in a batch a short text lies
# as many positions behind the prompt as it has padding, so its logits are others than alone. The base
# itself and LoRA do not mind. Position ids that say so are left out with a warning, `generate` says
# nothing. Prefix tuning takes them. So texts of prompt tuning and p-tuning are asked one by one, or in
# batches of one length.
#
# Seen with peft 0.21.2, transformers 5.23.0, torch 2.13.0 (largest difference of the last logits):
#   LoRA 0.00, prompt tuning 2.49, p-tuning 2.19
#   with position ids: LoRA 0.00, prompt tuning 2.49, p-tuning 2.19, prefix tuning 0.00
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q transformers==5.23.0 peft==0.21.2
"$place/venv/bin/python" - <<'PYTHON'
import warnings

import torch
from peft import (
    LoraConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import LlamaConfig, LlamaForCausalLM

warnings.simplefilter("ignore")
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
short, longer, padding = torch.tensor([5, 9, 7]), torch.arange(10, 20), 7
batch = torch.stack([torch.cat([torch.zeros(padding, dtype=torch.long), short]), longer])
mask = torch.ones_like(batch)
mask[0, :padding] = 0
positions = (mask.cumsum(1) - 1).clamp(min=0)


def off_by(config, **more):
    """How far the short text's last logits in the batch are from those alone."""
    torch.manual_seed(0)
    model = get_peft_model(LlamaForCausalLM(LlamaConfig(**sizes)), config).eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    with torch.no_grad():
        alone = model(input_ids=short[None], attention_mask=torch.ones(1, 3)).logits[0, -1]
        padded = model(input_ids=batch, attention_mask=mask, **more).logits[0, -1]
    return float((alone - padded).abs().max())


kinds = {
    "LoRA": LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"),
    "prompt tuning": PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "p-tuning": PromptEncoderConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "prefix tuning": PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
}
plain = {name: off_by(config) for name, config in kinds.items() if name != "prefix tuning"}
given = {name: off_by(config, position_ids=positions) for name, config in kinds.items()}
print(", ".join(f"{name} {gap:.2f}" for name, gap in plain.items()))
print("with position ids:", ", ".join(f"{name} {gap:.2f}" for name, gap in given.items()))
assert plain["LoRA"] < 1e-4 and given["LoRA"] < 1e-4 and given["prefix tuning"] < 1e-4
for name in ("prompt tuning", "p-tuning"):
    assert plain[name] > 0.5 and given[name] > 0.5
PYTHON

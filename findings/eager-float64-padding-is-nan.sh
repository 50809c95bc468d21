#!/usr/bin/env bash
# In float64, eager attention of transformers 5.23.0 gives NaN for every token of a padded text:
# Llama and Qwen2 padded at the left, ModernBERT padded at the right by more than its local window.
# The mask's value is float64's least number, the softmax is taken in float32, where that is -inf,
# and a row that sees padding alone becomes NaN, which 0 * NaN carries to tokens that see it masked.
# sdpa in float64, and eager in float32, give numbers. So a reference in float64, as one takes to
# hold gradients against, needs sdpa or texts without padding.
#
# Seen: llama eager float64 all NaN | llama eager float32 numbers | llama sdpa float64 numbers
#       qwen2 likewise; modernbert likewise; bert eager float64 numbers
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0 transformers==5.23.0
cat > "$place/padded.py" <<'PYTHON'
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

sizes = dict(
    vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
    num_attention_heads=2, max_position_embeddings=128, pad_token_id=0,
)
local = dict(local_attention=8, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
left, right = slice(5, 12), slice(0, 10)  # where the second text's tokens are
families = {
    "llama": (AutoModelForCausalLM, dict(num_key_value_heads=2), 12, left),
    "qwen2": (AutoModelForCausalLM, dict(num_key_value_heads=2), 12, left),
    "modernbert": (AutoModelForMaskedLM, local, 64, right),
    "bert": (AutoModelForMaskedLM, {}, 64, right),
}
found = {}
for family, (auto, own, length, tokens) in families.items():
    for attention, dtype in (("eager", "float64"), ("eager", "float32"), ("sdpa", "float64")):
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **sizes, **own)
        kind = getattr(torch, dtype)
        model = auto.from_config(config, attn_implementation=attention, dtype=kind).eval()
        ids = torch.randint(3, 100, (2, length))
        mask = torch.zeros_like(ids)
        mask[0], mask[1, tokens] = 1, 1
        with torch.no_grad():
            logits = model(input_ids=ids * mask, attention_mask=mask).logits[1, tokens]
        found[family, attention, dtype] = bool(logits.isnan().all())
        print(family, attention, dtype, "all NaN" if logits.isnan().all() else "numbers")
        assert logits.isnan().all() or not logits.isnan().any()
wanted = {(family, "eager", "float64") for family in ("llama", "qwen2", "modernbert")}
assert {key for key, is_nan in found.items() if is_nan} == wanted, found
PYTHON
"$place/venv/bin/python" "$place/padded.py" 2> /dev/null

#!/usr/bin/env bash
# PEFT 0.21.2 on a base that optimum-quanto 0.2.7 has quantized and frozen: `merge_and_unload` gives
# back the base without the adapter, bit by bit, at int8 and int4, also with `safe_merge=True`, and
# without a warning. Trained and evaluated unmerged, the adapter works; merged, saved and shipped, it
# is gone.
#
# quanto's `QLinear` is an `nn.Linear`, so PEFT takes it for a plain one and adds to `weight.data`.
# That sum is a plain tensor for a moment; what is assigned does not reach the quantized weight.
#
# Seen (a layer of 128 by 128; change of its outputs, relative):
#   qint8: adapter 0.99, merged 0.00
#   qint4: adapter 0.99, merged 0.00
# What helps: merge into the base as it was, and quantize what comes out.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet \
    torch==2.13.0 peft==0.21.2 optimum-quanto==0.2.7 transformers==5.23.0
"$folder/env/bin/python" -W ignore - <<'PYTHON'
import torch
from optimum.quanto import freeze, qint4, qint8, quantize
from peft import LoraConfig, get_peft_model

for kind in (qint8, qint4):
    for is_safe in (False, True):
        torch.manual_seed(0)
        base, x = torch.nn.Sequential(torch.nn.Linear(128, 128)), torch.randn(5, 128)
        quantize(base, weights=kind)
        freeze(base)
        before = base(x).detach()
        tuned = get_peft_model(base, LoraConfig(target_modules=["0"], r=4))
        for name, tensor in tuned.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(tensor, std=0.1)
        adapted = tuned(x).detach()
        merged = tuned.merge_and_unload(safe_merge=is_safe)(x).detach()
        moved = [float((y - before).norm() / before.norm()) for y in (adapted, merged)]
        print(f"{kind.name}: adapter {moved[0]:.2f}, merged {moved[1]:.2f} (safe: {is_safe})")
        assert moved[0] > 0.1
        assert torch.equal(merged, before), "the adapter is merged now"
PYTHON

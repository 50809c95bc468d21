#!/usr/bin/env bash
# bitsandbytes 0.50.2, processors with AVX512-BF16: `state_dict` of a Linear4bit that was evaluated once
# gives scales in another order, and the layer answers wrongly from then on. No warning.
#
# A forward pass in eval mode packs the weight for these processors: scales (`absmax`) are transposed
# and rounded to bfloat16. Saving unpacks the codes, but turns the scales back only where they were
# quantized themselves (double quantization, off by default). What is saved then holds bfloat16 scales
# of other blocks, and so does the layer. With double quantization they are rounded a second time.
#
# Seen with bitsandbytes 0.50.2, torch 2.13.0 (by the two functions on any processor):
#   scales after packing and unpacking: torch.bfloat16, in the order of the transposed matrix: True
#   a layer of mean output 13.4: off by 0.20 when evaluated, by 22.6 once it was saved
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0
"$place/venv/bin/pip" install -q bitsandbytes==0.50.2
"$place/venv/bin/python" - <<'PYTHON'
import bitsandbytes as bnb
import torch
from bitsandbytes.functional import (
    _convert_weight_packed_for_cpu,
    _convert_weight_packed_for_cpu_inverse,
    has_avx512bf16,
)

OUT, IN, BLOCK = 512, 256, 64
torch.manual_seed(0)
weight = torch.randn(OUT, IN)


def layer():
    made = bnb.nn.Linear4bit(IN, OUT, bias=False, compute_dtype=torch.float32, quant_type="nf4")
    given = {"quant_type": "nf4", "compress_statistics": False, "module": made}
    made.weight = bnb.nn.Params4bit(weight, requires_grad=False, **given)
    return made.to("cpu")


one = layer()
scales, codes = one.weight.quant_state.absmax.clone(), one.weight.data.clone()
packed = _convert_weight_packed_for_cpu(one.weight.data, one.weight.quant_state)
back, state = _convert_weight_packed_for_cpu_inverse(*packed)
turned = scales.reshape(OUT, IN // BLOCK).T.to(torch.bfloat16)
is_turned = torch.equal(state.absmax.reshape(-1), turned.reshape(-1))
print(f"scales after packing and unpacking: {state.absmax.dtype}, in the order of the transposed "
      f"matrix: {is_turned}")
assert torch.equal(back, codes) and is_turned

if not has_avx512bf16():
    print("this processor packs nothing: the layer itself is not tried")
    raise SystemExit
one, x = layer(), torch.randn(4, IN)
with torch.no_grad():
    before = one.train()(x)
    evaluated = one.eval()(x)
    saved = one.state_dict()
    after = one.train()(x)
mean, rounding = float(before.abs().mean()), float((evaluated - before).abs().max())
wrong = float((after - before).abs().max())
print(f"a layer of mean output {mean:.1f}: off by {rounding:.2f} when evaluated, by {wrong:.1f} "
      "once it was saved")
assert saved["weight.absmax"].dtype == torch.bfloat16
assert rounding < 0.05 * mean and wrong > mean
PYTHON

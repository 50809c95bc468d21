#!/usr/bin/env bash
# nvflare 2.9.0 (`ModelQuantizer(quantization_type="adaquant")`, compression of updates): a tensor
# whose largest and smallest number lie 2.25e-4 or less apart comes back as NaN, every number of it,
# and with it the mean of all clients. Changes of LoRA's factors after a few steps at 1e-4 are of
# that size; larger ones come back as said.
#
# The number of levels follows from the range: `ceil(sqrt(range * 32 * ln 4 / 0.01))`, here 1; that
# takes log2(1) = 0 bits, so 2^0 - 1 = 0 levels, by which is divided. A constant tensor is looked
# after, a nearly constant one is not.
#
# Seen (512 numbers, uniform):
#   range 1e-03: 3 levels, largest error 1.7e-04
#   range 2e-04: 0 levels, NaN: 512 of 512
#   mean of both clients: NaN: 512 of 512
# What helps: no adaquant for changes of weights; float16 keeps them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet nvflare==2.9.0 torch==2.13.0
"$folder/env/bin/python" - <<'PYTHON'
import torch
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.app_opt.pt.quantization.ada_quant import AdaQuantizer

drawn = torch.rand(512, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
mean = WeightedAggregationHelper()
lost = {}
for span in (1e-3, 2e-4):
    change = ((drawn - 0.5) * span).float()
    sent, state = AdaQuantizer(compression=False).quantize(change)
    back = AdaQuantizer().dequantized(torch.as_tensor(sent), state).float()
    levels, lost[span] = state["quantization_level"], int(back.isnan().sum())
    error = (back - change).abs().max()
    said = f"NaN: {lost[span]} of 512" if lost[span] else f"largest error {error:.1e}"
    print(f"range {span:.0e}: {levels} levels, {said}")
    mean.add({"lora_B": back}, 1.0, f"client {span}", 1)
whole = int(mean.get_result()["lora_B"].isnan().sum())
print(f"mean of both clients: NaN: {whole} of 512")
assert lost == {1e-3: 0, 2e-4: 512} and whole == 512, "small changes survive now"
PYTHON

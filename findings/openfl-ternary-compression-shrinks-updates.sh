#!/usr/bin/env bash
# openfl 1.9 (`STCPipeline`, sparse ternary compression): what is kept of an update has the right
# signs at the right places and a tenth of its size, with `p_sparsity` 0.01 a hundredth. The run
# learns as if its rate were that much lower, and nothing says so.
#
# The paper's magnitude is the mean of the kept numbers (Sattler et al. 2019, arXiv:1903.02891,
# algorithm 1); `TernaryTransformer` takes the mean over all, those that were set to zero included.
#
# Seen (1,000 normal numbers):
#   p_sparsity 0.10: 100 kept, each 0.203; mean of the 100 largest 2.033: 10.0 x
#   p_sparsity 0.01: 10 kept, each 0.031; mean of the 10 largest 3.064: 100.0 x
# What helps: a server learning rate of 1 / p_sparsity.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet openfl==1.9
"$folder/env/bin/python" - <<'PYTHON'
import numpy as np
from openfl.pipelines.stc_pipeline import STCPipeline

change = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32)
for share in (0.1, 0.01):
    pipeline = STCPipeline(p_sparsity=share)
    found = pipeline.backward(*pipeline.forward(change.copy()))
    kept = found != 0.0
    told = float(np.abs(found).max())
    wanted = float(np.sort(np.abs(change), axis=None)[-kept.sum() :].mean())
    largest = f"mean of the {kept.sum()} largest {wanted:.3f}: {wanted / told:.1f} x"
    print(f"p_sparsity {share:.2f}: {kept.sum()} kept, each {told:.3f}; {largest}")
    assert kept.sum() == share * change.size
    assert (np.sign(found[kept]) == np.sign(change[kept])).all()
    assert abs(wanted / told * share - 1.0) < 1e-3, "the magnitude is another now"
PYTHON

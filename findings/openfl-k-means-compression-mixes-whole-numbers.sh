#!/usr/bin/env bash
# openfl 1.9 (`KCPipeline`, k-means compression): numbers that are whole are taken for places in the
# table of levels and become other numbers. The weights of a norm that is still at 1.0 come back as
# the next larger level; a bias of 1, 2, 3, which is too short to be quantized and should come back
# as it is, as 3, 3, 3.
#
# `backward` puts each level in the place of its number in the same array, one after the other: a
# level of 1.0 that was put for 0 is replaced once more when 1 is.
#
# Seen:
#   bias   [1. 2. 3.] -> [3. 3. 3.]
#   norm   five of 1.0 and 1.1, 1.2, 1.3 -> five of 1.1 and 1.1, 1.2, 1.3
# What helps: send what has whole numbers without compression.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet openfl==1.9
"$folder/env/bin/python" - <<'PYTHON'
import warnings

import numpy as np
from openfl.pipelines.kc_pipeline import KCPipeline

warnings.simplefilter("ignore")  # of scikit-learn, about fewer numbers than clusters


def back(numbers):
    pipeline = KCPipeline(n_clusters=4)
    return pipeline.backward(*pipeline.forward(np.array(numbers, np.float32)))


bias, norm = back([1.0, 2.0, 3.0]), back([1.0] * 5 + [1.1, 1.2, 1.3])
halves = back([0.5, 1.5, 2.5])
print("bias [1. 2. 3.] ->", bias, "  [0.5 1.5 2.5] ->", halves)
print("norm, five of 1.0 and 1.1, 1.2, 1.3 ->", norm)
assert bias.tolist() == [3.0, 3.0, 3.0], "whole numbers come back now"
assert halves.tolist() == [0.5, 1.5, 2.5]
np.testing.assert_allclose(norm, [1.1] * 6 + [1.2, 1.3])
PYTHON

#!/usr/bin/env bash
# openfl 1.9 (`GeometricMedian`): what it gives is no geometric median. Of three updates it may be
# further from all of them together than their mean is, and the more iterations it takes, the nearer
# it comes to a single client's update.
#
# Weiszfeld's iteration weighs each point by its own weight over its distance. `geometric_median`
# weighs it by the last iteration's weight over the distance, so that distances multiply up.
#
# Seen (0, 0), (4, 0), (1, 3); sum of distances:
#   mean 6.590; openfl 6.740; geometric median 6.541
#   after 200 iterations openfl is at (0, 0), the first update
# What helps: a geometric median of one's own, from scipy's or plain Weiszfeld's.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet openfl==1.9
"$folder/env/bin/python" - <<'PYTHON'
import numpy as np
from openfl.interface.aggregation_functions import GeometricMedian
from openfl.interface.aggregation_functions.geometric_median import geometric_median
from openfl.utilities import LocalTensor

updates = np.array([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]])


def distances(point):
    return float(np.linalg.norm(updates - point, axis=1).sum())


right = updates.mean(axis=0)
for _ in range(1000):
    weights = 1.0 / np.linalg.norm(updates - right, axis=1)
    right = weights @ updates / weights.sum()
sent = [LocalTensor(f"client {n}", one, 1 / 3) for n, one in enumerate(updates)]
found = GeometricMedian().call(sent)
late = geometric_median(updates, [1 / 3] * 3, maxiter=200, ftol=0.0)
mean, told, least = map(distances, (updates.mean(axis=0), found, right))
print(f"mean {mean:.3f}; openfl {told:.3f}; geometric median {least:.3f}")
print("after 200 iterations:", np.round(late, 3))
assert least < mean < told, "it is nearer than the mean now"
assert np.linalg.norm(updates - late, axis=1).min() < 1e-3
PYTHON

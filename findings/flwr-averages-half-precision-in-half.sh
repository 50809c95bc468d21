#!/usr/bin/env bash
# flwr 1.42.0: FedAvg averages float16 arrays in float16, and the mean of many equal models is another.
#
# Each reply's arrays are multiplied by its share and added up in their own type. With a hundred
# clients that all send 1.0 the mean is 0.988; with 5,000 it is 0.5, since what is added is below half
# of the last place. Adapters that are sent in half precision shrink so in each round, without a word.
# float32 loses 6e-5 at 5,000.
#
# Seen with flwr 1.42.0, numpy 2.4.6:
#   10 clients: float16 1.0000, float32 1.0000
#   100 clients: float16 0.9883, float32 1.0000
#   5000 clients: float16 0.5000, float32 0.9999
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q flwr==1.42.0 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords


def mean_of_ones(clients, kind):
    reply = RecordDict(
        {
            "arrays": ArrayRecord({"lora_B": Array(np.ones(2, kind))}),
            "metrics": MetricRecord({"num-examples": 10}),
        }
    )
    return float(aggregate_arrayrecords([reply] * clients, "num-examples")["lora_B"].numpy()[0])


found = {}
for clients in (10, 100, 5000):
    half, single = mean_of_ones(clients, "float16"), mean_of_ones(clients, "float32")
    print(f"{clients} clients: float16 {half:.4f}, float32 {single:.4f}")
    found[clients] = half
assert abs(found[100] - 0.9883) < 1e-3 and found[5000] == 0.5
PYTHON

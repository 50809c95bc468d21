#!/usr/bin/env bash
# flwr 1.42.0: FedAdam and QFedAvg give a float64 model for float32 ones; FedYogi and FedAdagrad do not.
#
# FedAdam's corrected rate is a NumPy scalar, which has widened arrays since NumPy 2; QFedAvg divides
# by one. The arrays that a strategy returns are those that clients are sent in the next round, so from
# round 2 on each download has twice the bytes, and clients that save what they get save float64.
#
# Seen with flwr 1.42.0, numpy 2.4.6:
#   FedAdam float64, FedYogi float32, FedAdagrad float32, QFedAvg float64, FedAvg float32
#   FedAdam: 4000 bytes up, 8000 down
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q flwr==1.42.0 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON' 2>&1 | tee "$place/said"
import logging
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy

logging.getLogger("flwr").setLevel(logging.ERROR)


def reply(value):
    metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5})
    arrays = ArrayRecord({"w": Array(np.full(1000, value, np.float32))})
    return SimpleNamespace(
        content=RecordDict({"arrays": arrays, "metrics": metrics}),
        metadata=SimpleNamespace(src_node_id=1),
        has_error=lambda: False,
        has_content=lambda: True,
    )


def after(name, **settings):
    """The model after one round of two clients, as the strategy hands it on."""
    chosen = getattr(strategy, name)(**settings)
    now = {"w": np.zeros(1000, np.float32)}
    records = ArrayRecord({key: Array(value) for key, value in now.items()})
    chosen.current_arrays = records if name == "QFedAvg" else now
    arrays, _ = chosen.aggregate_train(1, [reply(1.0), reply(2.0)])
    return arrays["w"].numpy()


names = {"FedAdam": {}, "FedYogi": {}, "FedAdagrad": {}, "QFedAvg": {"client_learning_rate": 0.1}}
kinds = {name: str(after(name, **more).dtype) for name, more in (names | {"FedAvg": {}}).items()}
print(", ".join(f"{name} {kind}" for name, kind in kinds.items()))
up = ArrayRecord({"w": Array(np.zeros(1000, np.float32))})["w"].numpy().nbytes
print(f"FedAdam: {up} bytes up, {after('FedAdam').nbytes} down")
PYTHON
grep -q '^FedAdam float64, FedYogi float32, FedAdagrad float32, QFedAvg float64, FedAvg float32$' "$place/said"
grep -q '^FedAdam: 4000 bytes up, 8000 down$' "$place/said"

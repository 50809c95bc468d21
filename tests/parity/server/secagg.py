"""flwr's primitives of secure aggregation, in flwr's own environment.

Usage: python secagg.py IN.npz OUT.npz
"""

import sys

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.quantization import dequantize, quantize

given = np.load(sys.argv[1])
reach, target = float(given["reach"]), int(given["target"])
means = []
for deltas in given["deltas"]:  # (devices, numbers) of a round
    whole = sum(quantize([delta], reach, target)[0].astype(np.int64) for delta in deltas)
    [mean] = dequantize([whole / len(deltas)], reach, target)
    means.append(mean)
secret = given["secret"].tobytes()
shares = create_shares(secret, int(given["threshold"]), int(given["holders"]))
recovered = combine_shares(shares[: int(given["threshold"])])
np.savez(
    sys.argv[2],
    means=np.array(means),
    is_recovered=np.array(recovered == secret),
    share_bytes=np.array(len(shares[0])),
)

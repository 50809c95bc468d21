"""What a self-test gives, and how far that is from what is stored.

Losses, and the length of each gradient's running mean after every step: a processor, a library or a
compiler that computes something else shows in them at once.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

import numpy as np

LOSS = "loss"
TOLERANCE = 1e-5  # of a loss, and of a step's longest gradient

Numbers = Mapping[str, Sequence[float]]  # `loss`, and each tensor's name: one number per step


def stored() -> Numbers:
    """What the machine that we trust computed."""
    text = (files("edge_client") / "doctor" / "self_test.json").read_text()
    return dict(json.loads(text))


def difference(found: Numbers, expected: Numbers) -> float:
    """The largest difference: of losses as they are, of gradients over the step's longest.

    Infinite where something is missing or is not a number.
    """
    if found.keys() != expected.keys():
        return float("inf")
    if any(len(found[name]) != len(expected[name]) for name in expected):
        return float("inf")
    rows = [np.array([one[name] for name in sorted(expected)]) for one in (found, expected)]
    if not np.isfinite(rows[0]).all():
        return float("inf")
    is_loss = np.array([name == LOSS for name in sorted(expected)])
    apart = abs(rows[0] - rows[1])
    longest = rows[1][~is_loss].max(axis=0)
    return float(max(apart[is_loss].max(), (apart[~is_loss] / longest).max()))

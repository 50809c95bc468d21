"""Draws in which some devices have better odds than others, within a bound that no claim moves.

Every policy but `random` gives each device a weight from 1 to `MOST`, made of what devices say and
do, and draws by it. So whoever lies wins odds of at most `MOST` to 1 against a device that says
nothing; nobody is in for certain, and nobody is out.

    drawn_by({"a": 8.0, "b": 1.0, "c": 1.0}, 2, secret, "cohort", 1, 1)
"""

import math
from collections.abc import Mapping
from statistics import median

from edge_client.wire.seeds import derive_seed

MOST = 8.0
NOT_DRAWN = "not drawn"


def drawn_by(
    weights: Mapping[str, float], size: int, secret: str, *purpose: str | int
) -> tuple[str, ...]:
    """Draw without replacement, each next one with odds by weight.

    Efraimidis and Spirakis 2006 (Information Processing Letters 97), with a hash in the place of a
    generator. Equal weights give exactly what `selection.drawn` gives, and the order of devices
    does not matter.

    Args:
        weights: Devices and their weights, which are held to 1 to `MOST`.
        size: How many are drawn.
        secret: The run's.
        purpose: What for.

    Returns:
        The drawn ids in sorted order.
    """

    def key(name: str) -> tuple[float, int, str]:
        number = derive_seed(secret, *purpose, name)
        return -math.log1p(-number / 2.0**63) / within(weights[name]), number, name

    return tuple(sorted(sorted(weights, key=key)[:size]))


def within(weight: float) -> float:
    """A weight held to 1 to `MOST`; what is not a number counts least."""
    return min(max(weight, 1.0), MOST) if weight == weight else 1.0


def beside_median(values: Mapping[str, float]) -> dict[str, float]:
    """Weights of figures: 2 for the median's, and in proportion within 1 to `MOST`."""
    middle = median(values.values()) if values else 0.0
    if not 0.0 < middle < math.inf:
        return {name: 2.0 if value > 0.0 else 1.0 for name, value in values.items()}
    return {name: within(2.0 * (value / middle)) for name, value in values.items()}

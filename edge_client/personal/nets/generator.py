"""Which ranks a device needs, told from its texts: FedP2EFT's strategy generator.

A net of one hidden layer reads the means and deviations of what the base's layers get, and gives a
factor for every rank of every module of a bank (Lee et al. 2026, arXiv:2502.04387):

    features -> linear (twice as many) -> PReLU -> linear -> lambda

Its numbers are an adapter's (`edge_client.adapters.generators`). Numpy forward and backward, in
float64.
"""

from collections.abc import Mapping

import numpy as np

from edge_client.adapters.generators import IN, IN_BIAS, OUT, OUT_BIAS, SLOPE, Generator
from edge_client.personal.bank import within
from edge_client.wire.tensors import AdapterState


def factors(
    generator: Generator, numbers: AdapterState, features: np.ndarray
) -> dict[str, np.ndarray]:
    """A factor for every rank of every module, float32, as they count.

    Args:
        generator: The net.
        numbers: Its own.
        features: As `Ground.standard` gives them.
    """
    given = within(_forward(numbers, features)[-1].astype(np.float32))
    rows = given.reshape(len(generator.modules), generator.rank)
    return {module: rows[place].copy() for place, module in enumerate(generator.modules)}


def pull(
    generator: Generator,
    numbers: AdapterState,
    features: np.ndarray,
    aims: Mapping[str, np.ndarray],
) -> tuple[float, AdapterState]:
    """Mean distance of its lambdas from others, and the gradients of that, float32.

    The ends of lambda's range let gradients through (straight-through), as a bank's do.

    Args:
        generator: The net.
        numbers: Its own.
        features: As `Ground.standard` gives them.
        aims: Lambdas by module.
    """
    given, slope = features.astype(np.float64), float(numbers[SLOPE][0])
    before, hidden, out = _forward(numbers, features)
    aim = np.concatenate([aims[module] for module in generator.modules]).astype(np.float64)
    apart = within(out).astype(np.float64) - aim
    d_out = np.sign(apart) / len(aim)
    d_hidden = numbers[OUT].astype(np.float64).T @ d_out
    d_before = d_hidden * np.where(before > 0, 1.0, slope)
    pulled = {
        IN: np.outer(d_before, given),
        IN_BIAS: d_before,
        SLOPE: np.array([d_hidden @ np.minimum(before, 0.0)]),
        OUT: np.outer(d_out, hidden),
        OUT_BIAS: d_out,
    }
    gradients = {name: one.astype(np.float32) for name, one in pulled.items()}
    return float(np.abs(apart).mean()), gradients


def _forward(
    numbers: AdapterState, features: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden units before and after PReLU, and what comes out, float64."""
    wide = {name: one.astype(np.float64) for name, one in numbers.items()}
    before = wide[IN] @ features.astype(np.float64) + wide[IN_BIAS]
    hidden = np.where(before > 0, before, wide[SLOPE][0] * before)
    return before, hidden, wide[OUT] @ hidden + wide[OUT_BIAS]

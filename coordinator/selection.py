"""Which devices are asked this round: a fraction of those that are there, without replacement."""

import math
from collections.abc import Collection

from edge_client.seeds import derive_seed


def cohort_size(fraction: float, population: int) -> int:
    """FedAvg's max(floor(C x K), 1) (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1)."""
    # 0.29 x 100 is 28.999999999999996 in binary; who wrote 0.29 means 29.
    return max(math.floor(fraction * population + 1e-9), 1)


def cohort(
    device_ids: Collection[str], fraction: float, seed: int, round_index: int, attempt: int
) -> tuple[str, ...]:
    """Draw a round's cohort.

    Every device gets a number by hashing, and the smallest win, so the draw does not hang on a
    generator's version. The order of `device_ids` is no matter, and equal arguments give an equal
    result.

    Args:
        device_ids: Who is there; all different.
        fraction: C, above 0 and at most 1.
        seed: The run's root seed.
        round_index: 1-based.
        attempt: 1-based; another attempt at a round draws anew.

    Returns:
        The chosen ids in sorted order; empty only if nobody is there.
    """

    def draw(device_id: str) -> tuple[int, str]:
        return derive_seed(seed, "cohort", round_index, attempt, device_id), device_id

    chosen = sorted(device_ids, key=draw)[: cohort_size(fraction, len(device_ids))]
    return tuple(sorted(chosen))

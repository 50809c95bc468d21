"""All combinations of some values, few of which are run each time."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

SLOW = pytest.mark.slow


def covering(*axes: Sequence[Any]) -> list[Any]:
    """Every combination; fast are as few as name each value of each axis once, the rest is slow.

    covering("ab", "xyz") runs a-x, b-y and a-z, and leaves b-x, a-y and b-z to `make test-slow`.
    """
    most = max(map(len, axes))
    fast = {tuple(axis[n % len(axis)] for axis in axes) for n in range(most)}
    return [pytest.param(*each, marks=() if each in fast else SLOW) for each in product(*axes)]


def first_fast(values: Sequence[Any]) -> list[Any]:
    """Every value; only the first is fast."""
    return [pytest.param(value, marks=SLOW if place else ()) for place, value in enumerate(values)]

"""All combinations of some values, few of which are run each time."""

from collections import defaultdict
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


def thin(items: Sequence[pytest.Item]) -> None:
    """Mark slow what is more than needed to name each value of each axis of a test once.

    An axis is one `parametrize`. Of tests marked `few`; of the cases that are not slow already.
    Where the mark says how many, no more are fast than that: `few(2)`.
    """
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        values = {case: set(_values(case)) for case in cases}
        named: set[Any] = set()
        mark = cases[0].get_closest_marker("few")
        most = mark.args[0] if mark and mark.args else len(cases)
        for _ in range(most):
            some = max((len(values[case] - named) for case in cases), default=0)
            if not some:
                break
            fast = next(case for case in cases if len(values[case] - named) == some)
            named |= values[fast]
            cases.remove(fast)
        for case in cases:
            case.add_marker(SLOW)


def _values(case: pytest.Item) -> list[Any]:
    """Of each axis of a case, its names and the value here."""
    spec = getattr(case, "callspec", None)
    left, found = dict(spec.params) if spec else {}, []
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        found.append((names, *(repr(left.pop(name.strip(), "")) for name in names.split(","))))
    return found + [(name, repr(value)) for name, value in left.items()]

"""A figure beside that of another row: the same column, the same seed, hence the same texts.

What two methods differ by is told by the differences of runs that share all else, not by the
difference of their means; so every table of this room shows them seed by seed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from simulation.experiments.record import Result, mean_and_spread
from simulation.papers.scenario import Measured


def final(result: Result) -> float:
    """Accuracy in the end, over all test texts."""
    return result.accuracy


def beside(item: Measured, found: Sequence[Measured], row: str) -> Measured:
    """The cell of another row in the same column."""
    [other] = [one for one in found if (one.cell.row, one.cell.column) == (row, item.cell.column)]
    return other


def differences(
    item: Measured, other: Measured, figure: Callable[[Result], float] = final
) -> list[float]:
    """A cell's figure minus another's, seed by seed."""
    return [figure(one) - figure(two) for one, two in zip(item.results, other.results, strict=True)]


def paired(item: Measured, other: Measured) -> dict[str, Any]:
    """A cell's accuracy and how far it is from another's, for machines: mean and spread."""
    gaps = differences(item, other)
    return {
        "accuracy": item.accuracy(),
        "difference": mean_and_spread(gaps),
        "difference_by_seed": gaps,
    }


def known(shares: Sequence[float | None]) -> tuple[float, float] | None:
    """Mean and spread; None where not all are known."""
    found = [share for share in shares if share is not None]
    return mean_and_spread(found) if len(found) == len(shares) else None


def points(figure: tuple[float, float] | None, sign: str = "") -> str:
    """Mean and spread of shares, in per cent; `-` where nobody knows."""
    return "-" if figure is None else f"{100 * figure[0]:{sign}.1f} ± {100 * figure[1]:.1f}"


def by_seed(gaps: Sequence[float]) -> str:
    """Differences of shares, in points, in the order of seeds."""
    return ", ".join(f"{100 * each:+.1f}" for each in gaps)

"""Paired differences: a figure beside another row's, same column and seed, hence the same texts.

Methods are compared by differences of runs that share all else, not by the difference of their
means; so they are shown seed by seed.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from smidgen.edge_client.tables import Column, Table
from smidgen.simulation.experiments.record import Result, mean_and_spread
from smidgen.simulation.report.scenario import SUMMARY, Cell, Measured, Name, Scenario

# Quantiles 0.975 of Student's t by degrees of freedom from 1 on.
T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160),
    *(2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060),
)


def final(result: Result) -> float:
    return result.accuracy


def differences(
    item: Measured, other: Measured, figure: Callable[[Result], float] = final
) -> list[float]:
    """A cell's figure minus another's, seed by seed."""
    return [figure(one) - figure(two) for one, two in zip(item.results, other.results, strict=True)]


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a mean, by Student's t; None of fewer than two values."""
    if len(values) < 2:
        return None
    mean, spread = mean_and_spread(values)
    half = T[min(len(values) - 2, len(T) - 1)] * spread / math.sqrt(len(values))
    return mean - half, mean + half


def ends(found: Sequence[float] | None, form: str = "+.1f", unit: float = 0.01) -> str:
    """An interval in words; `-` where too few values tell none."""
    return " to ".join(f"{end / unit:{form}}" for end in found or ()) or "-"


def known(shares: Sequence[float | None]) -> tuple[float, float] | None:
    found = [share for share in shares if share is not None]
    return mean_and_spread(found) if len(found) == len(shares) else None


def points(figure: tuple[float, float] | None, sign: str = "") -> str:
    """Mean and spread of shares, in per cent; `-` where nobody knows."""
    return "-" if figure is None else f"{100 * figure[0]:{sign}.1f} ± {100 * figure[1]:.1f}"


def by_seed(gaps: Sequence[float]) -> str:
    """Differences of shares, in points, in the order of seeds."""
    return ", ".join(f"{100 * each:+.1f}" for each in gaps)


def rows_apart(cells: Sequence[Cell], *rows: tuple[str, str]) -> tuple[tuple[Name, Name], ...]:
    """Pairs of a row less another, in each column that both have."""
    there = dict.fromkeys(cell.name for cell in cells)
    columns = dict.fromkeys(column for _, column in there)
    pairs = [((upper, one), (lower, one)) for upper, lower in rows for one in columns]
    return tuple(pair for pair in pairs if there.keys() >= set(pair))


def columns_apart(
    cells: Sequence[Cell], *columns: tuple[str, str]
) -> tuple[tuple[Name, Name], ...]:
    """Pairs of a column less another, in each row that has both."""
    there = dict.fromkeys(cell.name for cell in cells)
    rows = dict.fromkeys(row for row, _ in there)
    pairs = [((one, upper), (one, lower)) for upper, lower in columns for one in rows]
    return tuple(pair for pair in pairs if there.keys() >= set(pair))


APART = ("difference", "points", "95 %", "by seed")
APART_NOTE = "differences: in points, of the same seeds; 95 %: of their mean, by Student's t"


def apart_table(scenario: Scenario, found: Sequence[Measured]) -> Table | None:
    """What the scenario's pairs differ by; None where it has none, or one seed alone."""
    rows = apart_rows(scenario, found)
    if not rows:
        return None
    columns = [Column(APART[0], "text"), *(Column(name) for name in APART[1:])]
    return Table(columns, rows, "differences, paired by seed", [APART_NOTE], SUMMARY)


def apart_rows(scenario: Scenario, found: Iterable[Measured]) -> list[list[str]]:
    """One row for each pair of which two seeds or more are there: `APART`."""
    there = {item.cell.name: item for item in found}
    rows = []
    for upper, lower in scenario.pairs:
        if not there.keys() >= {upper, lower}:
            continue
        gaps = _gaps(there[upper], there[lower])
        if between := interval(gaps):
            mean, _ = mean_and_spread(gaps)
            rows.append([_less(upper, lower), f"{100 * mean:+.1f}", ends(between), by_seed(gaps)])
    return rows


def _gaps(upper: Measured, lower: Measured) -> list[float]:
    """Differences of the figures that the cells show, of the seeds that both have."""
    ours, others = _shares(upper), _shares(lower)
    return [ours[seed] - others[seed] for seed in sorted(ours.keys() & others.keys())]


def _shares(item: Measured) -> dict[int, float]:
    seeds = [result.experiment.seed for result in item.results]
    return dict(zip(seeds, item.by_seed(), strict=True))


def _less(upper: Name, lower: Name) -> str:
    """A pair in words, what both share behind the rest."""
    (row, column), (other, beside) = upper, lower
    if row == other:
        return f"{column} less {beside}, {row}"
    if column == beside:
        return f"{row} less {other}, {column}"
    return f"{row}, {column}, less {other}, {beside}"

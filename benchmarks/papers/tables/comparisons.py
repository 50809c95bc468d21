"""Tables of paired differences to a reference method, seed by seed: one row per cell.

Methods are compared by differences of runs that share all else, not by the difference of their
means. A scenario's file says which figures its table has, and their captions.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from benchmarks.papers.paired import by_seed, differences, ends, interval, known, points
from smidgen.edge_client.tables import Column, Table, sizes
from smidgen.simulation.experiments.record import Result, mean_and_spread
from smidgen.simulation.experiments.scoring import Tally
from smidgen.simulation.report.scenario import SUMMARY, Measured

EARLY = 5  # the round after which accuracy is told too
BEHIND = 0.01  # the target is the reference's mean final accuracy, minus this; "within 1" too
WITHIN = 0.005


def early(result: Result) -> float:
    """Accuracy of the last evaluated round that is the fifth or before."""
    return [score.accuracy for index, score in result.curve() if index <= EARLY][-1]


def reached(result: Result, target: float) -> int | None:
    """The first evaluated round whose accuracy is the target or more; None: no round's."""
    return next((index for index, score in result.curve() if score.accuracy >= target), None)


def best_kept(result: Result) -> float | None:
    """Accuracy of the best round, chosen by half of the clients' texts and told by the others'.

    None where it is not known how each client does.
    """

    def share(tallies: Mapping[str, Tally], part: int) -> float:
        return sum([tallies[name] for name in sorted(tallies)[part::2]], Tally(0, 0)).share

    scores = [score for _, score in result.curve() if len(score.by_client) > 1]
    if not scores:
        return None
    return share(max(scores, key=lambda score: share(score.by_client, 0)).by_client, 1)


def losses(result: Result, is_first: bool = False) -> dict[str, float]:
    """Each client's own loss, nats, by the adapter of all or by its own: in the end, or before."""
    return {
        name: loss
        for row in result.rows
        if row.score is not None and (row.round_index == 0) == is_first
        for name, loss in {row.arm: row.score.loss, **row.score.losses_by_client}.items()
        if name and loss is not None
    }


def within(low: float, high: float, loss: float = WITHIN) -> str:
    """What an interval says of a loss of at most half a point, or another: yes, no, not shown."""
    return "yes" if low >= -loss else "no" if high < -loss else "not shown"


def _rows(item: Measured, name: str) -> list[Any]:
    values = [getattr(row, name) for result in item.results for row in result.rows]
    return [value for value in values if value is not None]


def _reported(item: Measured) -> tuple[float, float] | None:
    """By what devices told after the last round; None where none did."""
    last = [max(one.rows, key=lambda row: row.round_index).reported for one in item.results]
    there = [share for share in last if share is not None]
    return mean_and_spread(there) if there else None


# of a cell and its reference
FIGURES: dict[str, Callable[[Measured, Measured], Any]] = {
    "row": lambda item, _: item.cell.row,
    "factor": lambda item, _: item.cell.row.partition(": ")[0],
    "setting": lambda item, _: item.cell.row.partition(": ")[2],
    "column": lambda item, _: item.cell.column,
    "accuracy": lambda item, _: item.accuracy(),
    "mean accuracy": lambda item, _: item.accuracy()[0],
    "untrained": lambda item, _: mean_and_spread(
        [one.curve()[0][1].accuracy for one in item.results]
    )[0],
    "untrained loss": lambda item, _: fmean(
        [x for one in item.results for x in losses(one, is_first=True).values()]
    ),
    "loss": lambda item, _: fmean([x for one in item.results for x in losses(one).values()]),
    "untrained losses": lambda item, _: [losses(one, is_first=True) for one in item.results],
    "losses": lambda item, _: [losses(one) for one in item.results],
    "reference": lambda _, first: first.accuracy(),
    "difference": lambda item, first: mean_and_spread(differences(item, first)),
    "mean difference": lambda item, first: mean_and_spread(differences(item, first))[0],
    "by seed": differences,
    "interval": lambda item, first: interval(differences(item, first)),
    "within": lambda item, first: within(*(interval(differences(item, first)) or (-1.0, 1.0))),
    "within 1": lambda item, first: within(
        *(interval(differences(item, first)) or (-1.0, 1.0)), BEHIND
    ),
    "early": lambda item, _: mean_and_spread([early(one) for one in item.results]),
    "early difference": lambda item, first: mean_and_spread(differences(item, first, early)),
    "early by seed": lambda item, first: differences(item, first, early),
    "target": lambda _, first: first.accuracy()[0] - BEHIND,
    "rounds to target": lambda item, first: [
        reached(one, first.accuracy()[0] - BEHIND) for one in item.results
    ],
    "best kept": lambda item, _: known([best_kept(one) for one in item.results]),
    "balanced": lambda item, _: known([one.balanced for one in item.results]),
    "reference balanced": lambda _, first: known([one.balanced for one in first.results]),
    "reported": lambda item, _: _reported(item),
    "troubles": lambda item, _: sum(map(bool, _rows(item, "trouble"))),
    "most lost": lambda item, _: max(_rows(item, "lost"), default=None),
    "bytes_up": lambda item, _: round(item.total("bytes_up")),
    "bytes_down": lambda item, _: round(item.total("bytes_down")),
    "layer_forwards": lambda item, _: round(item.total("all_forwards")),
    "num_examples": lambda item, _: round(item.total("num_examples")),
    "share up": lambda item, first: item.total("bytes_up") / first.total("bytes_up"),
    "share down": lambda item, first: item.total("bytes_down") / first.total("bytes_down"),
}
TEXTS: dict[str, Callable[[Any], str]] = {
    "": str,
    "points": points,
    "+points": partial(points, sign="+"),
    "by seed": by_seed,
    "by seed, .2": lambda gaps: ", ".join(f"{100 * gap:+.2f}" for gap in gaps),
    "rounds": lambda rounds: ", ".join("-" if at is None else str(at) for at in rounds),
    "%": lambda share: f"{100 * share:.1f}",
    "+%": lambda share: f"{100 * share:+.1f}",
    "%, .2": lambda share: f"{100 * share:.2f}",
    "+%, .2": lambda share: f"{100 * share:+.2f}",
    "lost": lambda share: "-" if share is None else f"{100 * share:.2f} %",
    "95 %": ends,
    "nats": lambda loss: f"{loss:.3f}",
    "homes": lambda seeds: "; ".join(
        ", ".join(f"{loss:.2f}" for loss in homes.values()) for homes in seeds
    ),
    "95 %, .2": partial(ends, form="+.2f"),
}


def compared_table(
    found: Sequence[Measured], compared: Mapping[str, Any]
) -> tuple[Table, list[dict[str, Any]]]:
    """The table that a scenario's file asks for; the same for machines.

    Args:
        found: The scenario's cells with their results.
        compared: `title`, `notes`, `columns` (key for machines, heading, of `FIGURES`, of `TEXTS`
            or `sizes`), `reference`: the row that cells are held against, the first cell where a
            column lacks it; with `by_column` the column, which has no line; `printed` rows below.
    """
    there = {item.cell.name: item for item in found}
    reference, is_column = compared["reference"], compared.get("by_column", False)
    plain, texts = list[dict[str, Any]](), list[list[str]]()
    pairs = [
        (item, there.get((row, reference) if is_column else (reference, column), found[0]))
        for (row, column), item in there.items()
        if not (is_column and column == reference)
    ]
    columns = []
    for key, heading, figure, text in compared["columns"]:
        values = [FIGURES[figure](*pair) for pair in pairs]
        columns.append((key, values))
        if heading:
            texts.append(sizes(values) if text == "sizes" else [TEXTS[text](one) for one in values])
    for at in range(len(pairs)):
        plain.append({key: values[at] for key, values in columns if key})
    heads = [
        Column(heading, "text" if figure in ("row", "column", "factor", "setting") else "number")
        for _, heading, figure, _ in compared["columns"]
        if heading
    ]
    rows = [*map(list, zip(*texts, strict=True)), *compared.get("printed", ())]
    return Table(heads, rows, compared["title"], compared["notes"], SUMMARY), plain

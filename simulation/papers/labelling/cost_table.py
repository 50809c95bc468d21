"""Layer-forwards to the same accuracy, seed by seed beside unpaced labelling."""

import math
from collections.abc import Sequence
from typing import Any

from edge_client.bases.base import open_base
from edge_client.tables import Column, Table
from simulation.experiments.result import Result, mean_and_spread
from simulation.papers.labelling.spent import (
    Spent,
    fes_kj,
    fes_seconds,
    mean_of,
    spent,
    target_of,
    until,
)
from simulation.papers.paired import by_seed, differences, ends, interval
from simulation.papers.published.aug_fedprompt import LABELLING_SHARE
from simulation.papers.scenario import LAYER_FORWARDS, SUMMARY, Measured

UNPACED = "unpaced"


def cost_table(found: Sequence[Measured]) -> tuple[Table, list[dict[str, Any]]]:
    """Layer-forwards to the same accuracy, and what they are in FeS's model."""
    unpaced = next(item for item in found if item.cell.row == UNPACED)
    layers = open_base(unpaced.cell.experiment.base).layers
    rows = [_row(item, unpaced, layers) for item in found]
    columns = [
        Column("labelling", "text"),
        *(Column(name) for name in ("accuracy", "less unpaced", "95 %")),
        Column("by seed", optional=4),
        *(Column(name) for name in ("whole run k", "labels' share", "gate's share")),
        *(Column(name) for name in ("seeds", "rounds", "k layer-forwards", "of unpaced", "95 %")),
        Column("TX2 full", optional=3),
        Column("TX2 bias", optional=1),
        Column("kJ, bias", optional=1),
    ]
    notes = [
        LAYER_FORWARDS,
        "less unpaced, by seed: points of accuracy in the end that the row has more than unpaced "
        "labelling with the same seed; 95 %: the interval of the mean of what stands before it, by "
        "Student's t (shares of unpaced: of their logarithms)",
        "whole run k: thousands of them over all rounds, however many were needed; labels' and "
        "gate's share: what reading texts to label them, and finding out which adapter may label, "
        f"took of that (paper, labelling unpaced: up to {LABELLING_SHARE} %)",
        "seeds: that reached the accuracy; rounds, k layer-forwards, of unpaced: until they did, "
        "and as a share of what unpaced labelling took with the same seed (geometric mean)",
        "TX2: hours, estimated by FeS's formula: a batch of 4 through all layers takes 2 s (all "
        "weights, full) or 1 s (biases) to train on and half of that to read, at 12 W; sending "
        "takes 4 W, at 1 MB/s (our assumption)",
    ]
    title = (
        "until the mean of three evaluations in a row is 98 % of what unpaced labelling ends with"
    )
    return Table(columns, [_cells(row) for row in rows], title, notes, SUMMARY), rows


def _row(item: Measured, unpaced: Measured, layers: int) -> dict[str, Any]:
    """A row's figures, in base units."""
    targets = [target_of(result) for result in unpaced.results]
    pairs = _reached(item, unpaced, targets)
    whole = [spent(result.rows) for result in item.results]
    gaps = differences(item, unpaced)
    logs = [math.log(one.total / two.total) for one, two in pairs]
    own = [one for one, _ in pairs]
    return {
        "row": item.cell.row,
        "accuracy": item.accuracy(),
        "less_unpaced": mean_and_spread(gaps)[0],
        "less_unpaced_95": [*(interval(gaps) or ())],
        "less_unpaced_by_seed": gaps,
        "seeds": len(item.results),
        "reached": len(pairs),
        "rounds": mean_of([one.rounds for one in own]),
        "layer_forwards": mean_of([one.total for one in own]),
        "layer_forwards_by_seed": [one.total for one in own],
        "share_of_unpaced": math.exp(mean_and_spread(logs)[0]) if logs else None,
        "share_of_unpaced_95": [math.exp(end) for end in interval(logs) or ()],
        "whole_run": mean_of([one.total for one in whole]),
        "labelling_share": mean_of([one.labelling / one.total for one in whole]),
        "gate_share": mean_of([one.gate / one.total for one in whole]),
        "fes_full_s": mean_of([fes_seconds(one, layers, "full") for one in own]),
        "fes_bias_s": mean_of([fes_seconds(one, layers, "bias") for one in own]),
        "fes_bias_kj": mean_of([fes_kj(one, layers, "bias") for one in own]),
        "targets": [round(target, 4) for target in targets],
    }


def _reached(
    item: Measured, unpaced: Measured, targets: Sequence[float]
) -> list[tuple[Spent, Spent]]:
    """What it took to reach the target and what unpaced labelling took, where both did."""

    def took(results: Sequence[Result]) -> list[Spent | None]:
        return [until(one, target) for one, target in zip(results, targets, strict=True)]

    both = zip(took(item.results), took(unpaced.results), strict=True)
    return [(one, two) for one, two in both if one and two]


def _cells(row: dict[str, Any]) -> list[str]:
    accuracy, spread = row["accuracy"]
    return [
        row["row"],
        f"{100 * accuracy:.1f} ± {100 * spread:.1f}",
        f"{100 * row['less_unpaced']:+.1f}",
        ends(row["less_unpaced_95"]),
        by_seed(row["less_unpaced_by_seed"]),
        _shown(row["whole_run"], 1e3),
        f"{100 * row['labelling_share']:.0f} %",
        f"{100 * row['gate_share']:.0f} %",
        f"{row['reached']} of {row['seeds']}",
        _shown(row["rounds"], 1),
        _shown(row["layer_forwards"], 1e3),
        _shown(row["share_of_unpaced"], 1, 3),
        ends(row["share_of_unpaced_95"], ".3f", 1),
        _shown(row["fes_full_s"], 3600, 2, " h"),
        _shown(row["fes_bias_s"], 3600, 2, " h"),
        _shown(row["fes_bias_kj"], 1),
    ]


def _shown(value: float | None, unit: float, digits: int = 1, name: str = "") -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}{name}"

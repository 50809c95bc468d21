"""Pseudo-label tables: how many a run held and how many were right; cost to equal accuracy.

The unit is the layer-forward, counted by the engines; beside the counts stands FeS's own cost model
of a TX2, which is a formula.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.papers.grid import read_file
from benchmarks.papers.paired import by_seed, differences, ends, interval
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.tables import Column, Table, share
from smidgen.simulation.experiments.record import Result, Row, mean_and_spread
from smidgen.simulation.report.scenario import LAYER_FORWARDS, NAMED, SUMMARY, Measured

UNPACED = "unpaced"
REACHED = 0.98  # of what unpaced labelling ends with, on average over its last evaluations
LAST = 3
# FeS (MobiCom'23), the constants of its plotting notebooks: seconds of a batch on a TX2 that is
# trained, and that is only read, by what is trained; and what computing and sending draw.
FES_BATCH, FES_S = 4, {"full": (2.0, 1.0), "bias": (1.0, 0.5)}
COMPUTE_W, RADIO_W, RADIO_BYTES_PER_S = 12.0, 4.0, 1e6  # the last is ours: theirs is not known


@dataclass(frozen=True)
class Spent:
    """Layer-forwards of some rounds, by purpose.

    Attributes:
        labelling: Reading texts for their labels.
        gate: Evaluating adapters before.
        training: Training.
        rounds: How many rounds.
        traffic_bytes: Adapters and updates of training, both ways.
    """

    labelling: int
    gate: int
    training: int
    rounds: int
    traffic_bytes: int

    @property
    def total(self) -> int:
        return self.labelling + self.gate + self.training

    @property
    def labelling_share(self) -> float:
        return (self.labelling + self.gate) / self.total if self.total else 0.0

    def fes_seconds(self, layers: int, kind: str) -> float:
        """Seconds on a TX2 by FeS's cost model; `full` or `bias` is trained."""
        trained_s, read_s = FES_S[kind]
        batches = self.training / 3, self.labelling + self.gate  # a text is trained on as three
        return (batches[0] * trained_s + batches[1] * read_s) / (layers * FES_BATCH)

    def fes_kilojoules(self, took_s: float) -> float:
        """Energy of computing for so long, and of sending, by the same model."""
        return (COMPUTE_W * took_s + RADIO_W * self.traffic_bytes / RADIO_BYTES_PER_S) / 1e3


def spent(rows: Sequence[Row]) -> Spent:
    labels = [row.labels.looking for row in rows if row.labels is not None]
    return Spent(
        sum(one.label_forwards for one in labels),
        sum(one.gate_forwards for one in labels),
        sum(row.layer_forwards for row in rows),
        max((row.round_index for row in rows), default=0),
        sum(row.bytes_up + row.bytes_down for row in rows),
    )


def target_of(unpaced: Result) -> float:
    """The accuracy to be reached: nearly what unpaced labelling ends with."""
    last = [score.accuracy for _, score in unpaced.curve()[-LAST:]]
    return REACHED * sum(last) / len(last)


def until(result: Result, target: float) -> Spent | None:
    """What it took until three evaluations in a row were at the target, on average; None: never."""
    curve = [(index, score.accuracy) for index, score in result.curve() if index]
    for at in range(LAST, len(curve) + 1):
        if sum(accuracy for _, accuracy in curve[at - LAST : at]) >= LAST * target:
            return spent([row for row in result.rows if row.round_index <= curve[at - 1][0]])
    return None


def mean_of(values: Sequence[float]) -> float | None:
    return mean_and_spread(values)[0] if values else None


def label_table(found: Sequence[Measured]) -> tuple[Table, list[dict[str, Any]]]:
    """How many pseudo-labels there were round by round, and how many of them were right."""
    labelled = [item for item in found if item.cell.experiment.labelling is not None]
    rows = [row for item in labelled for row in _by_round(item)]
    lines = [
        [
            row["row"],
            str(row["round"]),
            f"{row['held']:.0f}",
            share(row["right"]),
            f"{row['texts_read']:.0f}",
            share(row["gate"]),
            share(row["labelling_share"]),
        ]
        for row in rows
    ]
    names = ("round", "held", "right", "texts read", "gate", "labelling")
    figures = read_file("aug-fedprompt")[1].figures
    notes = [
        "held: pseudo-labels on all clients; right: against the data set's labels, which no client "
        f"knows (paper: {figures['right_early']} % in the first three rounds, "
        f"{figures['right_late']} % at convergence); gate: accuracy of the adapter on the texts "
        "kept aside; labelling: its share of all layer-forwards so far"
    ]
    title = "pseudo-labels that clients train on (mean over seeds)"
    return Table([Column(NAMED, "text"), *map(Column, names)], lines, title, notes, SUMMARY), rows


def _by_round(item: Measured) -> list[dict[str, Any]]:
    known = [{row.round_index: row.labels for row in one.rows} for one in item.results]
    known = [{index: labels for index, labels in one.items() if labels} for one in known]
    rounds = sorted(set.intersection(*(set(one) for one in known)))
    rows = []
    for index in sorted({*rounds[:3], *rounds[4::5], *rounds[-1:]}):
        steps = [labels for one in known if (labels := one[index]) is not None]
        so_far = [
            spent([row for row in one.rows if row.round_index <= index]) for one in item.results
        ]
        gates = [one.looking.gate_accuracy for one in steps]
        rows.append(
            {
                "row": item.name,
                "round": index,
                "held": mean_of([float(one.held.asked) for one in steps]),
                "right": mean_of([one.held.share for one in steps if one.held.asked]),
                "texts_read": mean_of([float(one.looking.texts_read) for one in steps]),
                "gate": mean_of([gate for gate in gates if gate is not None]),
                "labelling_share": mean_of([one.labelling_share for one in so_far]),
            }
        )
    return rows


def cost_table(found: Sequence[Measured]) -> tuple[Table, list[dict[str, Any]]]:
    """Layer-forwards to the same accuracy, seed by seed beside unpaced labelling."""
    unpaced = next(item for item in found if item.cell.row == UNPACED)
    layers = open_base(unpaced.cell.experiment.base).layers
    rows = [_cost_row(item, unpaced, layers) for item in found]
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
        "took of that (paper, labelling unpaced: up to "
        f"{read_file('aug-fedprompt')[1].figures['labelling_share']} %)",
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


def _cost_row(item: Measured, unpaced: Measured, layers: int) -> dict[str, Any]:
    """A row's figures, in base units."""
    targets = [target_of(result) for result in unpaced.results]
    both = [
        (until(one, target), until(other, target))
        for one, other, target in zip(item.results, unpaced.results, targets, strict=True)
    ]
    pairs = [(one, other) for one, other in both if one and other]
    whole = [spent(result.rows) for result in item.results]
    gaps = differences(item, unpaced)
    logs = [math.log(one.total / other.total) for one, other in pairs]
    own = [one for one, _ in pairs]
    bias = [one.fes_seconds(layers, "bias") for one in own]
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
        "fes_full_s": mean_of([one.fes_seconds(layers, "full") for one in own]),
        "fes_bias_s": mean_of(bias),
        "fes_bias_kj": mean_of(
            [one.fes_kilojoules(took_s) for took_s, one in zip(bias, own, strict=True)]
        ),
        "targets": [round(target, 4) for target in targets],
    }


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

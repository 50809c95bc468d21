"""What pseudo-labels cost: labelling without pacing, with each lever alone, and with all of them.

The unit is the layer-forward, counted by the engines. Unpaced, as AUG-FedPrompt labels: before
every round every client reads all its texts anew, through all layers, and trains on all it is sure
of. Beside the counts stands FeS's own cost model of a TX2, which is a formula.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_client.adapters.spec import TARGETS
from edge_client.bases.base import open_base
from edge_client.tables import Column, Table, share
from edge_client.wire.labelling import Labelling
from profiling.estimates import fes
from simulation.experiments.experiment import Experiment, ExperimentError
from simulation.experiments.record import Result, Row, mean_and_spread
from simulation.papers.aug_fedprompt import AUGMENTED, experiment
from simulation.papers.published.aug_fedprompt import (
    LABELLING_SHARE,
    RIGHT_EARLY,
    RIGHT_LATE,
    SKEWED,
)
from simulation.papers.scenario import LAYER_FORWARDS, NAMED, SUMMARY, Cell, Measured, Scenario

UNPACED, TOGETHER, MOST = "unpaced", "all together", "all but f and n"
CLIENTS, TEXTS = 32, 1600
REACHED = 0.98  # of what unpaced labelling ends with, on average over its last evaluations
LAST = 3
CACHE_BYTES = 1 << 30

EVERYTHING = Labelling(
    infer_every=1,
    infer_clients=0,
    keep_first=1.0,
    keep_last=1.0,
    compute_share=1.0,
    early_exit=False,
    hardly_moved=0.0,
)
PACED = Labelling(infer_every=2, infer_clients=5, keep_first=0.1, keep_last=0.5, compute_share=0.25)
LEVERS: dict[str, Labelling] = {
    "f: every 2nd round": replace(EVERYTHING, infer_every=PACED.infer_every),
    "n: 5 clients": replace(EVERYTHING, infer_clients=PACED.infer_clients),
    "k: grows, stop when found": replace(
        EVERYTHING, keep_first=PACED.keep_first, keep_last=PACED.keep_last
    ),
    "25 % of compute": replace(EVERYTHING, compute_share=PACED.compute_share),
    "not what hardly changes": replace(EVERYTHING, hardly_moved=PACED.hardly_moved),
}


def cost(base: str, dataset: str, adapter: str, quick: bool) -> Scenario:
    """Unpaced labelling, each lever alone, all together; on fewer and larger clients.

    Raises:
        ExperimentError: The adapter is not one of all layers that has a form for the top ones.
    """
    if not adapter.startswith(("lora:", "bias")) or "/" in adapter:
        raise ExperimentError(f"--adapter {adapter}: lora:R or bias is expected, of all layers")
    wide = adapter if adapter == "bias" else f"{adapter.split('@')[0]}@{','.join(TARGETS)}"
    top = f"{wide}/top{math.ceil(open_base(base).layers / 4)}"

    def asked(kind: str, labelling: Labelling | None, rounds: int, cache: int = 0) -> Experiment:
        said = experiment(base, dataset, kind, quick, gamma=SKEWED, labelling=labelling)
        deal = replace(said.deal, clients=CLIENTS, labelled_clients=CLIENTS)
        return replace(
            said,
            deal=deal,
            rounds=rounds,
            evaluate_every=1,
            train_texts=TEXTS // 4 if quick else TEXTS,
            test_texts=300 if quick else 600,
            cache_bytes=cache,
            gate_texts=32,
        )

    few, many = (3, 6) if quick else (8, 32)
    cells = [Cell(UNPACED, AUGMENTED, asked(adapter, EVERYTHING, few))]
    levers = list(LEVERS.items())
    for name, labelling in levers[2:3] if quick else levers:
        cells.append(Cell(name, AUGMENTED, asked(adapter, labelling, few)))
    cells.append(Cell("top layers, cached", AUGMENTED, asked(top, EVERYTHING, few, CACHE_BYTES)))
    often = replace(PACED, infer_every=1, infer_clients=0)
    cells.append(Cell(MOST, AUGMENTED, asked(top, often, many, CACHE_BYTES)))
    cells.append(Cell(TOGETHER, AUGMENTED, asked(top, PACED, many, CACHE_BYTES)))
    title = (
        f"Cost of pseudo-labels on {dataset}: accuracy in % at the end; {CLIENTS} clients, labels "
        "on one of them (gamma 0.001)"
    )
    notes = (
        f"{UNPACED}: every client reads all its texts before every round and trains on all it is "
        "sure of; every other row changes one thing, the last row all",
        f"top layers: adapter {top}; what lies below is computed once per text and kept",
        f"{MOST} and {TOGETHER} run for more rounds than the others",
        f"early exit has no row: {TEXTS // CLIENTS} texts per client are too few to learn exits",
    )
    return Scenario("aug-fedprompt cost", title, tuple(cells), notes)


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
        """Share of labelling in all of it, the gate included."""
        return (self.labelling + self.gate) / self.total if self.total else 0.0


def spent(rows: Sequence[Row]) -> Spent:
    """What rounds took."""
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
            last = curve[at - 1][0]
            return spent([row for row in result.rows if row.round_index <= last])
    return None


def fes_seconds(found: Spent, layers: int, kind: str) -> float:
    """Seconds on a TX2 by FeS's cost model, of layer-forwards; `full` or `bias` is trained."""
    return fes.seconds(found.training, found.labelling + found.gate, layers, kind)


def fes_kj(found: Spent, layers: int, kind: str) -> float:
    """Kilojoules by the same model: computing, and sending at 1 MB per second."""
    return fes.kilojoules(fes_seconds(found, layers, kind), found.traffic_bytes)


def cost_table(found: Sequence[Measured]) -> tuple[Table, list[dict[str, Any]]]:
    """Layer-forwards to the same accuracy, and what they are in FeS's model."""
    rows = _rows(found)
    columns = [
        Column("labelling", "text"),
        *(Column(name) for name in ("whole run k", "labels' share", "gate's share")),
        *(Column(name) for name in ("rounds", "k layer-forwards", "of unpaced")),
        Column("TX2 full", optional=2),
        Column("TX2 bias", optional=1),
        Column("kJ, bias", optional=1),
    ]
    notes = [
        LAYER_FORWARDS,
        "whole run k: thousands of them over all rounds, however many were needed; labels' and "
        "gate's share: what reading texts to label them, and finding out which adapter may label, "
        f"took of that (paper, labelling unpaced: up to {LABELLING_SHARE} %)",
        "rounds, k layer-forwards, of unpaced: until that accuracy, and as a share of unpaced's",
        "TX2: hours, estimated by FeS's formula: a batch of 4 through all layers takes 2 s (all "
        "weights, full) or 1 s (biases) to train on and half of that to read, at 12 W; sending "
        "takes 4 W, at 1 MB/s (our assumption)",
    ]
    title = "until three evaluations in a row reached 98 % of what unpaced labelling ends with"
    return Table(columns, [_cells(row) for row in rows], title, notes, SUMMARY), rows


def _rows(found: Sequence[Measured]) -> list[dict[str, Any]]:
    unpaced = next(item for item in found if item.cell.row == UNPACED)
    targets = [target_of(result) for result in unpaced.results]
    layers = open_base(unpaced.cell.experiment.base).layers
    rows = []
    for item in found:
        reached = [until(one, target) for one, target in zip(item.results, targets, strict=True)]
        base = [until(one, target) for one, target in zip(unpaced.results, targets, strict=True)]
        pairs = [(one, two) for one, two in zip(reached, base, strict=True) if one and two]
        whole = [spent(result.rows) for result in item.results]
        rows.append(
            {
                "row": item.cell.row,
                "seeds": len(item.results),
                "reached": len(pairs),
                "rounds": _mean([one.rounds for one, _ in pairs]),
                "layer_forwards": _mean([one.total for one, _ in pairs]),
                "share_of_unpaced": _mean([one.total / two.total for one, two in pairs]),
                "whole_run": _mean([one.total for one in whole]),
                "labelling_share": _mean([one.labelling / one.total for one in whole]),
                "gate_share": _mean([one.gate / one.total for one in whole]),
                "fes_full_s": _mean([fes_seconds(one, layers, "full") for one, _ in pairs]),
                "fes_bias_s": _mean([fes_seconds(one, layers, "bias") for one, _ in pairs]),
                "fes_bias_kj": _mean([fes_kj(one, layers, "bias") for one, _ in pairs]),
                "targets": [round(target, 4) for target in targets],
            }
        )
    return rows


def _mean(values: Sequence[float]) -> float | None:
    return mean_and_spread(values)[0] if values else None


def _cells(row: dict[str, Any]) -> list[str]:
    name = row["row"]
    if row["reached"] < row["seeds"]:
        name += f" ({row['reached']} of {row['seeds']} seeds reached it)"
    return [
        name,
        _shown(row["whole_run"], 1e3),
        f"{100 * row['labelling_share']:.0f} %",
        f"{100 * row['gate_share']:.0f} %",
        _shown(row["rounds"], 1),
        _shown(row["layer_forwards"], 1e3),
        share(row["share_of_unpaced"]),
        _shown(row["fes_full_s"], 3600, 2, " h"),
        _shown(row["fes_bias_s"], 3600, 2, " h"),
        _shown(row["fes_bias_kj"], 1),
    ]


def _shown(value: float | None, unit: float, digits: int = 1, name: str = "") -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}{name}"


def label_table(found: Sequence[Measured]) -> tuple[Table, list[dict[str, Any]]]:
    """How many pseudo-labels there were round by round, and how many of them were right."""
    rows = []
    for item in found:
        if item.cell.experiment.labelling is not None:
            rows += _by_round(item)
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
    columns = [Column(NAMED, "text"), *(Column(name) for name in names)]
    notes = [
        "held: pseudo-labels on all clients; right: against the data set's labels, which no client "
        f"knows (paper: {RIGHT_EARLY} % in the first three rounds, {RIGHT_LATE} % at convergence); "
        "gate: accuracy of the adapter on the texts kept aside; labelling: its share of all "
        "layer-forwards so far"
    ]
    title = "pseudo-labels that clients train on (mean over seeds)"
    return Table(columns, lines, title, notes, SUMMARY), rows


def _by_round(item: Measured) -> list[dict[str, Any]]:
    known = [{row.round_index: row for row in one.rows if row.labels} for one in item.results]
    rounds = sorted(set.intersection(*(set(one) for one in known)))
    wanted = sorted({*rounds[:3], *rounds[4::5], *rounds[-1:]})
    rows = []
    for index in wanted:
        labels = [one[index].labels for one in known]
        steps = [one for one in labels if one is not None]
        so_far = [
            spent([row for row in one.rows if row.round_index <= index]) for one in item.results
        ]
        right = [one.held.share for one in steps if one.held.asked]
        gates = [
            one.looking.gate_accuracy for one in steps if one.looking.gate_accuracy is not None
        ]
        rows.append(
            {
                "row": item.name,
                "round": index,
                "held": _mean([float(one.held.asked) for one in steps]),
                "right": _mean(right),
                "texts_read": _mean([float(one.looking.texts_read) for one in steps]),
                "gate": _mean(gates),
                "labelling_share": _mean([one.labelling_share for one in so_far]),
            }
        )
    return rows

"""What rounds with pseudo-labels took, by purpose: in all, and until an accuracy is reached."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.estimates import fes
from simulation.experiments.result import Result, Row, mean_and_spread

REACHED = 0.98  # of what unpaced labelling ends with, on average over its last evaluations
LAST = 3


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


def mean_of(values: Sequence[float]) -> float | None:
    """Their mean; None where there are none."""
    return mean_and_spread(values)[0] if values else None

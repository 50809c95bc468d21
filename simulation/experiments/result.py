"""Result of an experiment: a row per round and arm, and summary figures of all rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.federation.devices import Between, Looking
from smidgen.simulation.experiments.scoring import Score, Tally, pooled


@dataclass(frozen=True)
class Labels:
    """The label step before a round, and what it left.

    Attributes:
        looking: What it gave and cost.
        held: Pseudo-labels of all clients after it, and how many of them are right.
    """

    looking: Looking
    held: Tally


@dataclass(frozen=True)
class Row:
    """One round of one arm, as it is written; units are those of `federation.Round`.

    Attributes:
        arm: The client that trained for itself; empty where all trained together.
        round_index: 1-based; 0 is the evaluation before any training.
        clients: Clients asked.
        failed: Clients of those that could not train.
        num_examples: Texts trained on.
        loss: Mean training loss, nats.
        bytes_down: Adapters, or coded steps to them, handed out.
        bytes_up: Updates handed in, encoded.
        layer_forwards: Layer-forwards of training, all clients together (measured: engines count).
        train_s: Seconds of training and aggregation on this machine (measured).
        adapter_sha256: The adapter after it.
        evaluated: The last round whose adapter was scored, -1 for none.
        score: This adapter's score, where it was scored.
        error: What the first client that failed said; empty if none did.
        labels: The label step before it, if there was one.
        reported: Accuracy by what devices told of it, where hostile ones are among them.
        trouble: What was done about the run after it: not taken, or gone back; empty of nothing.
        lost: Share of the mean's squared norm that the run's rank leaves out, where that is known.
        ranks: Each module's rank, where the arm chose them for itself.
        between: How far it went from the shared adapter, where it chose that.
        kept: The round whose adapter the arm would end with now, where it keeps its best one.
        kept_score: That adapter's score by all test texts, where shares of them chose it.
        card: Name of the CUDA device that computed it; empty: the processor did.
    """

    arm: str
    round_index: int
    clients: int
    failed: int
    num_examples: int
    loss: float | None
    bytes_down: int
    bytes_up: int
    layer_forwards: int
    train_s: float
    adapter_sha256: str
    evaluated: int
    score: Score | None = None
    error: str = ""
    labels: Labels | None = None
    reported: float | None = None
    trouble: str = ""
    lost: float | None = None
    ranks: dict[str, int] = field(default_factory=dict)
    between: Between | None = None
    kept: int | None = None
    kept_score: Score | None = None
    card: str = ""

    @property
    def all_forwards(self) -> int:
        """Layer-forwards of training, labelling and the gate."""
        labels = self.labels
        return self.layer_forwards + (labels.looking.forwards if labels else 0)


@dataclass(frozen=True)
class Result:
    """An experiment and all its rows so far.

    Attributes:
        experiment: What was run.
        rows: One per round and arm.
        parts: The federated rounds before it, where every client trained for itself after them.
    """

    experiment: Experiment
    rows: tuple[Row, ...] = field(default=())
    parts: tuple["Result", ...] = field(default=())

    def curve(self) -> list[tuple[int, Score]]:
        """(round, score of all test texts) where every arm has been scored by then."""
        arms = {row.arm for row in self.rows}
        latest: dict[str, Score] = {}
        found: dict[int, Score] = {}
        for row in sorted(self.rows, key=lambda row: row.round_index):
            if row.score is not None:
                latest[row.arm] = row.score
                if len(latest) == len(arms):
                    found[row.round_index] = pooled(list(latest.values()))
        return list(found.items())

    def final(self) -> Score:
        """The last score: each test text answered once, by the shared adapter or its owner's.

        Of an arm that keeps its best adapter it is that one's, of one that found none its last.
        """
        last = {row.arm: row for row in self.rows}  # rows come in the order of their arm
        if all(row.kept is None for row in last.values()):
            return self.curve()[-1][1]
        return pooled([one for one in map(self._ended, last.values()) if one is not None])

    def _ended(self, last: Row) -> Score | None:
        if last.kept_score is not None:
            return last.kept_score
        own = [row for row in self.rows if row.arm == last.arm and row.score is not None]
        found = {row.round_index: row.score for row in own}
        return found.get(max(found, default=0) if last.kept is None else last.kept)

    @property
    def accuracy(self) -> float:
        """Share of right answers among all test texts, in the end."""
        return self.final().accuracy

    @property
    def balanced(self) -> float | None:
        """The same with each language's prior taken off the answers; None where nobody counted."""
        tally = self.final().balanced
        return tally.share if tally else None

    @property
    def mean_of_languages(self) -> float:
        """Mean of the languages' accuracies, in the end; of all texts where none is named."""
        shares = [tally.share for tally in self.final().by_language.values()]
        return sum(shares) / len(shares) if shares else self.accuracy

    def failures(self) -> tuple[int, int, str]:
        """Client-rounds that failed, all that were asked, and the first reason."""
        failed = sum(row.failed for row in self.rows)
        reason = next((row.error for row in self.rows if row.error), "")
        return failed, sum(row.clients for row in self.rows), reason

    def total(self, name: str) -> float:
        """Sum of a figure over all rows, such as `bytes_up`, and of the rounds before it.

        Of rounds that are the beginning of others the longest count. Where every group of
        languages has rounds that the others train, each client goes on from one: their mean counts.
        """
        own = float(sum(getattr(row, name) for row in self.rows))
        longest: dict[Experiment, Result] = {}
        for part in sorted(self.parts, key=lambda part: part.experiment.rounds):
            longest[replace(part.experiment, name="rounds", rounds=1)] = part
        groups = self.experiment.personal.groups if self.experiment.personal else 0
        before = sum(part.total(name) for part in longest.values())
        return own + before / max(1, groups)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for a single value."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5

"""An experiment's results on disk: one row a round, and the adapter to go on from.

    OUT/KEY/experiment.json     what was run
    OUT/KEY/rows.jsonl          one row a round and arm, written when the round is closed
    OUT/KEY/ARM.HASH.safetensors  the adapter of each arm's last row

An adapter is on disk before its row, and the one before goes after it; so a killed run goes on
where its last whole row ends, and a finished one is not run again.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from edge_client.state import write_atomically
from edge_client.wire import sha256
from simulation.experiment import Experiment
from simulation.federation import Round, Standing
from simulation.scoring import Score

ROWS = "rows.jsonl"


class RecordError(ValueError):
    """Results on disk that cannot be gone on from; names the file."""


@dataclass(frozen=True)
class Row:
    """One round of one arm, as it is written; units are those of `federation.Round`.

    Attributes:
        arm: The client that trained for itself; empty where all trained together.
        round_index: 1-based; 0 is the evaluation before any training.
        clients: Clients asked.
        failed: Of those, who could not train.
        num_examples: Texts trained on.
        loss: Mean training loss, nats.
        bytes_down: Adapters handed out, encoded.
        bytes_up: Updates handed in, encoded.
        layer_forwards: Of training, all clients together; see `simulation.compute`.
        train_s: Seconds of training and aggregation on this machine (measured).
        adapter_sha256: The adapter after it.
        evaluated: The last round whose adapter was scored, -1 for none.
        score: Of this adapter, where it was scored.
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


@dataclass(frozen=True)
class Result:
    """An experiment and all its rows so far."""

    experiment: Experiment
    rows: tuple[Row, ...] = field(default=())

    def curve(self) -> list[tuple[int, float]]:
        """(round, accuracy) where it was scored; of several arms the mean of those scored."""
        found: dict[int, list[float]] = {}
        for row in self.rows:
            if row.score is not None:
                found.setdefault(row.round_index, []).append(row.score.accuracy)
        return [(index, sum(shares) / len(shares)) for index, shares in sorted(found.items())]

    def last(self) -> list[tuple[str, Score]]:
        """Each arm's last score."""
        scores = {row.arm: row.score for row in self.rows if row.score is not None}
        return list(scores.items())

    @property
    def accuracy(self) -> float:
        """Accuracy in the end; of several arms the mean, each on its own client's test texts."""
        shares = [score.accuracy for _, score in self.last()]
        return sum(shares) / len(shares)

    def by_language(self) -> dict[str, float]:
        """Accuracy in the end by language; a silo that trained alone answers for its own."""
        if len(self.last()) == 1:
            return self.last()[0][1].by_language
        return {arm: score.accuracy for arm, score in self.last()}

    def total(self, name: str) -> float:
        """Sum of a figure over all rows, such as `bytes_up`."""
        return float(sum(getattr(row, name) for row in self.rows))


class Record:
    """One experiment's folder.

    Args:
        folder: `OUT/KEY`; made where it is not there.
        experiment: Written down for people.
    """

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self._folder, self._experiment = folder, experiment
        folder.mkdir(parents=True, exist_ok=True)
        said = json.dumps(asdict(experiment), indent=2, sort_keys=True)
        write_atomically(folder / "experiment.json", f"{said}\n".encode())
        self._rows = read_rows(folder)
        lines = "".join(f"{json.dumps(asdict(row))}\n" for row in self._rows)
        write_atomically(folder / ROWS, lines.encode())  # without a row that was cut short

    @property
    def result(self) -> Result:
        """What is here so far."""
        return Result(self._experiment, tuple(self._rows))

    def standing(self, arm: str) -> Standing | None:
        """Where an arm's rounds ended, None if they have not begun.

        Raises:
            RecordError: The adapter of its last row is not there or altered.
        """
        rows = [row for row in self._rows if row.arm == arm]
        if not rows:
            return None
        path = self._adapter(arm, rows[-1].adapter_sha256)
        body = path.read_bytes() if path.is_file() else b""
        if sha256(body) != rows[-1].adapter_sha256:
            raise RecordError(f"{path} is missing or altered; delete {self._folder} to run again")
        return Standing(body, rows[-1].round_index, rows[-1].evaluated)

    def add(self, arm: str, closed: Round, layer_forwards: int, keep_clients: bool) -> None:
        """Write a round down.

        Args:
            arm: Who trained for itself, or empty.
            closed: The round.
            layer_forwards: Of its training.
            keep_clients: Whether the score by client is kept.
        """
        body, name = closed.standing.adapter, sha256(closed.standing.adapter)
        scored = closed.score
        if scored is not None and not keep_clients:
            scored = Score(
                scored.num_examples, scored.accuracy, scored.loss, scored.by_language, {}
            )
        row = Row(
            arm=arm,
            round_index=closed.round_index,
            clients=len(closed.cohort),
            failed=len(closed.errors),
            num_examples=closed.num_examples,
            loss=closed.loss,
            bytes_down=closed.bytes_down,
            bytes_up=closed.bytes_up,
            layer_forwards=layer_forwards,
            train_s=closed.train_s,
            adapter_sha256=name,
            evaluated=closed.standing.evaluated,
            score=scored,
        )
        before = [old for old in self._rows if old.arm == arm]
        write_atomically(self._adapter(arm, name), body)
        with (self._folder / ROWS).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(row))}\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows.append(row)
        if before and before[-1].adapter_sha256 != name:
            self._adapter(arm, before[-1].adapter_sha256).unlink(missing_ok=True)

    def _adapter(self, arm: str, name: str) -> Path:
        return self._folder / f"{arm or 'all'}.{name[:12]}.safetensors"


def read_rows(folder: Path) -> list[Row]:
    """The whole rows of a folder; a last one that was cut short is left out.

    Raises:
        RecordError: A line is no row.
    """
    path = folder / ROWS
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(msgspec.json.decode(line, type=Row))
        except msgspec.DecodeError as error:
            raise RecordError(
                f"{path}, line {number}: no row of an experiment; delete {folder} to run it again"
            ) from error
    return rows


def read_result(folder: Path, experiment: Experiment) -> Result:
    """What a folder holds of an experiment."""
    return Result(experiment, tuple(read_rows(folder)))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for a single value."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5

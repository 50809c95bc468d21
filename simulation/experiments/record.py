"""An experiment's results on disk: a row per round and arm, summaries, the adapter to resume from.

    OUT/KEY/experiment.json     what was run
    OUT/KEY/lock                held by the process that runs it
    OUT/KEY/rows.jsonl          one row per round and arm, written when the round is closed
    OUT/KEY/ARM.HASH.safetensors  the adapter of each arm's last row
    OUT/KEY/ARM.HASH.memory     the server's and clients' state at that row
    OUT/KEY/finished            nothing is left to run
    OUT/KEY/base                while it runs: a base trained by another experiment

An adapter is on disk before its row, and its predecessor is removed after it; so a killed run
resumes where its last complete row ends, and a finished one is not run again.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import msgspec

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.files import from_json, lock, write_atomically
from smidgen.edge_client.wire.tensors import sha256
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.federation.devices import Figures, Looking, Round, Standing
from smidgen.simulation.experiments.federation.resume import recalled
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


@dataclass(frozen=True, kw_only=True)
class Row(Figures):
    """One round of one arm, as it is written.

    Attributes:
        arm: The client that trained for itself; empty where all trained together.
        clients: Clients asked.
        failed: Clients of those that could not train.
        adapter_sha256: The adapter after it.
        evaluated: The last round whose adapter was scored, -1 for none.
        error: What the first client that failed said; empty if none did.
        labels: The label step before it, if there was one.
        card: Name of the CUDA device that computed it; empty: the processor did.
    """

    arm: str
    clients: int
    failed: int = 0
    adapter_sha256: str
    evaluated: int
    error: str = ""
    labels: Labels | None = None
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


ROWS, FINISHED, BASE = "rows.jsonl", "finished", "base"


class RecordError(WrongInput):
    """Results on disk that cannot be gone on from; names the file."""


class Record:
    """One experiment's folder, for one process at a time; use it in a `with` block.

    Args:
        folder: `OUT/KEY`; made where it is not there.
        experiment: What is run.
        card: Name of the CUDA device that computes; empty: the processor does.
        facts: What else the numbers come from, written beside it for people.

    Raises:
        RecordError: Another process has it, or a row in it is damaged.
    """

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        card: str = "",
        facts: Mapping[str, object] | None = None,
    ) -> None:
        self._folder, self._experiment, self._card = folder, experiment, card
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        try:
            lock(self._lock)
        except BlockingIOError as error:
            self._lock.close()
            raise RecordError(f"another process runs the experiment in {folder}") from error
        if not self.is_finished:
            said = json.dumps(asdict(experiment) | dict(facts or {}), indent=2, sort_keys=True)
            write_atomically(folder / "experiment.json", f"{said}\n".encode())
        self._rows = read_rows(folder)
        self._last = {row.arm: row for row in self._rows}
        path = folder / ROWS
        if path.is_file() and not path.read_bytes().endswith(b"\n"):  # a row that was cut short
            lines = "".join(f"{_line(row)}\n" for row in self._rows)
            write_atomically(path, lines.encode())
        self._sweep()

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *_raised: object) -> None:
        self._lock.close()

    def _sweep(self) -> None:
        """Adapters that no arm's last row names were on their way when somebody was killed."""
        named = {self._adapter(arm, row.adapter_sha256) for arm, row in self._last.items()}
        named |= {memory_of(self._folder, row) for row in self._last.values()}
        for kind in ("safetensors", "memory"):
            for path in self._folder.glob(f"*.{kind}*"):
                if path not in named:
                    path.unlink()

    @property
    def result(self) -> Result:
        return Result(self._experiment, tuple(self._rows))

    @property
    def base(self) -> Path:
        """Where weights that another experiment taught may lie while this one runs."""
        return self._folder / BASE

    @property
    def is_finished(self) -> bool:
        return (self._folder / FINISHED).is_file()

    def begin_anew(self) -> None:
        """Forget all rows, where going on would give other numbers than running through."""
        write_atomically(self._folder / ROWS, b"")
        self._rows, self._last = [], {}
        self._sweep()

    def finish(self) -> None:
        """Say that nothing is left to run; patience may end rounds before their number."""
        write_atomically(self._folder / FINISHED, b"")

    def standing(self, arm: str) -> Standing | None:
        """Where an arm's rounds ended, None if they have not begun.

        Raises:
            RecordError: The adapter of its last row is not there or altered.
        """
        last = self._last.get(arm)
        if last is None:
            return None
        body, beside = adapter_of(self._folder, last), memory_of(self._folder, last)
        memory = beside.read_bytes() if beside.is_file() else b""
        if not memory:
            raise RecordError(f"{beside} is missing; delete {self._folder} to run again")
        return Standing(body, last.round_index, last.evaluated, memory)

    def add(self, arm: str, closed: Round, keep_clients: bool, held: Tally | None = None) -> None:
        """Write a round down.

        Nothing travels but where clients train together: elsewhere no bytes are charged.

        Args:
            arm: Who trained for itself, or empty.
            closed: The round.
            keep_clients: Whether the score by client is kept.
            held: Right ones among the pseudo-labels, where it had a label step.
        """
        body, name = closed.standing.adapter, sha256(closed.standing.adapter)
        scored, is_sent = closed.score, self._experiment.paradigm == "federated"
        kept_score = closed.kept_score
        if not keep_clients:
            scored = scored and scored.without_clients()
            kept_score = kept_score and kept_score.without_clients()
        told = {one.name: getattr(closed, one.name) for one in fields(Figures)} | {
            "loss": closed.loss if closed.loss is not None and math.isfinite(closed.loss) else None,
            "bytes_down": closed.bytes_down if is_sent else 0,
            "bytes_up": closed.bytes_up if is_sent else 0,
            "score": scored,
            "ranks": dict(closed.ranks),
            "kept_score": kept_score,
        }
        row = Row(
            **told,
            arm=arm,
            clients=len(closed.cohort),
            failed=len(closed.errors),
            adapter_sha256=name,
            evaluated=closed.standing.evaluated,
            error=next(iter(closed.errors.values()), ""),
            labels=Labels(closed.looking, held) if closed.looking and held else None,
            card=self._card,
        )
        before = self._last.get(arm)
        if closed.standing.memory:
            write_atomically(memory_of(self._folder, row), closed.standing.memory)
        write_atomically(self._adapter(arm, name), body)
        with (self._folder / ROWS).open("a", encoding="utf-8") as file:
            file.write(f"{_line(row)}\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows.append(row)
        self._last[arm] = row
        if before is None:
            return
        if before.adapter_sha256 != name:
            self._adapter(arm, before.adapter_sha256).unlink(missing_ok=True)
        if before.round_index != row.round_index:
            memory_of(self._folder, before).unlink(missing_ok=True)

    def _adapter(self, arm: str, name: str) -> Path:
        return _adapter_in(self._folder, arm, name)


def _adapter_in(folder: Path, arm: str, name: str) -> Path:
    return folder / f"{arm or 'all'}.{name[:12]}.safetensors"


def adapter_of(folder: Path, row: Row) -> bytes:
    """The adapter of an arm's last row, encoded.

    Raises:
        RecordError: It is not there or altered.
    """
    path = _adapter_in(folder, row.arm, row.adapter_sha256)
    body = path.read_bytes() if path.is_file() else b""
    if sha256(body) != row.adapter_sha256:
        raise RecordError(f"{path} is missing or altered; delete {folder} to run again")
    return body


def kept_adapter(folder: Path, row: Row) -> bytes:
    """The adapter that an arm ends with, by its last row: that row's, or the best one, encoded.

    Raises:
        RecordError: It is not there or altered.
    """
    last = adapter_of(folder, row)
    if row.kept is None:
        return last
    return recalled(memory_of(folder, row).read_bytes()).good_adapter


def memory_of(folder: Path, row: Row) -> Path:
    """By its round: a round may leave the adapter as it was, and what is known is another then."""
    adapter = _adapter_in(folder, row.arm, row.adapter_sha256)
    return adapter.with_suffix(f".{row.round_index}.memory")


def read_rows(folder: Path) -> list[Row]:
    """Read a folder's complete rows; a last one that was cut short is left out.

    Raises:
        RecordError: A line is not a row.
    """
    path = folder / ROWS
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(from_json(line, Row))
        except msgspec.DecodeError as error:
            raise RecordError(
                f"{path}, line {number}: not an experiment's row; delete {folder} to run it again"
            ) from error
    return rows


def _line(row: Row) -> str:
    return json.dumps(asdict(row), allow_nan=False)

"""An experiment's results on disk: one row per round, and the adapter to resume from.

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
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.files import from_json, lock, write_atomically
from smidgen.edge_client.wire.tensors import sha256
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.federation.devices import Round, Standing
from smidgen.simulation.experiments.federation.resume import recalled
from smidgen.simulation.experiments.result import Labels, Result, Row
from smidgen.simulation.experiments.scoring import Tally

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
        loss = closed.loss
        row = Row(
            arm=arm,
            round_index=closed.round_index,
            clients=len(closed.cohort),
            failed=len(closed.errors),
            num_examples=closed.num_examples,
            loss=loss if loss is not None and math.isfinite(loss) else None,
            bytes_down=closed.bytes_down if is_sent else 0,
            bytes_up=closed.bytes_up if is_sent else 0,
            layer_forwards=closed.layer_forwards,
            train_s=closed.train_s,
            adapter_sha256=name,
            evaluated=closed.standing.evaluated,
            score=scored,
            error=next(iter(closed.errors.values()), ""),
            labels=Labels(closed.looking, held) if closed.looking and held else None,
            reported=closed.reported,
            trouble=closed.trouble,
            lost=closed.lost,
            ranks=dict(closed.ranks),
            between=closed.between,
            kept=closed.kept,
            kept_score=kept_score,
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

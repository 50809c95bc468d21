"""Limits, progress and checkpoints of a pretraining run."""

import math
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.files import sync_folder

DAMAGED = (EOFError, KeyError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError)
CHECKPOINT_EVERY_S = 120.0


class PretrainError(WrongInput):
    """A training run that cannot be started as asked."""


@dataclass(frozen=True)
class Limits:
    """How long to train: a number of steps, or of seconds (then the steps depend on the machine).

    Attributes:
        steps: Optimizer steps in all.
        seconds: Training time in all, earlier parts of a resumed run included.

    Raises:
        PretrainError: Neither or both are given, or not positive.
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = self.steps or self.seconds or 0
        if (self.steps is None) == (self.seconds is None) or not 0 < given < math.inf:
            raise PretrainError("give either --steps or --minutes, more than 0")

    def progress(self, step: int, elapsed_s: float) -> float:
        """How much of the run is done, 0 to 1."""
        done = step / self.steps if self.steps else elapsed_s / (self.seconds or 1.0)
        return min(done, 1.0)


@dataclass(frozen=True)
class Progress:
    """Where a training run stands.

    Attributes:
        step: Optimizer steps done.
        elapsed_s: Seconds of training, all parts of a resumed run together.
        progress: 0 to 1.
        loss: Mean loss of the last step, nats per mask.
    """

    step: int
    elapsed_s: float
    progress: float
    loss: float


class Checkpoint:
    """One file that a run goes on from; written every two minutes and when asked.

    Args:
        path: The file; it need not exist.
        identity: What must agree for a run to go on.
    """

    def __init__(self, path: Path, identity: Sequence[int]) -> None:
        self._path, self._identity = path, list(identity)
        self._saved = time.monotonic()

    def read(self) -> tuple[Progress, dict[str, Any]] | None:
        """Where the run stood, and its parts; None where there is no file.

        Raises:
            PretrainError: The file is of another run.
        """
        if not self._path.is_file():
            return None
        todo = "delete it or choose another --out"
        try:
            state = torch.load(self._path, map_location="cpu", weights_only=True)
            identity, (step, elapsed_s, progress, loss) = state["identity"], state["run"]
        except DAMAGED as error:
            raise PretrainError(f"{self._path} is no whole checkpoint; {todo}") from error
        if identity != self._identity:
            raise PretrainError(
                f"{self._path} is of a run with other texts, steps, teacher or seed; {todo}"
            )
        return Progress(int(step), float(elapsed_s), float(progress), float(loss)), state

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._saved > CHECKPOINT_EVERY_S

    def write(self, run: Progress, parts: Mapping[str, Any]) -> None:
        """Replace the file as a whole."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        stands = [run.step, run.elapsed_s, run.progress, run.loss]
        with partial.open("wb") as file:
            torch.save({"identity": self._identity, "run": stands, **parts}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        sync_folder(self._path.parent)
        self._saved = time.monotonic()

"""A real client that is asked for updates with noise for each text, by a scripted coordinator."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import Next, StepOrder, decode, encode
from smidgen.edge_client.wire.tensors import decode_update
from smidgen.edge_client.wire.training import Training
from tests.edge_client.client.servers import Answer
from tests.edge_client.client.test_new_texts import Script, mine, nothing, task

__all__ = ["mine", "task"]  # fixtures
SAID = (
    "each text's gradient is clipped to 0.01, and noise of 20 times that is added to a step's sum: "
    "epsilon 8 at delta 1e-05 for each text"
)
SGD = Training(epochs=1, batch=2, lr=0.1, tokens=32, optimizer="sgd")


class Noisy(Script):
    """Asks for DP-SGD in each round."""

    def next_work(self) -> Answer:
        status, body = super().next_work()
        work = decode(body, Next).work
        if work is None:
            return status, body
        updates = (StepOrder("dp-text:0.01:20.0:8.0:1e-05", 0),)
        return 200, encode(Next(work=replace(work, training=SGD, updates=updates)))


def flat(body: bytes) -> np.ndarray:
    delta = decode_update(body).delta
    return np.concatenate([delta[name].ravel() for name in sorted(delta)])


def test_a_device_adds_noise_of_its_own_secret_and_tells_no_loss(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With unit `text` updates have noise before they leave, and no training loss is reported."""
    caplog.set_level(logging.INFO)
    script = Noisy(tiny_base, task, [("train", nothing)] * 2)
    reports = script.run(tmp_path)
    assert [(one.outcome, one.loss) for one in reports] == [("done", None)] * 2
    assert caplog.messages.count(SAID) == 2
    key = tmp_path / "state" / "noise.key"
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) == 129
    first, again = (flat(body) for body in script.updates)
    # One step on two texts: lr 0.1 times 20 x 0.01 / 2, where the gradient is 0.005 long at most.
    assert 0.7 < first.std() / (0.1 * 20.0 * 0.01 / 2) < 1.3
    assert np.array_equal(first, again)  # of the same adapter, texts and order: a repetition
    key.unlink()
    other = Noisy(tiny_base, task, [("train", nothing)])
    (tmp_path / "other").mkdir()
    other.run(tmp_path)
    assert abs(np.corrcoef(first, flat(other.updates[0]))[0, 1]) < 6.0 / np.sqrt(first.size)

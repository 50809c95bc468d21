"""A real client that is handed training with control variates, by a scripted coordinator."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.scaffold import change_of
from smidgen.edge_client.wire.messages import Next, StepOrder, decode, encode
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    decode_adapter,
    decode_update,
    encode_adapter,
    sha256,
)
from smidgen.edge_client.wire.training import Training
from tests.edge_client.client.servers import Answer
from tests.edge_client.client.test_new_texts import Script, mine, nothing, task

__all__ = ["mine", "task"]  # fixtures
SGD = Training(epochs=2, batch=2, lr=0.1, tokens=32, optimizer="sgd", scaffold=True)


@dataclass
class Scaffolded(Script):
    """Says which round of the device counted last, as `counted` has it, and hands out c.

    Attributes:
        counted: By work.
        fetched: Names of what was asked for by hash.
        kept: The device's files when it asked for work.
    """

    counted: tuple[int, ...] = (0, 0, 0)
    fetched: list[str] = field(default_factory=list)
    kept: list[list[str]] = field(default_factory=list)
    folder: Path = Path()

    @property
    def control(self) -> bytes:
        state = decode_adapter(self.adapter)
        return encode_adapter({name: np.full_like(one, 1e-3) for name, one in state.items()})

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        if path.startswith("/v1/adapters/"):
            self.fetched.append(path.rsplit("/", 1)[1])
            if self.fetched[-1] == sha256(self.control):
                return 200, self.control
        return super().answer(method, path, body)

    def next_work(self) -> Answer:
        files = (self.folder / "state" / "updates" / "run").glob("*")
        self.kept.append(sorted(path.name for path in files))
        status, body = super().next_work()
        work = decode(body, Next).work
        if work is None:
            return status, body
        order = StepOrder("scaffold", self.counted[work.round_index - 1])
        if work.round_index > 1:
            known = {"shared_sha256": sha256(self.control), "shared_bytes": len(self.control)}
            order = replace(order, **known)  # type: ignore[arg-type]
        return 200, encode(Next(work=replace(work, training=SGD, updates=(order,))))


def test_a_device_goes_on_from_the_variate_that_counted(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    script = Scaffolded(tiny_base, task, [("train", nothing)] * 4)
    script.folder, script.counted = tmp_path, (0, 0, 2, 2)  # the first came too late
    assert [one.outcome for one in script.run(tmp_path)] == ["done"] * 4
    assert script.kept[-5:-1] == [["1.st"], ["2.st"], ["2.st", "3.st"], ["2.st", "4.st"]]
    updates = [decode_update(body) for body in script.updates]
    assert [one.steps for one in updates] == [2] * 4
    deltas = [encode_adapter(one.delta) for one in updates]
    assert len(set(deltas)) == 3 and deltas[2] == deltas[3]  # one batch: its order says nothing
    assert set(script.fetched) == {sha256(script.adapter), sha256(script.control)}
    assert len(script.fetched) == 2  # once each: both are kept
    assert not (tmp_path / "state" / "updates" / "run").exists()  # the run is over


def test_what_a_device_keeps_is_what_its_coordinator_makes_of_its_update(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    seen = list[bytes | None]()

    def look() -> None:
        state = ClientState(tmp_path / "state")
        seen.append(state.updates.of("run", len(seen), "scaffold"))

    script = Scaffolded(tiny_base, task, [("train", look)] * 3)
    script.folder, script.counted = tmp_path, (0, 1, 2)
    script.run(tmp_path)
    before: AdapterState = {}
    for index, body in enumerate(script.updates[:2]):
        update, c = decode_update(body), decode_adapter(script.control) if index else {}
        change = change_of(c, update.delta, update.steps, SGD.lr)
        for name, one in change.items():
            before[name] = (before.get(name, 0.0) + one).astype(np.float32)
        found = decode_adapter(seen[index + 1] or b"")
        assert all((found[name] == tensor).all() for name, tensor in before.items())


def test_a_device_whose_variate_is_lost_trains_plainly_and_says_no_steps(
    tiny_base: Base,
    task: Task,
    mine: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Scaffolded(tiny_base, task, [("train", nothing)] * 2)
    script.folder, script.counted = tmp_path, (0, 7)
    assert [one.outcome for one in script.run(tmp_path)] == ["done"] * 2
    assert [decode_update(body).steps for body in script.updates] == [2, 0]
    assert "scaffold: what it kept of round 7 is lost" in caplog.text


def test_a_control_variate_of_another_adapter_is_a_failure_and_no_more(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    class Wrong(Scaffolded):
        @property
        def control(self) -> bytes:
            return encode_adapter({"another": np.ones(3, np.float32)})

    script = Wrong(tiny_base, task, [("train", nothing)] * 2)
    script.folder, script.counted = tmp_path, (0, 1)
    script.grace_s = 60.0
    found = [(one.outcome, one.failure) for one in script.run(tmp_path)]
    assert found == [("done", None), ("failed", "transfer")]

"""A real client that is handed training with control variates, by a scripted coordinator."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from edge_client.bases.base import Base
from edge_client.client.state import ClientState
from edge_client.tasks.task import Task
from edge_client.wire.control import Held
from edge_client.wire.messages import Next, decode, encode
from edge_client.wire.tensors import decode_adapter, decode_update, encode_adapter, sha256
from edge_client.wire.training import Training
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
        files = (self.folder / "state" / "controls" / "run").glob("*")
        self.kept.append(sorted(path.name for path in files))
        status, body = super().next_work()
        work = decode(body, Next).work
        if work is None:
            return status, body
        said = {"training": SGD, "control_round": self.counted[work.round_index - 1]}
        if work.round_index > 1:
            said |= {"control_sha256": sha256(self.control), "control_bytes": len(self.control)}
        return 200, encode(Next(work=replace(work, **said)))  # type: ignore[arg-type]


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
    assert not (tmp_path / "state" / "controls" / "run").exists()  # the run is over


def test_what_a_device_keeps_is_what_its_coordinator_makes_of_its_update(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    seen = list[bytes | None]()

    def look() -> None:
        state = ClientState(tmp_path / "state")
        seen.append(state.controls.own("run", len(seen)))

    script = Scaffolded(tiny_base, task, [("train", look)] * 3)
    script.folder, script.counted = tmp_path, (0, 1, 2)
    script.run(tmp_path)
    before, held = b"", Held()
    for index, body in enumerate(script.updates[:2]):
        update = decode_update(body)
        held = Held(script.control if index else b"", before)
        before = encode_adapter(held.own_after(update.delta, update.steps, SGD.lr))
        assert seen[index + 1] == before


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
    assert "the control variate of round 7 is lost" in caplog.text


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

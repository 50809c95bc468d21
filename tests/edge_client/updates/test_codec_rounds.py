"""A real client that is asked for coded updates, by a scripted coordinator."""

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.states import StepInputs, steps_of
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.messages import PROTOCOL, Next, StepOrder, Work, decode, encode
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    UpdateHeader,
    decode_adapter,
    decode_update,
    header_of,
    shapes_of,
)
from smidgen.edge_client.wire.training import Training
from tests.edge_client.client.servers import Answer
from tests.edge_client.client.test_new_texts import Script, mine, nothing, task

__all__ = ["mine", "task"]  # fixtures


@dataclass
class Coded(Script):
    """Says which round of the device counted last, as `counted` has it.

    Attributes:
        counted: By work.
        codec: What is asked for.
        kept: The device's files when it asked for work.
    """

    counted: tuple[int, ...] = (0, 0, 0)
    codec: str = "int4"
    kept: list[list[str]] = field(default_factory=list)
    folder: Path = Path()

    def next_work(self) -> Answer:
        files = (self.folder / "state" / "updates" / "run").glob("*")
        self.kept.append(sorted(path.name for path in files))
        status, body = super().next_work()
        work = decode(body, Next).work
        if work is None:
            return status, body
        before = self.counted[work.round_index - 1]
        orders = (StepOrder(f"codec:{self.codec}", before),)
        return 200, encode(Next(work=replace(work, updates=orders)))

    def delta(self, index: int) -> AdapterState:
        """An update as the coordinator has it."""
        return decode_update(self.updates[index], shapes_of(decode_adapter(self.adapter))).delta


def test_what_an_update_left_out_goes_into_the_next_if_that_one_counted(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    script = Coded(tiny_base, task, [("train", nothing)] * 4, codec="topk:0.1")
    script.folder, script.counted = tmp_path, (0, 0, 2, 2)  # the first came too late
    assert [one.outcome for one in script.run(tmp_path)] == ["done"] * 4
    assert script.kept[-5:-1] == [["1.st"], ["2.st"], ["2.st", "3.st"], ["2.st", "4.st"]]
    # AdamW steps all alike: what was left out once makes an update twice as high, not three times.
    peaks = [max(np.abs(one).max() for one in script.delta(index).values()) for index in range(4)]
    np.testing.assert_allclose(np.array(peaks) / peaks[0], [1.0, 1.0, 2.0, 2.0], rtol=0.1)
    assert not (tmp_path / "state" / "updates" / "run").exists()  # the run is over


def test_two_coded_updates_are_what_two_plain_ones_are_but_for_what_is_left(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    seen = list[bytes | None]()

    def look() -> None:
        seen.append(ClientState(tmp_path / "coded" / "state").updates.of("run", len(seen), "codec"))

    coded = Coded(tiny_base, task, [("train", look)] * 3)
    coded.folder, coded.counted = tmp_path / "coded", (0, 1, 2)
    plain = Coded(tiny_base, task, [("train", nothing)] * 3, codec="float32")
    for script, folder in ((coded, "coded"), (plain, "plain")):
        shutil.copytree(mine, tmp_path / folder / mine.name)
        script.run(tmp_path / folder)
    left = decode_adapter(seen[2] or b"")
    for name, tensor in left.items():
        sent, whole = (
            sum(script.delta(index)[name] for index in range(2)) for script in (coded, plain)
        )
        np.testing.assert_allclose(sent + tensor, whole, atol=1e-7)
        assert not name.endswith("B.weight") or np.abs(sent - whole).max() > 0.0
    sizes = [len(script.updates[0]) for script in (coded, plain)]
    assert sizes[0] < 0.2 * sizes[1]  # of a tiny adapter, whose header counts


def test_auto_takes_what_the_link_carries_and_leaves_nothing_behind(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    rates = iter((30.0, 1e9, None, None))  # bytes per second, as if sent between the works

    def act() -> None:
        path = tmp_path / "state" / "link.json"
        path.unlink(missing_ok=True)
        if rate := next(rates):
            path.write_bytes(b'{"bytes_per_s": %f}' % rate)

    auto = Coded(tiny_base, task, [("train", act)] * 4, codec="auto")
    auto.folder, auto.counted = tmp_path, (0, 1, 2, 3)
    assert [one.outcome for one in auto.run(tmp_path)] == ["done"] * 4
    said = [decode(header_of(body), UpdateHeader).codec for body in auto.updates]
    assert said == ["int4", "float32", "int8", "int8"]
    assert len(auto.adapter) * 0.27 > 30 * 10  # so the first link is too slow for int8
    assert auto.kept[-4:-1] == [["1.st", "2.st"], ["2.st", "3.st"], ["3.st", "4.st"]]


def test_what_is_kept_of_another_run_is_dropped_in_one_line(
    task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    start = "lora:2", "a" * 64, 9, task, Training()
    work = Work(PROTOCOL, "w", "train", "run", 1, "b", *start, seed=0)
    work = replace(work, updates=(StepOrder("codec:topk:0.25", 1),))
    context = DeviceContext(work.training, 1)
    update = Update("w", 1, {"x": np.linspace(1, 2, 4, dtype=np.float32)})
    first = steps_of(work, None)
    sent = first.outgoing(update, context)
    states = first.states()
    again = steps_of(work, StepInputs(states)).outgoing(update, context)
    assert sent.delta["x"].tolist() == [0, 0, 0, 2] and again.delta["x"].max() > 3
    assert not caplog.records
    others = (replace(work, adapter_spec="bias"), replace(work, run_id="other"))
    for index, other in enumerate(others, 1):
        found = steps_of(other, StepInputs(states)).outgoing(update, context)
        assert (found.delta["x"] == sent.delta["x"]).all() and len(caplog.records) == index
        said = caplog.records[-1].getMessage()
        assert said.startswith("update step codec: ") and "\n" not in said
        assert f"of adapter {work.adapter_spec} in run {work.run_id}" in said
        assert said.endswith("it is dropped")
    steps_of(work, StepInputs({"codec": b"x"}))
    longer = Update("w", 1, {"x": np.ones(5, np.float32)})
    steps_of(work, StepInputs(states)).outgoing(longer, context)
    assert len(caplog.records) == 4

"""A real client that is led from adapter to adapter by coded steps, by a scripted coordinator."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import CodedStep, Next, decode, encode
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    add_step,
    decode_adapter,
    encode_adapter,
    encode_step,
    sha256,
)
from tests.edge_client.client.servers import Answer
from tests.edge_client.client.terms import over
from tests.edge_client.client.test_new_texts import Script, mine, nothing, task

__all__ = ["mine", "task"]  # fixtures
VERSIONS = 5


@dataclass
class Led(Script):
    """Hands out adapters by their versions, and tells of the steps that lead there.

    Attributes:
        asked: Version of each work.
        told: How many steps each work tells of.
        wrong: What becomes of a step's bytes on the way; by default nothing.
        fetched: What was asked for by hash: `whole-2`, or `step-2`, which leads there.
    """

    asked: tuple[int, ...] = (0, 1, 2)
    most: int = 8
    wrong: Callable[[bytes], Answer] = lambda body: (200, body)
    fetched: list[str] = field(default_factory=list)

    @cached_property
    def versions(self) -> tuple[list[bytes], list[bytes]]:
        """Adapters, and the steps that lead to each but the first."""
        draws, left = np.random.Generator(np.random.PCG64(3)), AdapterState()
        wholes, steps = [self.adapter], [b""]
        for _ in range(VERSIONS - 1):
            before = decode_adapter(wholes[-1])
            after = {
                key: one + (draws.standard_normal(one.shape) * 1e-2).astype(np.float32)
                for key, one in sorted(before.items())
            }
            known = before, after, "int4", left
            step, found, left = encode_step(*known, sha256(wholes[-1]))
            wholes.append(encode_adapter(found))
            steps.append(step)
        return wholes, steps

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        if not path.startswith("/v1/adapters/"):
            return super().answer(method, path, body)
        name, (wholes, steps) = path.rsplit("/", 1)[1], self.versions
        for version, found in enumerate(wholes):
            if sha256(found) == name:
                self.fetched.append(f"whole-{version}")
                return 200, found
        [version] = [at for at, one in enumerate(steps) if sha256(one) == name]
        self.fetched.append(f"step-{version}")
        return self.wrong(steps[version])

    def next_work(self) -> Answer:
        status, body = super().next_work()
        given = decode(body, Next)
        wholes, steps = self.versions
        if given.over is not None:
            return status, encode(Next(over=over(sha256(wholes[self.asked[-1]]))))
        if given.work is None:
            return status, body
        version = self.asked[given.work.round_index - 1]
        ways = [
            CodedStep(sha256(wholes[at - 1]), sha256(steps[at]), len(steps[at]))
            for at in range(1, version + 1)
        ]
        name = wholes[version]
        told = tuple(ways[max(0, len(ways) - self.most) :])
        known = {"adapter_sha256": sha256(name), "adapter_bytes": len(name), "steps": told}
        return 200, encode(Next(work=replace(given.work, **known)))  # type: ignore[arg-type]


def led(base: Base, task: Task, asked: tuple[int, ...]) -> Led:
    script = Led(base, task, [("train", nothing)] * len(asked))
    script.asked = asked
    return script


def test_a_device_that_holds_the_last_adapter_fetches_the_step_alone(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    script = led(tiny_base, task, (0, 1, 1, 2))
    assert [one.outcome for one in script.run(tmp_path)] == ["done"] * 4
    assert script.fetched == ["whole-0", "step-1", "step-2"]
    wholes, steps = script.versions
    spent = [one.cost.payload_down_bytes for one in script.told]
    works = [spent[0] - len(wholes[0]), spent[1] - len(steps[1]), spent[2], spent[3]]
    assert spent[3] - spent[2] == pytest.approx(len(steps[2]), abs=300)  # and what it is told
    assert all(0 < one < 8000 for one in works[:3])


def test_what_a_device_trains_on_is_the_same_whatever_the_way_it_came(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    by_steps, whole = (led(tiny_base, task, (0, 1, 4)) for _ in range(2))
    whole.most = 0
    for script, name in ((by_steps, "steps"), (whole, "whole")):
        (tmp_path / name).mkdir()
        (tmp_path / name / mine.name).symlink_to(mine)
        script.run(tmp_path / name)
    assert by_steps.fetched == ["whole-0", "step-1", "step-2", "step-3", "step-4"]
    assert whole.fetched == ["whole-0", "whole-1", "whole-4"]
    assert by_steps.updates == whole.updates and len(set(whole.updates)) == 3


@pytest.mark.slow
def test_a_device_that_missed_more_than_it_is_told_of_fetches_the_whole_adapter(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    script = led(tiny_base, task, (0, 4, 2))  # and back, as after a roll-back
    script.most = 3
    assert [one.outcome for one in script.run(tmp_path)] == ["done"] * 3
    assert script.fetched == ["whole-0", "whole-4", "whole-2"]


def flipped(body: bytes) -> Answer:
    return 200, body[:-1] + bytes([body[-1] ^ 1])


WRONG: dict[str, tuple[Callable[[bytes], Answer], str, int]] = {
    "cut": (lambda body: (200, body[:-7]), "arrived damaged", 2),
    "changed": (flipped, "arrived damaged", 2),
    "gone": (lambda body: (404, b'{"detail": "no adapter"}'), "no adapter", 1),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WRONG)
def test_a_step_that_does_not_arrive_costs_a_line_and_the_whole_adapter(
    tiny_base: Base,
    task: Task,
    mine: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    script, (wrong, said, times) = led(tiny_base, task, (0, 1)), WRONG[name]
    script.wrong = wrong
    assert [one.outcome for one in script.run(tmp_path)] == ["done"] * 2
    assert script.fetched == ["whole-0", *["step-1"] * times, "whole-1"]
    [line] = [one.getMessage() for one in caplog.records if "of no use" in one.getMessage()]
    assert "is fetched whole: the steps to it are of no use: " in line and said in line


@dataclass
class Misled(Led):
    """Tells of steps that are whole, but not what their adapter needs."""

    kind: str = ""

    @cached_property
    def versions(self) -> tuple[list[bytes], list[bytes]]:
        wholes, steps = super().versions
        before, after = decode_adapter(wholes[0]), decode_adapter(wholes[2])
        steps[1] = {
            "of another adapter": encode_step(before, after, "int8", {}, sha256(wholes[3]))[0],
            "to another adapter": encode_step(before, after, "int8", {}, sha256(wholes[0]))[0],
            "of an unknown codec": steps[1].replace(b"int4", b"zip4"),
            "no step": encode_adapter({"x": np.ones(3, np.float32)}),
            "no file": b"hello",
        }[self.kind]
        return wholes, steps


MISLED = {
    "of another adapter": "a step of adapter ",
    "to another adapter": "they lead to ",
    "of an unknown codec": "Invalid enum value 'zip4'",
    "no step": "not a StepHeader",
    "no file": "not a safetensors file",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", MISLED)
def test_a_step_that_leads_elsewhere_costs_a_line_and_the_whole_adapter(
    tiny_base: Base,
    task: Task,
    mine: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    script = Misled(tiny_base, task, [("train", nothing)] * 2, asked=(0, 1), kind=kind)
    caplog.set_level(logging.WARNING)
    assert [one.outcome for one in script.run(tmp_path)] == ["done"] * 2
    assert script.fetched == ["whole-0", "step-1", "whole-1"]
    [line] = [one.getMessage() for one in caplog.records if "of no use" in one.getMessage()]
    assert MISLED[kind] in line and "\n" not in line


@pytest.mark.slow
def test_a_kept_adapter_that_a_disk_has_changed_is_no_start(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    script = led(tiny_base, task, (0, 1, 2))
    folder = tmp_path / "state" / "adapters"

    def harm() -> None:
        for path in folder.glob("*.st"):
            path.write_bytes(flipped(path.read_bytes())[1])

    script.works[2] = ("train", harm)
    assert [one.outcome for one in script.run(tmp_path)] == ["done"] * 3
    assert script.fetched == ["whole-0", "step-1", "whole-2"]


def test_a_device_keeps_the_adapter_that_steps_led_to_and_no_step(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    script, kept = led(tiny_base, task, (0, 2, 3)), list[bytes | None]()
    wholes, steps = script.versions

    def look() -> None:
        state = ClientState(tmp_path / "state")
        kept.append(state.adapter(sha256(wholes[2])))
        assert len(list((state.folder / "adapters").iterdir())) == 1

    script.works[2] = ("train", look)
    script.run(tmp_path)
    assert kept == [wholes[2]] and add_step(add_step(wholes[0], steps[1]), steps[2]) == wholes[2]


def test_a_step_is_told_with_two_names_and_a_size() -> None:
    for wrong in (("a/b", "b", 1), ("a", "", 1), ("a", "b", -1)):
        with pytest.raises(ValueError, match=r"start_sha256|step_sha256|step_bytes"):
            CodedStep(*wrong)

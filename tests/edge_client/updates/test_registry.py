"""Update steps of other packages, found by entry points, as docs/extending.md walks through it."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.registry import _others, made, naming
from smidgen.edge_client.updates.settings import Updates, steps_of_run
from smidgen.edge_client.updates.step import UpdateStep
from smidgen.edge_client.wire.tensors import decode_adapter
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.experiments.federation.devices import Round, schedule_of
from smidgen.simulation.experiments.federation.run import federate
from smidgen.simulation.experiments.virtual.devices import InProcess
from tests.simulation.experiments.experiments import staged

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"


@pytest.fixture(autouse=True)
def _known_afresh() -> Iterator[None]:
    yield
    _others.cache_clear()
    sys.modules.pop("ward", None)


def section() -> str:
    return PAGE.read_text().split("## Add an update step")[1].split("\n## ")[0]


def installed(site: Path, body: str) -> None:
    """A package with an update step, as pip leaves it; the entry is the page's."""
    entry = re.findall(r"```toml\n(.*?)```", section(), re.DOTALL)[0]
    name, target = re.findall(r'(\w+) = "(ward:\w+)"', entry)[0]
    (site / "ward.py").write_text(body)
    sys.modules.pop("ward", None)  # another test's
    info = site / "ward-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ward\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[smidgen.update_steps]\n{name} = {target}\n")
    _others.cache_clear()


def test_the_page_s_step_goes_through_a_whole_run(
    tiny_base: Base, hub_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sign of each number and no more; what it left out comes with the next, resumed or not."""
    monkeypatch.syspath_prepend(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", section(), re.DOTALL)
    installed(tmp_path, code)
    on = staged(tiny_base, hub_task, updates=Updates(steps=("sign:0.01",)), rounds=3)
    seen, devices = list[Round](), InProcess(on)
    names = [client.name for client in on.population if len(client.labelled)]
    schedule = schedule_of(on.experiment, len(names))
    assert schedule.update_steps == ("sign:0.01",)
    last = federate(schedule, on.template(), devices.start(), names, devices, seen.append)
    start, after = (decode_adapter(one.standing.adapter) for one in seen[:2])
    steps = np.concatenate([(after[name] - one).ravel() for name, one in start.items()])
    assert np.abs(steps).max() <= 0.01 * (1 + 1e-5) and steps.any()
    again = federate(schedule, on.template(), seen[1].standing, names, devices)
    assert again.adapter == last.adapter


def test_a_step_that_is_not_installed_is_named_in_one_line() -> None:
    with pytest.raises(WrongInput, match=r"update step 'blur' is not known here \(known: codec,"):
        made(["blur:2"])


def test_a_step_that_cannot_be_made_is_named() -> None:
    with pytest.raises(WrongInput, match="update step 'proximal:much' cannot be made: could not"):
        made(["proximal:much"])


def test_a_package_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, "raise ValueError('no such dial')")
    with pytest.raises(Failed, match="package ward: its update step sign cannot be used: Value"):
        made(["sign"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def Sign(): return 3", "a subclass of UpdateStep is expected"),
        (
            "from smidgen.edge_client.updates.step import UpdateStep\n"
            "class Sign(UpdateStep):\n name = 'plus'",
            "its class has the name 'plus'",
        ),
    ],
)
def test_a_class_whose_states_would_be_lost_is_named(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, body)
    with pytest.raises(Failed, match=f"package ward: its update step sign cannot be used: {said}"):
        made(["sign"])


def test_a_step_that_stands_twice_is_named() -> None:
    with pytest.raises(WrongInput, match="update step proximal stands twice"):
        made(["proximal:0.1", "proximal:0.2"])


def test_what_a_device_s_half_raises_names_the_step() -> None:
    class Broken(UpdateStep):
        name = "broken"

    with pytest.raises(Failed, match="update step broken raised KeyError: 'x'"), naming(Broken()):
        raise KeyError("x")


def test_a_run_s_steps_stand_in_one_order() -> None:
    training = Training(optimizer="sgd", scaffold=True)
    found = steps_of_run(training, Updates("int4", steps=("sign",)), ("turns:rolora",))
    assert found == ("scaffold", "turns:rolora", "sign", "codec:int4")
    assert steps_of_run(Training(proximal=0.1), Updates()) == ("proximal:0.1",)


@pytest.mark.parametrize("step", ["scaffold", "codec:int8", "Sign", "a b", ""])
def test_a_run_file_names_other_packages_steps_alone(step: str) -> None:
    with pytest.raises(WrongInput, match="steps: "):
        Updates(steps=(step,))


def test_a_step_that_overrides_nothing_changes_nothing() -> None:
    step = UpdateStep()
    assert list(step.incoming([], None)) == [] and step.handed_out() == {}  # type: ignore[arg-type]

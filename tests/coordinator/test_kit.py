"""Our laws over our own classes, over the worked example of the docs, and over broken ones."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from smidgen.coordinator.kit import check_mean, check_optimizer, check_selection
from smidgen.coordinator.plugins import know_folder
from smidgen.coordinator.rounds.bounds import norm_of
from smidgen.coordinator.rounds.events import StepOpened
from smidgen.coordinator.rounds.extensions import Extension, PluginError, add, apart, counted
from smidgen.coordinator.rounds.learning.memory import Memory
from smidgen.coordinator.rounds.learning.registry import (
    MEANS,
    OPTIMIZERS,
    least_of,
    mean_of,
    optimizer_of,
)
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate, learn
from smidgen.coordinator.rounds.policies import SELECTIONS, selection_of
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.selection import Asking, Chosen
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState, Update

DOCS = Path(__file__).parents[2] / "docs"
OURS = ["fedavg", "trimmed:0.2", "median", "krum:1", "multikrum:1:3", "geometric"]
POLICIES = ["random", "coverage", "utility", "memory", "balance:language"]
BEARS = {"median": lambda n: (n - 1) // 2, "trimmed:0.2": lambda n: int(0.2 * n + 1e-9)}


@pytest.mark.parametrize("mean", OURS)
def test_our_means_keep_the_laws(mean: str) -> None:
    bears = BEARS.get(mean, lambda devices: 0)
    check_mean(lambda: mean_of(mean), least_of(mean), mean != "fedavg", bears, examples=30)


def test_every_mean_and_policy_of_ours_is_tried() -> None:
    assert {mean.split(":")[0] for mean in OURS} == set(MEANS)
    assert {policy.split(":")[0] for policy in POLICIES} == set(SELECTIONS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_our_optimizers_keep_the_laws(name: str) -> None:
    rates = Learning(optimizer=name, decay="linear").rates
    check_optimizer(lambda: optimizer_of(name, rates), examples=30)


@pytest.mark.parametrize("policy", POLICIES)
def test_our_policies_keep_the_laws(policy: str) -> None:
    learning = Learning(selection=policy)
    check_selection(lambda: selection_of(learning), examples=30)


@pytest.fixture
def known() -> Iterator[None]:
    with apart():
        yield


@pytest.mark.usefixtures("known")
def test_the_worked_example_of_the_docs_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    example, _, test = blocks[:3]
    body = example.split("class Signs:")[1].split("MEANS")[0].split("def mean")[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10
    (tmp_path / "signs.py").write_text(example)
    (tmp_path / "test_signs.py").write_text(test)  # which nobody imports as a plugin
    assert know_folder(tmp_path) == ["signs"]
    update = Contribution("a", {"w": np.array([3.0, -2.0], np.float32)}, 1.0)
    found = mean_of("signs:0.002").mean([update], {"w": np.zeros(2, np.float32)})
    np.testing.assert_allclose(found["w"], [0.002, -0.002])
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ModuleType("test_signs")
    exec(compile(test, "test_signs.py", "exec"), module.__dict__)
    module.test_signs_is_a_mean()
    sys.modules.pop("signs")


@pytest.mark.usefixtures("known")
def test_the_other_examples_of_the_docs_are_sound(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    (tmp_path / "others.py").write_text(blocks[1])
    assert set(know_folder(tmp_path)) == {"first", "half"}
    check_selection(lambda: selection_of(Learning(selection="first")), examples=20)
    half = Learning(optimizer="half")
    check_optimizer(lambda: optimizer_of("half", half.rates), examples=20)


class Forgetful:
    """Keeps what it remembers in itself."""

    def __init__(self) -> None:
        self.rounds = 0

    def step(
        self, adapter: AdapterState, mean: AdapterState, memory: Memory, *_rounds: int
    ) -> tuple[AdapterState, Memory]:
        self.rounds += 1
        return {name: one + self.rounds * mean[name] for name, one in adapter.items()}, {}


class Moody:
    """Another answer each time."""

    calls = 0

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        Moody.calls += 1
        return {name: np.full(one.shape, float(Moody.calls)) for name, one in adapter.items()}

    def choose(self, asking: Asking) -> Chosen:
        Moody.calls += 1
        return (asking.candidates[Moody.calls % len(asking.candidates)],), {}


class Twice:
    """Reads its updates twice."""

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        number = sum(1 for _ in updates)
        first = next(iter(updates))
        return {name: one / number for name, one in first.delta.items()}


class Greedy:
    """Asks everybody, whatever is allowed."""

    def choose(self, asking: Asking) -> Chosen:
        return tuple(asking.candidates), {}


class First:
    """Takes whichever update comes first."""

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        return {name: delta.copy() for name, delta in next(iter(updates)).delta.items()}


class Forgets:
    """Averages without a look at shares."""

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        read = list(updates)
        assert {one.share for one in read} == {1.0}
        return {name: np.mean([one.delta[name] for one in read], axis=0) for name in adapter}


class Peeks:
    """Breaks once anything is known of what this says."""

    def __init__(self, what: str) -> None:
        self._what = what

    def choose(self, asking: Asking) -> Chosen:
        assert not getattr(asking, self._what)
        return tuple(asking.candidates[: asking.size]), {}


@pytest.mark.parametrize("what", ["heard", "memory", "tags", "confidences", "thresholds"])
def test_a_policy_that_breaks_once_something_is_known_does_not_pass(what: str) -> None:
    with pytest.raises(PluginError, match="raised AssertionError"):
        check_selection(lambda: Peeks(what))


def test_a_mean_that_takes_whichever_comes_first_does_not_pass() -> None:
    with pytest.raises(AssertionError, match="order in which updates come"):
        check_mean(First)


@pytest.mark.usefixtures("known")
def test_no_mean_of_an_extension_turns_the_norm_bound_off() -> None:
    check_mean(Forgets)
    add(Extension("mean", "forgets", "ideas/forgets.py", Forgets))
    adapter = {"w": np.zeros(4, np.float32)}
    deltas = [*4 * [{"w": np.ones(4, np.float32)}], {"w": np.full(4, -9, np.float32)}]
    opened = StepOpened("train", 2, 1, "0" * 64, (), 0.0, norm_bound=6.0, most_examples=10)
    answers = [
        AdmittedUpdate(f"d{n}", Update("w", 1, delta), norm_of(delta))
        for n, delta in enumerate(deltas)
    ]
    found = [
        learn(Learning(mean=mean), opened, 10, answers, adapter, {}, [2.0]).adapter["w"]
        for mean in ("fedavg", "forgets")
    ]
    np.testing.assert_allclose(found[0], 0.2, rtol=1e-6)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.parametrize("mean", OURS)
def test_our_means_count_a_share_as_if_the_delta_were_that_long(mean: str) -> None:
    draw = np.random.Generator(np.random.PCG64(3))
    adapter = {"w": np.zeros(6, np.float32)}
    shares = [1.0, 0.5, 0.25, 1.0, 0.125, 1.0, 0.01]
    cohort = [
        Contribution(f"d{n}", {"w": draw.normal(size=6).astype(np.float32)}, 2.0 + n, share)
        for n, share in enumerate(shares)
    ]
    scaled = [replace(one, delta=counted(one), share=1.0) for one in cohort]
    found, expected = (mean_of(mean).mean(some, adapter)["w"] for some in (cohort, scaled))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_class_that_breaks_a_law_does_not_pass() -> None:
    with pytest.raises(AssertionError, match="made anew for each round"):
        check_optimizer(Forgetful)
    with pytest.raises(AssertionError, match="equal updates"):
        check_mean(Moody)
    with pytest.raises(PluginError, match="raised StopIteration"):
        check_mean(Twice)
    with pytest.raises(AssertionError, match="others"):
        check_selection(Moody)
    with pytest.raises(PluginError, match="that may be asked"):
        check_selection(Greedy)
    with pytest.raises(AssertionError, match="left the range"):
        check_mean(lambda: mean_of("fedavg"), bears=lambda devices: devices // 3)

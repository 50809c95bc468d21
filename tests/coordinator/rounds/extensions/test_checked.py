"""Somebody else's classes that raise or give nonsense: one line, and the run pauses."""

import sys
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")

from smidgen.coordinator.rounds.events import StepOpened
from smidgen.coordinator.rounds.extensions import Extension, Kind, PluginError, add, apart
from smidgen.coordinator.rounds.learning.memory import decode_memory, encode_memory
from smidgen.coordinator.rounds.learning.optimizers import ServerRates
from smidgen.coordinator.rounds.learning.registry import mean_of, optimizer_of
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate, learn
from smidgen.coordinator.rounds.policies import selection_of
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.selection import Asking
from smidgen.coordinator.storage.runs import add_order
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState, Update
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for

ADAPTER: AdapterState = {"a": np.zeros(3, np.float32)}
UPDATE = Contribution("device", {"a": np.ones(3, np.float32)}, 2.0)


class Given:
    """Answers what it was told to."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.mean = self.step = self.choose = answer


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    with apart():
        yield


def know(kind: Kind, answer: Callable[..., Any]) -> None:
    add(Extension(kind, "mine", "ideas/mine.py", lambda: Given(answer)))


def raising(*_told: Any) -> Any:
    raise KeyError("a\nsecret line")


class Lazy(UserDict[str, Any]):
    """Fails when it is read."""

    def __getitem__(self, name: str) -> Any:
        raise OSError("not now")


def writing(updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
    adapter["a"][:] = 7.0
    return adapter


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (raising, r"raised KeyError: 'a\\nsecret line'"),
        (writing, "raised ValueError: assignment destination is read-only"),
        (lambda *_: None, "has other tensors than the adapter"),
        (lambda *_: {"b": np.zeros(3)}, "has other tensors than the adapter"),
        (lambda *_: {"a": np.zeros(4)}, r"has 'a' as \(4,\), expected \(3,\)"),
        (lambda *_: {"a": [0.0, 0.0, 0.0]}, "has 'a' as list"),
        (lambda *_: Lazy(a=1), "raised OSError: not now"),
        (lambda *_: {"a": np.full(3, np.nan)}, "no device can compute with"),
        (lambda *_: {"a": np.full(3, 1e300)}, "no device can compute with"),
    ],
)
def test_a_mean_that_is_none_is_one_line_that_names_it(
    answer: Callable[..., Any], said: str
) -> None:
    know("mean", answer)
    with pytest.raises(PluginError, match=said) as raised:
        mean_of("mine").mean([UPDATE], ADAPTER)
    assert str(raised.value).startswith("mean 'mine' of ideas/mine.py")
    assert "\n" not in str(raised.value) and not ADAPTER["a"].any()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (raising, "raised KeyError"),
        (lambda *_: {"a": np.zeros(3)}, "raised ValueError"),
        (lambda *_: ({"a": np.zeros(2)}, {}), r"has 'a' as \(2,\)"),
        (lambda *_: ({"a": np.zeros(3)}, {"m": "text"}), "its memory is not numpy arrays"),
        (lambda *_: ({"a": np.zeros(3)}, {"m": np.array(["x"])}), "its memory is not numpy"),
        (lambda *_: ({"a": np.zeros(3)}, 7), "its memory is not arrays by name"),
        (
            lambda *_: ({"a": np.zeros(3)}, {"m": np.zeros(2, np.longdouble)}),
            "float128 in 'm'; one",
        ),
        (lambda *_: ({"a": np.zeros(3)}, {"m": np.array([np.nan])}), "'m' with NaN or infinity"),
        (lambda *_: ({"a": np.zeros(3)}, {"m": np.array([np.inf])}), "'m' with NaN or infinity"),
        (lambda *_: ({"a": np.zeros(3)}, {"a\ud800": np.zeros(2)}), r"not text: 'a\\ud800'"),
        (lambda *_: sys.exit("a\ud800\nb"), r"raised SystemExit: a\? b"),
    ],
)
def test_an_optimizer_that_is_none_is_one_line(answer: Callable[..., Any], said: str) -> None:
    know("optimizer", answer)
    with pytest.raises(PluginError, match=said):
        optimizer_of("mine", ServerRates()).step(ADAPTER, UPDATE.delta, {}, 1, 2)


@pytest.mark.parametrize("kind", [">f4", "<f8", "float16", "int64", "uint16", "bool"])
def test_what_an_optimizer_remembers_comes_back_equal(kind: str) -> None:
    kept = {"m": np.array([0, 1], kind)}
    know("optimizer", lambda *_: (ADAPTER, kept))
    _, memory = optimizer_of("mine", ServerRates()).step(ADAPTER, UPDATE.delta, {}, 1, 2)
    found = decode_memory(encode_memory(memory))
    assert found["m"].tolist() == kept["m"].tolist() and found["m"].dtype == memory["m"].dtype


def test_what_fails_in_ours_is_not_its_fault() -> None:
    def updates() -> Iterator[Contribution]:
        yield UPDATE
        raise OSError("the disk is gone")

    know("mean", lambda updates, adapter: [one.delta for one in updates].pop())
    with pytest.raises(OSError, match="the disk is gone"):
        mean_of("mine").mean(updates(), ADAPTER)


def test_an_extension_that_is_not_here_is_one_line() -> None:
    answers = [AdmittedUpdate("device", Update("w", 2, dict(UPDATE.delta)))]
    opened = StepOpened("train", 1, 1, "sha", (), 0.0)
    with pytest.raises(PluginError, match="mean 'mine' is not known here; start with --plugins"):
        learn(Learning(mean="mine"), opened, 1, answers, ADAPTER, {}, ())


def test_a_run_pauses_with_its_plugin_s_trouble_and_closes_the_round_once_it_is_mended(
    start: Callable[..., Live],
) -> None:
    answers: list[Callable[..., Any]] = [raising]
    know("mean", lambda *told: answers[-1](*told))
    live = start(min_clients=2, rounds=1, learning=Learning(mean="mine"))
    a, b = live.join("a", "b")
    for _ in range(2):
        for device in (a, b):
            device.do(device.work())
    wait_for(lambda: live.service.run(live.run_id).state.is_paused)
    state = live.service.run(live.run_id).state
    assert state.trouble.startswith("mean 'mine' of ideas/mine.py raised KeyError")
    assert state.step is not None and len(state.step.updates()) == 2 and state.round_index == 0
    answers.append(lambda updates, adapter: [dict(one.delta) for one in updates].pop())
    add_order(live.store, live.service.run(live.run_id).run, "resume", None, 1.0)
    wait_for(lambda: live.service.run(live.run_id).state.round_index == 1)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda a, mean, *_: (mean, {"m": np.zeros(1, np.longdouble)}), "its memory has float128"),
        (lambda *_: sys.exit("bye"), "raised SystemExit: bye"),
    ],
)
def test_a_run_pauses_for_memory_that_cannot_be_kept_and_its_updates_stay(
    start: Callable[..., Live], step: Callable[..., Any], said: str
) -> None:
    know("optimizer", step)
    live = start(min_clients=1, rounds=1, learning=Learning(optimizer="mine"))
    (device,) = live.join("a")
    for _ in range(2):
        device.do(device.work())
    wait_for(lambda: live.service.run(live.run_id).state.is_paused)
    state = live.service.run(live.run_id).state
    assert state.trouble.startswith(
        f"optimizer 'mine' of ideas/mine.py{':' * (said[0] == 'i')} {said}"
    )
    assert state.step is not None and len(state.step.updates()) == 1


def test_a_reason_that_cannot_be_said_pauses_too_and_half_a_letter_is_replaced() -> None:
    class Silent:
        def __str__(self) -> str:
            raise ValueError("no words")

    for reason, said in ((Silent(), "raised ValueError"), ("a\ud800\nb", "")):
        with apart():
            know("selection", lambda _, why=reason: (["x"], {"y": why}))
            policy = selection_of(Learning(selection="mine"))
            if said:
                with pytest.raises(PluginError, match=said):
                    policy.choose(Asking(("x", "y"), 1, "s", 1, 1))
            else:
                assert policy.choose(Asking(("x", "y"), 1, "s", 1, 1)) == (("x",), {"y": "a? b"})


@pytest.mark.parametrize("what", ["texts", "heard", "confidences", "memory", "tags"])
def test_a_selection_cannot_change_what_it_knows(what: str) -> None:
    def choose(asked: Asking) -> tuple[list[str], dict[str, str]]:
        getattr(asked, what).clear()
        return ["a"], {}

    know("selection", choose)
    asking = Asking(("a",), 1, "s", 1, 1, **{what: {"a": {}}})  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="raised AttributeError"):
        selection_of(Learning(selection="mine")).choose(asking)
    assert getattr(asking, what) == {"a": {}}


def test_a_run_whose_selection_fails_pauses_before_the_round(start: Callable[..., Live]) -> None:
    know("selection", lambda asking: (["somebody else"], {}))
    live = start(min_clients=1, rounds=1, learning=Learning(selection="mine"))
    (device,) = live.join("a")
    device.do(device.work())
    wait_for(lambda: live.service.run(live.run_id).state.is_paused)
    trouble = live.service.run(live.run_id).state.trouble
    assert trouble == (
        "selection 'mine' of ideas/mine.py chose a device that is not among the candidates"
    )

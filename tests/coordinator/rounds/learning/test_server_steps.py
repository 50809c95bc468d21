"""What update steps of other packages do on the coordinator: named, looked at, within bounds."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from threading import Event
from typing import Any

import numpy as np
import pytest

from smidgen.coordinator.plugins import Limit
from smidgen.coordinator.rounds.bounds import norm_of
from smidgen.coordinator.rounds.extensions import PluginError, calling_by
from smidgen.coordinator.rounds.learning import server_update
from smidgen.edge_client.updates.clip import Clip, UpdateBounds
from smidgen.edge_client.updates.step import Contribution, ServerContext, State, UpdateStep
from smidgen.edge_client.wire.tensors import AdapterState, shapes_of
from smidgen.edge_client.wire.training import Training

ADAPTER = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.float32)}
CONTEXT = ServerContext(Training(), 1, shapes=shapes_of(ADAPTER))


class Theirs(UpdateStep):
    """Gives what it was made with."""

    name = "theirs"

    def __init__(self, given: Any = None, by: float = 1.0) -> None:
        super().__init__()
        self._given, self._by = given, np.float32(by)

    def _or_raise(self) -> Any:
        if isinstance(self._given, BaseException):
            raise self._given
        return self._given

    def incoming(
        self, cohort: Iterable[Contribution], context: ServerContext
    ) -> Iterator[Contribution]:
        for one in cohort:
            delta = {name: tensor * self._by for name, tensor in one.delta.items()}
            yield replace(one, delta=self._or_raise() or delta)

    def finish(self, mean: AdapterState, context: ServerContext) -> AdapterState:
        found: AdapterState = self._or_raise()
        return found

    def handed_out(self) -> State:
        found: State = self._or_raise()
        return found


def cohort() -> list[Contribution]:
    delta = {name: tensor + np.float32(1) for name, tensor in ADAPTER.items()}
    return [Contribution("d", delta, 1.0, norm=norm_of(delta))]


def after(step: UpdateStep, given: Iterable[Contribution] | None = None) -> list[Contribution]:
    source = cohort() if given is None else given
    return list(server_update.incoming([step], source, ADAPTER, norm_of, CONTEXT))


def test_a_step_that_makes_updates_longer_keeps_the_bounds_of_the_round() -> None:
    (one,) = Clip(UpdateBounds(norm=0.5)).incoming(after(Theirs(by=1000.0)), CONTEXT)
    assert norm_of(one.delta) * one.share == pytest.approx(0.5)


@pytest.mark.parametrize("error", [KeyError("boom"), SystemExit(3), ZeroDivisionError()])
def test_what_a_step_raises_names_it(error: BaseException) -> None:
    for call in (
        lambda: after(Theirs(error)),
        lambda: server_update.finish([Theirs(error)], ADAPTER, CONTEXT),
        lambda: server_update.handed_out(Theirs(error)),
    ):
        with pytest.raises(PluginError, match=f"update step theirs raised {type(error).__name__}"):
            call()


def test_a_step_that_does_not_return_is_left_to_itself_and_named() -> None:
    held = Event()

    class Slow(Theirs):
        def incoming(
            self, cohort: Iterable[Contribution], context: ServerContext
        ) -> Iterator[Contribution]:
            held.wait(30)
            yield from super().incoming(cohort, context)

        def handed_out(self) -> State:
            held.wait(30)
            return {}

    for call in (lambda: after(Slow()), lambda: server_update.handed_out(Slow())):
        with (
            calling_by(Limit(0.2).call),
            pytest.raises(PluginError, match=r"update step theirs did not return within 0.2 s"),
        ):
            call()
    held.set()


def test_what_goes_wrong_before_a_step_stays_what_it_is() -> None:
    def unreadable() -> Iterator[Contribution]:
        yield from cohort()
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        after(Theirs(), unreadable())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": ADAPTER["a"]}, "other tensors than the adapter"),
        ({**ADAPTER, "b": np.zeros(1)}, r"'b' as \(1,\), expected \(4,\)"),
        ({**ADAPTER, "b": np.full(4, np.nan)}, "numbers in 'b' that no device can compute with"),
    ],
)
def test_what_a_step_gives_is_looked_at(given: AdapterState, said: str) -> None:
    with pytest.raises(PluginError, match=f"update step theirs: an update .*{said}"):
        after(Theirs(given))
    with pytest.raises(PluginError, match=f"update step theirs: the mean .*{said}"):
        server_update.finish([Theirs(given)], ADAPTER, CONTEXT)


def test_what_a_step_remembers_and_hands_out_is_numbers() -> None:
    with pytest.raises(PluginError, match="theirs: its memory has 'x' with NaN or infinity"):
        server_update.handed_out(Theirs({"x": np.array([np.inf])}))
    step = Theirs()
    step.state = {"x": np.array(["a"])}
    with pytest.raises(PluginError, match="theirs: its memory is not numpy arrays of numbers"):
        server_update.kept_state(step)

"""Steps that are carried out while answers come in: they land where nothing of theirs changed."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    Left,
    Paused,
    StepClosed,
    StepOpened,
    Unpaused,
)
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.state import replay
from smidgen.coordinator.serving.executor import aggregate, proceed
from smidgen.coordinator.serving.ledger import Ledger, Live
from smidgen.coordinator.storage.store import Run, Store
from smidgen.edge_client.wire.messages import encode
from smidgen.edge_client.wire.tensors import Update, encode_adapter, encode_update
from tests.coordinator.upkeep.stores import TASK

DEVICES = tuple("abcd")
BUFFERED = RunConfig("run", TASK, min_clients=2, asynchronous=Asynchronous(buffer=2))


class Crowd(tuple[str, ...]):
    """Devices that are there; something happens whenever a look at them begins."""

    happens: Callable[[], object] = staticmethod(lambda: None)

    def __iter__(self) -> Iterator[str]:
        self.happens()
        return super().__iter__()


class Scene:
    """A run whose first training step is open since second 1, and nobody has answered it."""

    def __init__(self, store: Store, config: RunConfig) -> None:
        self.store = store
        first = store.put(encode_adapter({"a": np.zeros(4, np.float32)}))
        store.add_run(Run("r", 0.0, encode(config).decode(), "b", "b", "bert", first, "s"))
        self.ledger = Ledger(store, 0.0)
        assert isinstance(self.look(0.0), StepOpened)
        for name in DEVICES:
            self.append(Answered(self.works[name], "done", None, 4))
        assert isinstance(self.look(1.0), StepClosed) and isinstance(self.look(1.0), StepOpened)

    @property
    def live(self) -> Live:
        live = self.ledger.run("r")
        assert live is not None
        return live

    @property
    def works(self) -> dict[str, str]:
        assert self.live.state.step is not None
        return {name: work_id for work_id, name in self.live.state.step.members.items()}

    def append(self, event: Event) -> None:
        assert self.ledger.append(self.live, event)

    def answer(self, name: str) -> None:
        """An update that no other device sends."""
        delta = {"a": np.full(4, 0.01 * (1 + DEVICES.index(name)), np.float32)}
        body = encode_update(Update(self.works[name], 4, delta))
        told = Answered(self.works[name], "done", self.store.put(body), 4, norm=0.1)
        assert self.ledger.answer("r", told).accepted

    def look(self, now_s: float, happens: Callable[[], object] | None = None) -> Event | None:
        """Let the run proceed while something happens."""
        crowd = Crowd(DEVICES)
        if happens is not None:
            crowd.happens = happens
        return proceed(self.store, self.ledger, "r", crowd, sorted, now_s)


def once(happens: Callable[[], object]) -> Callable[[], object]:
    waiting = [happens]
    return lambda: waiting.pop()() if waiting else None


def made_by(scene: Scene) -> StepClosed:
    """What the newest event of the journal has to be: made of the updates before it, no others."""
    *before, _ = scene.store.journal("r")
    state = replay(scene.store.runs()[0].adapter_sha256, before)
    assert state.step is not None
    return aggregate(scene.store, replace(scene.live, state=state), state.step, 2.0)


def test_a_full_buffer_closes_with_what_it_counted_whatever_comes_meanwhile(store: Store) -> None:
    scene = Scene(store, BUFFERED)
    for name in "db":
        scene.answer(name)
    looks = iter("ac")
    closed = scene.look(2.0, lambda: scene.answer(next(looks)))
    assert closed == made_by(scene) and next(looks) == "c"  # nothing was made anew
    (beyond,) = (one for one in scene.live.state.underway.values() if one.answer is not None)
    assert beyond.device_id == "a"  # it counts in the next version


def test_a_step_that_lost_an_update_meanwhile_is_not_closed_with_it(store: Store) -> None:
    scene = Scene(store, BUFFERED)
    for name in "db":
        scene.answer(name)
    revoked = once(lambda: scene.append(Left("b", "revoked", 2.0)))
    assert scene.look(2.0, revoked) is None
    scene.answer("a")
    assert scene.look(2.0) == made_by(scene)


def test_a_run_that_is_paused_meanwhile_closes_its_step_when_it_goes_on(store: Store) -> None:
    scene = Scene(store, BUFFERED)
    for name in "db":
        scene.answer(name)
    assert scene.look(2.0, once(lambda: scene.append(Paused(2.0)))) is None
    scene.append(Unpaused(2.0))
    assert scene.look(2.0) == made_by(scene)


def test_a_look_ends_however_much_comes_in_between(store: Store) -> None:
    scene = Scene(store, RunConfig("run", TASK, min_clients=2))
    for name in DEVICES:
        scene.answer(name)
    others = iter(range(1000))

    def comes() -> None:
        scene.append(Left(f"x{next(others)}", "texts", 2.0))

    assert scene.look(2.0, comes) == made_by(scene)  # nobody else has a part in it
    assert scene.look(2.0, comes) is None and next(others) < 20
    assert isinstance(scene.look(2.0), StepOpened)

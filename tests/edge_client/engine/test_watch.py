"""Texts that leave between two layers: who goes, who stays, and what it costs."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.backend import BatchWatch, going_on
from smidgen.edge_client.tasks.task import Task
from tests.edge_client.engine.engines import KINDS, SPECS, TEXTS, engine_of

pytestmark = pytest.mark.parametrize("kind", KINDS)


class Recorder:
    """Lets the texts go that it is told to; remembers what it saw."""

    def __init__(self, done: Collection[int] = (), layers: Collection[int] = (1,)) -> None:
        self.layers, self._done = layers, done
        self.seen: dict[tuple[int, int], np.ndarray] = {}

    def see(self, layer: int, rows: Sequence[int], states: np.ndarray) -> np.ndarray:
        self.seen |= {(layer, row): state.copy() for row, state in zip(rows, states, strict=True)}
        return np.array([row in self._done for row in rows], bool)


@pytest.mark.few
@pytest.mark.parametrize("name", SPECS)
def test_reading_without_a_watch_is_predicting(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name)
    assert (engine.read(TEXTS) == engine.predict(TEXTS)).all()
    assert (engine.read(TEXTS, Recorder()) == engine.predict(TEXTS)).all()
    assert engine.read([], Recorder()).shape == (0, 6)


@pytest.mark.few
@pytest.mark.parametrize("name", ["lora:4", "prompt:4", "bias", "prompt:4+head"])
def test_texts_that_are_done_leave_and_the_others_answer_as_before(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name)
    whole, before = engine.predict(TEXTS), engine.layer_forwards
    rows = engine.read(TEXTS, Recorder(done={1, 4}))
    assert engine.layer_forwards - before == 2 * len(TEXTS) - 2
    assert np.isnan(rows[[1, 4]]).all()
    left = [row for row in range(len(TEXTS)) if row not in (1, 4)]
    np.testing.assert_allclose(rows[left], whole[left], rtol=1e-4, atol=1e-5)


def test_a_batch_that_is_empty_stops(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:4")
    rows = engine.read(TEXTS, Recorder(done=range(len(TEXTS))))
    assert np.isnan(rows).all() and engine.layer_forwards == len(TEXTS)


@pytest.mark.parametrize("name", ["lora:4", "prompt:4"])
def test_what_is_seen_is_the_answers_state_after_the_layers_norm(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    engine, watch = engine_of(kind, tiny_base, hub_task, name), Recorder()
    engine.read(TEXTS, watch)
    assert set(watch.seen) == {(1, row) for row in range(len(TEXTS))}
    network = engine._backend.network  # type: ignore[attr-defined]
    for row, text in enumerate(TEXTS):
        batch = engine.encoder.batch(engine.encoder.prompts([text]))
        dtype = ("float32",) if kind == "torch" else ()
        states = [np.asarray(each).copy() for each in network.states(batch, *dtype)][1]
        state = states[batch.mask_positions[0]]
        np.testing.assert_allclose(watch.seen[1, row], state, rtol=1e-4, atol=1e-4)
        assert watch.seen[1, row].dtype == np.float32


def test_the_cut_itself_is_shown_from_the_cache(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:4/top1")
    plain, cached, again = Recorder(), Recorder(), Recorder(done={2})
    engine.read(TEXTS, plain)
    engine.remember(ActivationCache(tmp_path, 1 << 20, "base"))
    engine.read(TEXTS, cached)
    before = engine.layer_forwards
    engine.read(TEXTS, again)
    assert engine.layer_forwards - before == len(TEXTS) - 1
    for place, state in plain.seen.items():
        np.testing.assert_allclose(cached.seen[place], state, atol=3e-3)
        assert (again.seen[place] == cached.seen[place]).all()


def test_layers_inside_the_cached_prefix_are_not_shown(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    engine, watch = engine_of(kind, tiny_base, hub_task, "head"), Recorder(done={0})
    engine.remember(ActivationCache(tmp_path, 1 << 20, "base"))
    assert not np.isnan(engine.read(TEXTS, watch)).any() and not watch.seen


def test_a_batchs_rows_have_their_own_names_outside(kind: str) -> None:
    watch = Recorder(done={30})
    left = going_on(BatchWatch(watch, [10, 20, 30]), 1, np.array([0, 2]), np.zeros((2, 4)))
    assert left.tolist() == [0] and set(watch.seen) == {(1, 10), (1, 30)}

"""Texts that leave early: what is learnt, who may go, and that answers stay what they were."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.labelling.early_exit import (
    FEWEST,
    MOST_EXITS,
    WORTH,
    EarlyExit,
    fitted,
    layers_to_try,
    learnt_first,
)
from smidgen.edge_client.labelling.label_journal import MemoryNotes
from smidgen.edge_client.labelling.pseudo_labels import calibrated, text_id
from smidgen.edge_client.tasks.ready_tasks import AG_NEWS
from smidgen.edge_client.texts.examples import ClientData, Example, read_file
from smidgen.edge_client.wire.messages import PROTOCOL, Work
from smidgen.edge_client.wire.tensors import derive_seed
from smidgen.edge_client.wire.training import Labelling, Training
from tests.breadth import first_fast
from tests.conftest import shared
from tests.edge_client.engine.engines import KINDS
from tests.edge_client.labelling.two_topics import label

HIDDEN, LABELS = 8, 3


def drawn(seed: int, texts: int, labels: int = LABELS) -> tuple[np.ndarray, np.ndarray]:
    """States, and log-probabilities that are linear in them."""
    generator = np.random.Generator(np.random.PCG64(seed))
    states = generator.standard_normal((texts, HIDDEN)).astype(np.float32)
    scores = 4.0 * states @ generator.standard_normal((HIDDEN, labels))
    found = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return states, found.astype(np.float32)


@given(st.integers(0, 40), st.integers(0, 40))
def test_exits_lie_above_what_is_frozen_and_below_the_top(frozen: int, layers: int) -> None:
    found = layers_to_try(frozen, layers)
    able = range(max(1, frozen), layers)
    assert len(found) == min(MOST_EXITS, len(able)) and set(found) <= set(able)
    assert all(low < high for low, high in pairwise(found))
    if len(able) > 1:
        assert (found[0], found[-1]) == (able[0], able[-1])


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_answers_that_are_linear_in_the_states_exit_and_agree(seed: int, labels: int) -> None:
    """Eight draws together: one alone may miss 95 %, or find no way out, by chance."""
    clear, agree = [], []
    for draw in range(8):
        states, answers = drawn(derive_seed(seed, draw), 400, labels)
        way_out = fitted(states[:200], answers[:200])
        if way_out is None:
            continue
        assert way_out.weights.shape == (HIDDEN + 1, labels)
        found = way_out.answers(states[200:])
        first, second = np.sort(found, axis=1)[:, :-3:-1].T
        is_clear = first - second >= way_out.margin
        clear.append(is_clear)
        agree.append((found.argmax(axis=1) == answers[200:].argmax(axis=1))[is_clear])
    assert len(clear) >= 7
    assert np.concatenate(clear).mean() > 0.2 and np.concatenate(agree).mean() > 0.95


@pytest.mark.parametrize("seed", range(20))
def test_answers_that_have_nothing_to_do_with_the_states_do_not_exit(seed: int) -> None:
    states, _ = drawn(seed, 200)
    assert fitted(states, drawn(seed + 1000, 200)[1]) is None


class Linear:
    """Reads as an engine does: shows states after a layer, and what all layers say."""

    def __init__(self, seed: int, texts: int) -> None:
        self.states, self.answers = drawn(seed, texts)

    def read(self, rows: slice, watch: EarlyExit) -> np.ndarray:
        states, answers = self.states[rows], self.answers[rows].copy()
        for layer in (1, 2):
            left = np.flatnonzero(~np.isnan(answers[:, 0]))
            if layer in watch.layers and len(left):
                answers[left[watch.see(layer, left.tolist(), states[left])]] = np.nan
        return answers


def test_texts_are_read_in_full_until_enough_is_learnt() -> None:
    engine, watch = Linear(3, 200), EarlyExit((1, 2))
    for start in range(0, FEWEST, 8):
        rows = slice(start, start + 8)
        assert watch.is_learning and watch.layers == (1, 2)
        whole, went = watch.settle(engine.read(rows, watch), 3)
        assert (whole == engine.answers[rows]).all() and went == [3] * 8
    assert not watch.is_learning and watch.layers


def test_who_leaves_has_a_normalized_answer_and_its_layer() -> None:
    engine, watch = Linear(3, 400), EarlyExit((1, 2))
    watch.settle(engine.read(slice(0, 200), watch), 3)
    rows = engine.read(slice(200, 400), watch)
    whole, went = watch.settle(rows, 3)
    has_left = np.isnan(rows[:, 0])
    assert has_left.any() and not np.isnan(whole).any()
    assert [layer < 3 for layer in went] == has_left.tolist()
    np.testing.assert_allclose(np.exp(whole).sum(axis=1), 1.0, rtol=1e-5)
    assert (whole[~has_left] == engine.answers[200:][~has_left]).all()
    assert (watch.settle(engine.answers[:8], 3)[0] == engine.answers[:8]).all()  # all forgotten


def test_where_nothing_can_be_learnt_nobody_leaves() -> None:
    engine, watch = Linear(4, 200), EarlyExit((1, 2))
    engine.answers = drawn(1004, 200)[1]
    watch.settle(engine.read(slice(0, 150), watch), 3)
    assert not watch.is_learning and watch.layers == ()
    rows = engine.read(slice(150, 200), watch)
    assert not np.isnan(rows).any() and set(watch.settle(rows, 3)[1]) == {3}


# Real texts

TRAINING = Training(lr=1e-3, epochs=3, tokens=32)
ALL = Labelling(compute_share=1.0, confidence=0.99, class_floor=0.99, keep_last=1.0)


@pytest.fixture(scope="module", params=first_fast(sorted(KINDS)))
def news(request: pytest.FixtureRequest) -> tuple[Engine, tuple[Example, ...]]:
    """The embedded base with a briefly trained adapter, and 408 texts."""
    path = shared("data", "ag_news") / "test.csv.gz"
    texts = tuple(read_file(path, AG_NEWS, labelled=True)[::7])
    base, spec = open_base("embedded"), parse_adapter("lora:8")
    engine = open_engine(request.param, base, AG_NEWS, spec, TRAINING)
    engine.load_adapter(initial_adapter(spec, base, 4, seed=1))
    train(engine, texts[:40], TRAINING, seed=1)
    return engine, texts[40:448]


@pytest.mark.slow
def test_labels_of_news_are_those_of_all_layers(
    news: tuple[Engine, tuple[Example, ...]],
) -> None:
    engine, texts = news
    prior = tuple(engine.predict(texts[:60]).mean(axis=0).tolist())
    work = Work(
        *(PROTOCOL, "work", "label", "run", 1, "base", "lora:8", "a" * 64, 1),
        AG_NEWS,
        TRAINING,
        seed=1,
        labelling=ALL,
        keep=1.0,
        prior=prior,
    )
    notes = MemoryNotes()
    found = label(engine, ClientData((), texts, ()), work, notes)
    assert found.num_examples == len(texts) >= 400
    full = calibrated(engine.predict(texts), prior).argmax(axis=1)
    early = [AG_NEWS.labels.index(notes.book.readings[text_id(text)].label) for text in texts]
    saved = 1 - found.layer_forwards / (engine.layers * len(texts))
    print(f"{(full == early).mean():.4f} of the labels agree; {saved:.3f} of layer-forwards saved")
    assert (full == early).mean() >= 0.99 and saved >= 0.0


def test_texts_to_learn_from_come_first_and_evenly() -> None:
    names = [str(number) for number in range(WORTH)]
    found = learnt_first(names)
    assert sorted(found, key=int) == names and found[0] == "0" and found[FEWEST - 1] == names[-1]
    gaps = {int(b) - int(a) for a, b in pairwise(found[:FEWEST])}
    assert gaps == {2, 3} and learnt_first(names[1:]) == names[1:]

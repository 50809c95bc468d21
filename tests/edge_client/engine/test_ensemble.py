from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, read_peft_folder, write_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.ensemble import averaged
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, TEXTS, engine_of

WORDS = {"security": "security", "mail": "mail", "family": "family", "weather": "weather"}
WORDS |= {"power": "power", "health": "health"}
ONE, OTHER = "{text} . this is about [MASK] .", "[MASK] news : {text}"


def asking(*patterns: str, ensemble: bool = True) -> Task:
    return Task("hub", tuple(WORDS), patterns, WORDS, ensemble)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    rows: np.ndarray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return rows.astype(np.float32)


@given(st.integers(0, 5), st.integers(2, 6), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_an_average_of_answers_is_an_answer(
    texts: int, labels: int, patterns: int, seed: int
) -> None:
    draw = np.random.Generator(np.random.PCG64(seed)).normal(0, 9, (patterns, texts, labels))
    answers = [log_softmax(logits) for logits in draw]
    found = averaged(answers)
    assert found.dtype == np.float32 and found.shape == (texts, labels)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, rtol=1e-5)
    # Softmax of the mean scores, as in the paper: scores differ from these by a constant a row.
    np.testing.assert_allclose(found, log_softmax(draw.mean(axis=0)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(averaged(answers[:1] * 3), answers[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_averages_what_its_patterns_answer(tiny_base: Base, kind: str) -> None:
    tasks = asking(ONE, ensemble=False), asking(OTHER, ensemble=False), asking(ONE, OTHER)
    one, other, both = (engine_of(kind, tiny_base, task, "lora:4").predict(TEXTS) for task in tasks)
    assert abs(one - other).max() > 1e-3
    np.testing.assert_allclose(both, averaged([one, other]), rtol=1e-6)


def trained(kind: str, base: Base, task: Task) -> tuple[AdapterState, np.ndarray]:
    spec = parse_adapter("lora:2")
    engine = open_engine(kind, base, task, spec, Training(lr=0.02, tokens=48))
    engine.load_adapter(initial_adapter(spec, base, 6, seed=3))
    delta = train(engine, TEXTS, Training(epochs=2, batch=2), seed=1).delta
    return delta, engine.predict(TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_repeated_is_that_pattern_alone(tiny_base: Base, kind: str) -> None:
    delta, answers = trained(kind, tiny_base, asking(ONE))
    again, same = trained(kind, tiny_base, asking(ONE, ONE, ONE))
    assert all((delta[name] == again[name]).all() for name in delta)
    np.testing.assert_allclose(answers, same, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_asks_no_pattern(tiny_base: Base, kind: str) -> None:
    long = "home " * 60 + "[MASK] {text}"
    heads = [engine_of(kind, tiny_base, task, "head") for task in (asking(ONE), asking(ONE, long))]
    assert (heads[0].predict(TEXTS) == heads[1].predict(TEXTS)).all()


def test_an_exported_adapter_remembers_that_it_was_trained_by_an_ensemble(
    tiny_base: Base, tmp_path: Path
) -> None:
    state = initial_adapter(parse_adapter("lora:2"), tiny_base, 6, seed=3)
    exported = Exported("lora:2", "base", tiny_base.base_id, "bert", asking(ONE, OTHER))
    write_peft_folder(tmp_path, exported, encode_adapter(state))
    assert read_peft_folder(tmp_path)[0] == exported

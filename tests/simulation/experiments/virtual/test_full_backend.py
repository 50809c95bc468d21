from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.experiments.virtual.full_backend import open_full
from tests.edge_client.engine.engines import TEXTS, batch_of
from tests.edge_client.engine.test_watch import Recorder
from tests.families import write_family

TRAINING = Training(lr=1e-3, tokens=48)


@pytest.mark.parametrize("family", ["roberta", "albert", "xlm-roberta"])
def test_answers_are_the_whole_models_at_the_mask(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str
) -> None:
    base = write_family(family, tiny_base, tmp_path / "base")
    engine = open_full(base, hub_task, TRAINING, has_head=False, seed=0)
    model = transformers.AutoModelForMaskedLM.from_pretrained(base.folder).eval()
    batch = batch_of(engine)
    words = [word for [word] in engine.encoder.tokens.label_word_ids(hub_task)]
    with torch.no_grad():
        logits = model(torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)).logits
    theirs = logits[range(len(TEXTS)), batch.mask_positions][:, words].log_softmax(-1)
    np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", [False, True])
def test_every_weight_that_is_used_moves(tiny_base: Base, hub_task: Task, head: bool) -> None:
    engine = open_full(tiny_base, hub_task, TRAINING, head, seed=0)
    before, batch = engine.adapter(), batch_of(engine)
    losses = [engine.train_step(batch) for _ in range(8)]
    after = engine.adapter()
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert losses[-1] < losses[0] and len(moved) > 0.9 * len(before)
    assert any("word_embeddings" in name for name in moved)


def test_loading_weights_starts_afresh(tiny_base: Base, hub_task: Task) -> None:
    engine = open_full(tiny_base, hub_task, TRAINING, has_head=True, seed=0)
    start, batch = engine.adapter(), batch_of(engine)
    first = [engine.train_step(batch) for _ in range(3)]
    engine.load_adapter(start)
    assert [engine.train_step(batch) for _ in range(3)] == first


def test_features_and_answers_do_not_depend_on_the_batch(tiny_base: Base, hub_task: Task) -> None:
    engine = open_full(tiny_base, hub_task, TRAINING, has_head=True, seed=0)
    for ask in (engine.predict, lambda texts: engine.features(texts, 1)):
        alone = np.concatenate([ask([text]) for text in TEXTS])
        np.testing.assert_allclose(ask(TEXTS), alone, rtol=1e-4, atol=1e-5)


def test_a_distilbert_is_refused(tiny_base: Base, hub_task: Task, tmp_path: Path) -> None:
    base = write_family("distilbert", tiny_base, tmp_path / "base")
    with pytest.raises(EngineError, match="needs a plain folder of BERT"):
        open_full(base, hub_task, TRAINING, has_head=False, seed=0)


def test_every_layer_counts_forward_and_back(tiny_base: Base, hub_task: Task) -> None:
    engine = open_full(tiny_base, hub_task, TRAINING, has_head=False, seed=0)
    engine.train_step(batch_of(engine))
    assert engine.layer_forwards == 3 * tiny_base.layers * len(TEXTS)
    engine.predict(TEXTS)
    assert engine.layer_forwards == 4 * tiny_base.layers * len(TEXTS)


def test_texts_are_read_whole_or_not_at_all(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    engine = open_full(tiny_base, hub_task, TRAINING, has_head=False, seed=0)
    plain = engine.predict(TEXTS)
    engine.remember(ActivationCache(tmp_path, 1 << 20, "base"))
    assert (engine.read(TEXTS) == plain).all() and (engine.predict(TEXTS) == plain).all()
    with pytest.raises(EngineError, match="early exit needs an adapter"):
        engine.read(TEXTS, Recorder())


def test_gradients_are_those_that_a_step_follows(tiny_base: Base) -> None:
    task = Task("words", kind="mlm")
    training = Training(lr=0.5, tokens=48, optimizer="sgd")
    engine = open_full(tiny_base, task, training, has_head=False, seed=0)
    before, batch = engine.adapter(), batch_of(engine)
    loss, gradients = engine.gradients(batch)
    assert loss == engine.train_step(batch)
    for name, after in engine.adapter().items():
        np.testing.assert_allclose(after, before[name] - 0.5 * gradients[name], atol=1e-6)

"""Engines that are asked for masked words and for tags: reading, training, caches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.budgeted import workload
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.trainer import prompts_by_epoch, train
from smidgen.edge_client.guest.steps import Paused, StepFile
from smidgen.edge_client.tasks.kinds.masked_words import most_masked
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import derive_seed
from smidgen.edge_client.wire.training import Training
from tests.breadth import covering
from tests.edge_client.engine.engines import KINDS, TEXTS, engine_of
from tests.edge_client.engine.kinds.tasks import CASES, MLM, TAGGED, TAGGING
from tests.edge_client.guest.test_going_on import BOUND, Leaving, same

pytestmark = pytest.mark.few

TRAINING = Training(lr=0.05, tokens=48, batch=2, epochs=3)
STEPS = 9  # three batches in each of three epochs
each_kind = pytest.mark.parametrize("kind", KINDS)
each_case = pytest.mark.parametrize(("kind", "case"), covering(KINDS, list(CASES)))


def is_near(found: np.ndarray, wanted: np.ndarray) -> bool:
    """As near as float32 is that is summed in another order."""
    return found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def opened(kind: str, base: Base, case: str) -> Engine:
    task, name = CASES[case]
    return engine_of(kind, base, task, name, training=TRAINING)


# Reading


@pytest.mark.few(3)
@each_case
def test_texts_are_judged_the_same_however_they_lie_in_batches(
    tiny_base: Base, kind: str, case: str
) -> None:
    engine = opened(kind, tiny_base, case)
    losses, is_right = engine.judge(TAGGED, draw=3)
    prompts = engine.encoder.prompts(TAGGED, draw=3)
    assert losses.shape == is_right.shape == (sum(len(one.places) for one in prompts),)
    engine.use(replace(engine.plan, micro_batch=1, tokens=8))
    alone, alone_right = engine.judge(TAGGED, draw=3)
    assert is_near(alone, losses) and (alone_right == is_right).all()


@pytest.mark.few(3)
@each_case
def test_the_mean_of_what_is_judged_is_the_loss_that_a_step_tells(
    tiny_base: Base, kind: str, case: str
) -> None:
    engine = opened(kind, tiny_base, case)
    losses, _ = engine.judge(TAGGED, draw=3)
    batch = engine.encoder.batch(engine.encoder.prompts(TAGGED, draw=3))
    for micro_batch in (len(TAGGED), 2, 1):
        engine.use(replace(engine.plan, micro_batch=micro_batch))
        loss, _ = engine.gradients(batch)
        assert loss == pytest.approx(losses.mean(), rel=1e-5)
    assert engine.train_step(batch) == pytest.approx(losses.mean(), rel=1e-5)
    assert len(batch.labels) == len(losses)


@each_kind
@pytest.mark.parametrize("name", ["lora:4", "head"])
def test_labels_are_judged_as_they_are_predicted(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name)
    losses, is_right = engine.judge(TEXTS)
    rows, labels = engine.predict(TEXTS), np.array(engine.encoder.labels(TEXTS))
    assert is_near(losses, -rows[np.arange(len(labels)), labels])
    assert (is_right == (rows.argmax(axis=1) == labels)).all()


@each_kind
@pytest.mark.parametrize("name", ["lora:4", "prompt:20", "bias/top1"])
@pytest.mark.parametrize("tokens", [8, 48, 500])
def test_no_text_is_asked_for_more_words_than_its_plan_has_room_for(
    tiny_base: Base, kind: str, name: str, tokens: int
) -> None:
    training = replace(TRAINING, tokens=tokens)
    work = workload(kind, tiny_base, MLM, parse_adapter(name), training)
    encoder = engine_of(kind, tiny_base, MLM, name, training=training).encoder
    long = [Example("home " * 99, "family " * 99), Example("microwave " * 99), *TAGGED]
    prompts = encoder.prompts(long)
    assert max(len(prompt.ids) for prompt in prompts) == work.longest
    asked = max(len(prompt.places) for prompt in prompts)
    assert asked <= work.masked == most_masked(MLM.masking, work.longest) <= asked + 1


@each_kind
@pytest.mark.parametrize("name", ["head", "prompt:4+head"])
def test_each_word_that_is_read_has_a_row_of_its_tags(
    tiny_base: Base, kind: str, name: str
) -> None:
    engine = opened(kind, tiny_base, f"tagging {name}")
    found = engine.tag(TAGGED)
    assert [rows.shape for rows in found] == [(len(one.words), 5) for one in TAGGED]
    np.testing.assert_allclose(np.exp(np.concatenate(found)).sum(axis=1), 1.0, rtol=1e-5)
    losses, _ = engine.judge(TAGGED)
    gold = [TAGGING.tags.index(tag) for one in TAGGED for tag in one.tags]
    told = np.concatenate(found)
    assert is_near(losses, -told[np.arange(len(gold)), gold])


@each_kind
def test_texts_without_tags_are_tagged_alike(tiny_base: Base, kind: str) -> None:
    engine = opened(kind, tiny_base, "tagging head")
    bare = [replace(example, tags=()) for example in TAGGED]
    for rows, wanted in zip(engine.tag(bare), engine.tag(TAGGED), strict=True):
        assert rows.tobytes() == wanted.tobytes()


@pytest.mark.few(3)
@each_case
def test_a_cache_of_frozen_layers_changes_no_more_than_its_rounding(
    tiny_base: Base, tmp_path: Path, kind: str, case: str
) -> None:
    engine = opened(kind, tiny_base, case)
    batch = engine.encoder.batch(engine.encoder.prompts(TAGGED, draw=1))
    before, wanted = engine.judge(TAGGED, draw=1)[0], engine.gradients(batch)[1]
    engine.remember(ActivationCache(tmp_path, 1 << 20, "base"))
    for _ in range(2):  # computed, then read
        np.testing.assert_allclose(engine.judge(TAGGED, draw=1)[0], before, atol=5e-3)
        for name, found in engine.gradients(batch)[1].items():
            assert np.linalg.norm(found - wanted[name]) <= 5e-3 * np.linalg.norm(wanted[name])


# Training


@pytest.mark.few(3)
@each_case
def test_the_task_is_learnt(tiny_base: Base, kind: str, case: str) -> None:
    engine = opened(kind, tiny_base, case)
    before, start = engine.judge(TAGGED, draw=9)[0].mean(), engine.adapter()
    trained = train(engine, TAGGED, replace(TRAINING, epochs=12), seed=5)
    assert all(tensor.any() for tensor in trained.delta.values()) and trained.num_examples == 5
    assert engine.judge(TAGGED, draw=9)[0].mean() < before
    engine.load_adapter(start)
    assert same(train(engine, TAGGED, replace(TRAINING, epochs=12), seed=5), trained)


@each_kind
def test_other_words_are_masked_in_each_epoch_and_the_same_by_each_seed(
    tiny_base: Base, kind: str
) -> None:
    encoder = opened(kind, tiny_base, "mlm lora:4").encoder
    asked, again = (prompts_by_epoch(encoder, TAGGED, 5) for _ in range(2))
    assert asked(0) != asked(1) != asked(2) and asked(0) != asked(2)
    assert again(2) == asked(2)  # without those before
    assert prompts_by_epoch(encoder, TAGGED, 6)(0) != asked(0)
    draw = derive_seed(5, "masks", 2)
    assert asked(2) == encoder.prompts(TAGGED, draw)


@pytest.mark.few(3)
@each_case
def test_left_in_the_middle_of_an_epoch_it_ends_in_the_same_bytes(
    tiny_base: Base, tmp_path: Path, kind: str, case: str
) -> None:
    expected = train(opened(kind, tiny_base, case), TAGGED, TRAINING, 5)
    assert expected.steps == STEPS
    for after in (1, 4, 5, STEPS - 1):
        path, leaving, trained = tmp_path / f"{after}.st", Leaving(after), None
        while trained is None:
            engine = opened(kind, tiny_base, case)  # another process, in all but name
            try:
                keeper = StepFile(path, BOUND, leaving)
                trained = train(engine, TAGGED, TRAINING, 5, keeper=keeper)
            except Paused:
                continue
        assert leaving.steps == STEPS and same(trained, expected)


@pytest.mark.few(3)
@each_case
def test_a_texts_weight_is_that_of_all_its_answers(tiny_base: Base, kind: str, case: str) -> None:
    engine = opened(kind, tiny_base, case)
    prompts = engine.encoder.prompts(TAGGED, draw=2)
    weights = [1.0, 0.0, 0.5, 0.25, 2.0]
    losses = np.split(engine.judge(TAGGED, draw=2)[0], np.cumsum([len(p.places) for p in prompts]))
    weighed = [weight * one.sum() for weight, one in zip(weights, losses[:-1], strict=True)]
    count = sum(len(prompt.places) for prompt in prompts)
    for micro_batch in (5, 2):
        engine.use(replace(engine.plan, micro_batch=micro_batch))
        loss, _ = engine.gradients(engine.encoder.batch(prompts, weights))
        assert loss == pytest.approx(sum(weighed) / count, rel=1e-5)

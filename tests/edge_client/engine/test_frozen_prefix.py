"""What the frozen layers give, from a cache or not: the same answers, features and training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.spec import AdapterSpec, frozen_layers, parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.frozen_layers_cache import FrozenPrefix
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, TEXTS, batch_of, engine_of
from tests.tiny import write_tiny_base

FROZEN = ["lora:4/top1", "bias/top1", "lora:2@q,k,v,o,up,down/top1+head", "head"]
each_engine = pytest.mark.parametrize("kind", KINDS)
each_adapter = pytest.mark.parametrize("name", FROZEN)


def cache_in(folder: Path, limit_bytes: int = 1 << 20) -> ActivationCache:
    return ActivationCache(folder, limit_bytes, "base")


def with_cache(engine: Engine, folder: Path, limit_bytes: int = 1 << 20) -> Engine:
    engine.remember(cache_in(folder, limit_bytes))
    return engine


# How many layers are frozen


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lora:8", 0),
        ("bias+head", 0),
        ("prompt:8", 0),
        ("prompt:8+head", 0),
        ("head", 6),
        ("lora:8/top2", 4),
        ("bias/top5+head", 1),
        ("lora:8@o/top6", 0),
    ],
)
def test_layers_are_frozen_below_everything_that_is_trained(name: str, expected: int) -> None:
    assert frozen_layers(parse_adapter(name), 6) == expected


@given(st.integers(1, 40), st.integers(0, 40))
def test_an_adapter_of_more_top_layers_freezes_fewer(layers: int, top: int) -> None:
    spec = AdapterSpec(rank=4, targets=("q",), top=min(top, layers))
    assert frozen_layers(spec, layers) + (spec.top or layers) == layers


# The prefix alone


def texts_of(lengths: list[int]) -> Batch:
    width = max(lengths)
    ids = np.arange(len(lengths) * width).reshape(len(lengths), width)
    attention = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    places = np.zeros(len(lengths), np.int64)
    return Batch(ids * attention, attention, places, places)


class Layers:
    """States that are a text's ids; counts the texts that were computed."""

    def __init__(self) -> None:
        self.texts = 0

    def __call__(self, batch: Batch) -> np.ndarray:
        self.texts += len(batch.ids)
        states: np.ndarray = batch.ids[:, :, None].repeat(3, axis=2).astype(np.float32) / 7
        return states


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_found_and_computed_texts_lie_side_by_side_with_zeros_behind(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    batch, layers = texts_of(lengths), Layers()
    prefix = FrozenPrefix(cache_in(tmp_path_factory.mktemp("cache")), 2)
    known = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True))
    for row in known:
        alone = Batch(*(part[[row]] for part in vars(batch).values() if part is not None))
        prefix.states(alone, "float32", layers, np.empty((1, max(lengths), 3), np.float32))
    out = np.full((len(lengths), max(lengths), 3), np.nan, np.float32)
    prefix.states(batch, "float32", layers, out)
    wanted = (Layers()(batch).astype(np.float16) * batch.attention[:, :, None]).astype(np.float32)
    assert (out == wanted).all() and layers.texts == len(lengths)


def test_values_beyond_float16_are_neither_rounded_nor_kept(tmp_path: Path) -> None:
    batch, layers = texts_of([3, 2]), Layers()
    batch.ids[0, 1] = 600_000
    prefix = FrozenPrefix(cache_in(tmp_path), 2)
    outs = [np.empty((2, 3, 3), np.float32) for _ in range(2)]
    for out in outs:
        prefix.states(batch, "float32", layers, out)
    assert (outs[0] == outs[1]).all() and layers.texts == 3
    assert (outs[0][0] == Layers()(batch)[0]).all() and outs[0][0].max() > 65504


def test_what_was_computed_in_another_type_is_not_taken(tmp_path: Path) -> None:
    batch, layers = texts_of([3, 2]), Layers()
    prefix, out = FrozenPrefix(cache_in(tmp_path), 2), np.empty((2, 3, 3), np.float32)
    for dtype in ("float32", "bfloat16", "float32"):
        prefix.states(batch, dtype, layers, out)
    assert layers.texts == 4


# Engines with a cache


@pytest.mark.few
@each_engine
@each_adapter
def test_cached_answers_are_the_uncached_ones(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name)
    plain = engine.predict(TEXTS)
    empty, full = (with_cache(engine, tmp_path / "kept").predict(TEXTS) for _ in range(2))
    nothing = with_cache(engine, tmp_path / "none", 0).predict(TEXTS)
    assert (empty.argmax(axis=1) == plain.argmax(axis=1)).all()
    np.testing.assert_allclose(empty, plain, rtol=1e-3)  # the states at the cut are float16
    np.testing.assert_allclose(full, empty, atol=1e-6)
    np.testing.assert_allclose(nothing, empty, atol=1e-6)
    engine.remember(None)
    assert (engine.predict(TEXTS) == plain).all()


@pytest.mark.few
@each_engine
@pytest.mark.parametrize("name", ["lora:8/top1", "head"])
def test_a_real_bases_labels_are_the_same_with_a_cache(
    real_base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str
) -> None:
    engine = engine_of(kind, real_base, hub_task, name)
    plain = engine.predict(TEXTS)
    cached = with_cache(engine, tmp_path).predict(TEXTS)
    assert (cached.argmax(axis=1) == plain.argmax(axis=1)).all()
    np.testing.assert_allclose(cached, plain, rtol=1e-3)
    assert (engine.predict(TEXTS) == cached).all()


@pytest.mark.few
@each_engine
@each_adapter
def test_a_half_full_cache_changes_no_answer(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str
) -> None:
    engine = with_cache(engine_of(kind, tiny_base, hub_task, name), tmp_path)
    engine.predict(TEXTS[::2])
    mixed = engine.predict(TEXTS)
    nothing = with_cache(engine, tmp_path / "none", 0).predict(TEXTS)
    # Beside other texts a text differs by float32's rounding, which may tip one to float16.
    np.testing.assert_allclose(mixed, nothing, atol=2e-4)


@pytest.mark.few
@each_engine
@each_adapter
def test_training_on_cached_states_is_training_on_computed_ones(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str
) -> None:
    training, deltas = Training(lr=0.01, epochs=3, batch=6), []
    for limit, folder in ((1 << 20, "kept"), (1 << 20, "kept"), (0, "none"), (None, "")):
        engine = engine_of(kind, tiny_base, hub_task, name)
        if limit is not None:
            with_cache(engine, tmp_path / folder, limit)
        deltas.append(train(engine, TEXTS, training, seed=1).delta)
    first, again, nothing, plain = deltas
    assert encode_adapter(first) == encode_adapter(again)
    for tensor, delta in first.items():
        np.testing.assert_allclose(nothing[tensor], delta, atol=1e-6)
        np.testing.assert_allclose(plain[tensor], delta, atol=0.01)  # steps of 0.01


@pytest.mark.few
@each_engine
@each_adapter
def test_cached_features_are_the_uncached_ones(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name)
    layers = frozen_layers(parse_adapter(name), tiny_base.layers)
    plain = engine.features(TEXTS, layers)
    with_cache(engine, tmp_path)
    empty, before = engine.features(TEXTS, layers), engine.layer_forwards
    full = engine.features(TEXTS, layers)
    assert engine.layer_forwards == before and (full == empty).all()
    np.testing.assert_allclose(empty, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.few
@each_engine
@pytest.mark.parametrize("name", ["lora:4", "bias", "prompt:4", "prompt:4+head"])
def test_where_the_lowest_layer_is_trained_nothing_is_kept_or_rounded(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name)
    plain = engine.predict(TEXTS)
    assert (with_cache(engine, tmp_path).predict(TEXTS) == plain).all()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@each_engine
def test_a_head_asked_at_another_place_is_another_entry(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    engine = with_cache(engine_of(kind, tiny_base, hub_task, "head"), tmp_path)
    batch = batch_of(engine)
    losses = [engine.train_step(batch)]
    batch.mask_positions[:] = 2
    before = engine.layer_forwards
    losses.append(engine.train_step(batch))
    assert losses[0] != losses[1] and engine.layer_forwards > before


@each_engine
def test_plans_that_train_fewer_layers_start_from_the_same_cut(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    engine = with_cache(engine_of(kind, tiny_base, hub_task, "lora:4/top1"), tmp_path)
    engine.predict(TEXTS)
    for change in ({"micro_batch": 2}, {"recompute": (1,)}, {"is_kept_in_half": True}):
        engine.use(replace(engine.plan, **change))
        before = engine.layer_forwards
        engine.train_step(batch_of(engine))
        again = 1 if engine.plan.recompute else 0
        assert engine.layer_forwards - before == len(TEXTS) * (1 + 2 + again)


def test_half_precision_is_kept_as_it_was_computed(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    engine = with_cache(engine_of("torch", tiny_base, hub_task, "lora:4/top1"), tmp_path)
    engine.use(replace(engine.plan, dtype="bfloat16"))
    computed, before = engine.predict(TEXTS), engine.layer_forwards
    assert (engine.predict(TEXTS) == computed).all()
    assert engine.layer_forwards - before == len(TEXTS)
    engine.remember(None)
    np.testing.assert_allclose(engine.predict(TEXTS), computed, atol=0.05)  # three digits


def test_quick_reading_is_quick_above_the_cut_alone(
    tmp_path_factory: pytest.TempPathFactory, hub_task: Task, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    source = write_tiny_base(tmp_path_factory.mktemp("wide") / "base", hidden=64)
    pack_model(str(source), 8, tmp_path / "pack")
    engine = engine_of("onnx", open_base(str(tmp_path / "pack")), hub_task, "lora:4/top1")
    network, batch = engine._backend.network, batch_of(engine)  # type: ignore[attr-defined]
    engine.remember(cache_in(tmp_path / "first"))
    exact = network.logits(batch)
    engine.remember(cache_in(tmp_path / "second"))
    quick, before = network.logits(batch, is_quick=True), engine.layer_forwards
    assert (network.logits(batch) == exact).all() and (quick != exact).any()
    assert engine.layer_forwards - before == len(TEXTS)

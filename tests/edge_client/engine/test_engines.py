"""What every engine does, each that is installed here."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.layout import checked_shape
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.planning.allocator import is_glibc_linux
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.ridge import WEIGHT
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.breadth import first_fast
from tests.edge_client.engine.engines import KINDS, SPECS, TEXTS, batch_of, engine_of
from tests.tiny import write_tiny_base

pytestmark = [pytest.mark.parametrize("kind", KINDS), pytest.mark.few]


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base whose matrices are whole blocks of 64 columns."""
    return write_tiny_base(tmp_path_factory.mktemp("wide") / "base", hidden=64)


# Adapters


@pytest.mark.parametrize("name", SPECS)
def test_the_adapter_that_was_loaded_is_the_one_that_comes_back(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    state = initial_adapter(parse_adapter(name), tiny_base, 6, seed=3)
    adapter = engine_of(kind, tiny_base, hub_task, name).adapter()
    assert encode_adapter(adapter) == encode_adapter(state)


def test_an_adapter_that_was_given_out_is_a_copy(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:4")
    for tensor in engine.adapter().values():
        tensor[:] = 7
    assert all(abs(tensor).max() < 7 for tensor in engine.adapter().values())


def test_an_adapter_of_another_shape_is_named(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:4")
    wrong = initial_adapter(parse_adapter("lora:2"), tiny_base, 6, seed=3)
    with pytest.raises(WireError, match="has shape"):
        engine.load_adapter(wrong)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", SPECS)
def test_every_adapter_tensor_moves_and_the_base_does_not(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name)
    before, rows = engine.adapter(), engine.predict(TEXTS)
    train(engine, TEXTS, Training(epochs=2, batch=3), seed=1)
    after = engine.adapter()
    still = {tensor for tensor in before if (after[tensor] == before[tensor]).all()}
    assert still == {WEIGHT} & set(before)  # ridge regression rests
    assert (engine.predict(TEXTS) != rows).any()
    engine.load_adapter(before)
    assert (engine.predict(TEXTS) == rows).all()  # so nothing else has moved


# Training


def test_training_brings_the_loss_down(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:8@q,k,v,o,up,down", lr=0.01)
    first = train(engine, TEXTS, Training(epochs=1, batch=6), seed=1).loss
    last = train(engine, TEXTS, Training(epochs=12, batch=6), seed=1).loss
    assert last < first / 2


def test_training_brings_a_real_bases_loss_down(real_base: Base, hub_task: Task, kind: str) -> None:
    engine = engine_of(kind, real_base, hub_task, "lora:8", lr=0.005)
    first = train(engine, TEXTS, Training(epochs=1, batch=6), seed=1).loss
    last = train(engine, TEXTS, Training(epochs=8, batch=6), seed=1).loss
    assert last < first / 2


@pytest.mark.parametrize("name", ["lora:4", "prompt:4", "bias", "lora:2+head"])
def test_two_equal_trainings_are_bitwise_equal(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    deltas = [
        train(
            engine_of(kind, tiny_base, hub_task, name), TEXTS, Training(epochs=3, batch=2), seed=9
        ).delta
        for _ in range(2)
    ]
    assert encode_adapter(deltas[0]) == encode_adapter(deltas[1])


def test_a_resident_engine_trains_as_a_fresh_one(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    fresh, used = (engine_of(kind, tiny_base, hub_task, "lora:4") for _ in range(2))
    start = used.adapter()
    train(used, TEXTS, Training(epochs=2), seed=5)
    used.predict(TEXTS)
    used.load_adapter(start)
    deltas = [train(engine, TEXTS, Training(epochs=2), seed=6).delta for engine in (fresh, used)]
    assert encode_adapter(deltas[0]) == encode_adapter(deltas[1])


def test_an_engine_that_has_rested_goes_on_as_one_that_has_not(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    states = []
    for rests in (False, True):
        engine = engine_of(kind, tiny_base, hub_task, "lora:4")
        for _ in range(3):
            engine.train_step(batch_of(engine))
            if rests:
                engine.rest()
        states.append(encode_adapter(engine.adapter()))
    assert states[0] == states[1]


@pytest.mark.few(4)
@pytest.mark.parametrize("name", SPECS)
def test_one_step_by_any_plan_moves_the_adapter_alike(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    steps = []
    ways: list[tuple[int, tuple[int, ...]]] = [
        (8, ()),
        (8, (0, 1)),
        (8, (1,)),
        (4, ()),
        (1, (0, 1)),
    ]
    for micro_batch, recompute in ways:
        engine = engine_of(kind, tiny_base, hub_task, name)
        engine.use(replace(engine.plan, micro_batch=micro_batch, recompute=recompute))
        engine.train_step(batch_of(engine))
        steps.append(engine.adapter())
    for tensor in steps[0]:
        for other in steps[1:]:
            # AdamW's first step goes 0.01 whatever the gradient's size; one of 1e-8 goes less.
            np.testing.assert_allclose(steps[0][tensor], other[tensor], atol=2e-5)


def test_layers_below_the_plans_depth_stay_as_they_are(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:4")
    engine.use(replace(engine.plan, depth=1))
    before = engine.adapter()
    train(engine, TEXTS, Training(epochs=2, batch=3), seed=1)
    moved = {name for name, tensor in engine.adapter().items() if (tensor != before[name]).any()}
    assert moved == {name for name in before if ".layer.1." in name}


# Bases


def stored_as(form: str, source: Path, out: Path) -> Base:
    """The tiny base in another form: a pack, or a folder of float16 or float32."""
    if form.isdigit():
        pack_model(str(source), int(form), out)
        return open_base(str(out))
    shutil.copytree(source, out)
    tensors = load_file(source / "model.safetensors")
    halves = {name: tensor.astype(form) for name, tensor in tensors.items()}
    save_file(halves, out / "model.safetensors")
    return open_base(str(out))


def written_out(base: Base, out: Path) -> Base:
    """A folder of what a base's stored numbers stand for, in float32."""
    out.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base.folder / name, out)
    with base.open_weights() as weights:
        tensors = {
            name: weights.rows(name, range(shape[0])) if len(shape) == 2 else weights.vector(name)
            for name in weights.names
            for shape in [weights.shape(name)]
        }
    save_file(tensors, out / "model.safetensors")
    return open_base(str(out))


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["4", "8", "16", "float16"])
def test_a_base_is_trained_as_what_its_numbers_stand_for(
    wide_folder: Path, hub_task: Task, tmp_path: Path, kind: str, form: str
) -> None:
    base = stored_as(form, wide_folder, tmp_path / "stored")
    plain = written_out(base, tmp_path / "plain")
    assert (base.bits, plain.bits) == (int(form.removeprefix("float")), 32)
    engines = [engine_of(kind, each, hub_task, "lora:2@q,k,v,o,up,down") for each in (base, plain)]
    rows = [engine.predict(TEXTS) for engine in engines]
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-5, atol=1e-5)
    deltas = [train(engine, TEXTS, Training(epochs=2, batch=3), seed=1).delta for engine in engines]
    for name, delta in deltas[0].items():
        np.testing.assert_allclose(delta, deltas[1][name], atol=1e-4)  # of steps of 0.01


def test_a_decoder_is_asked_for_no_masks(tiny_base: Base, kind: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "vocab_size": 100, "max_position_embeddings": 64}
    shape = checked_shape(sizes | {"model_type": "llama"})
    base = replace(tiny_base, shape=shape)
    task = Task("notes", kind="mlm")
    with pytest.raises(AdapterError, match="is a causal language model") as told:
        open_engine(kind, base, task, parse_adapter("lora:4"), Training())
    assert str(told.value).endswith("such as roberta")


# Reading


def test_predictions_are_log_probabilities_in_the_given_order(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:4")
    rows = engine.predict(TEXTS)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.exp(rows).sum(axis=1), 1.0, rtol=1e-5)
    alone = np.concatenate([engine.predict([text]) for text in TEXTS])
    np.testing.assert_allclose(rows, alone, rtol=1e-4, atol=1e-5)  # only padding differs


@pytest.mark.parametrize("name", ["lora:4", "prompt:4"])
def test_features_are_one_row_a_text_at_any_layer(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name)
    for layer in range(tiny_base.layers + 1):
        rows = engine.features(TEXTS, layer)
        assert rows.shape == (len(TEXTS), tiny_base.hidden) and np.ptp(rows, axis=0).min() > 1e-3
        np.testing.assert_allclose(rows[3:4], engine.features(TEXTS[3:4], layer), atol=1e-5)


def test_no_texts_are_no_rows(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:4")
    assert engine.predict([]).shape == (0, 6) and engine.features([], 1).shape == (0, 16)


# Memory, in processes of their own

OPENING = """
import json, resource, sys
import numpy as np
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.planning.allocator import let_go_of_code, resident_bytes, trim
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.opening import load_engine, open_engine
from smidgen.edge_client.planning.budget import is_allocation_failure
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.training import Training
from smidgen.edge_client.wire.tensors import encode_adapter

words = ("mail", "power")
task = Task("hub", words, ("{text} . [MASK] .",), dict(zip(words, words)))
texts = [Example("parcel " * 60, label=words[row % 2]) for row in range(200)]
kind, spec = sys.argv[1], parse_adapter("lora:4")
load_engine(kind)
engine = open_engine(kind, open_base(sys.argv[2]), task, spec, Training(lr=0.01, batch=200))
prompts = engine.encoder.prompts(texts)
few = engine.encoder.batch(prompts[:2])
every = engine.encoder.batch(prompts)
"""
GIVING_BACK = """
def resting():
    trim()
    let_go_of_code()  # of which another step touches more
    return resident_bytes()

engine.train_step(few)
engine.rest()
sizes = [resting()]
for _ in range(2):
    engine.train_step(every)
    engine.rest()
    sizes.append(resting())
engine.close()
print(json.dumps([*sizes, resting()]))
"""
FAILING = """
def starved():
    held = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + (int(sys.argv[3]) << 20), -1))
    try:
        engine.train_step(every)
    except (MemoryError, RuntimeError) as error:
        assert is_allocation_failure(error), error
        return True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
    return False

engine.train_step(few)
start = encode_adapter(engine.adapter())
failed = starved()
kept = start == encode_adapter(engine.adapter())
engine.train_step(few)
after = encode_adapter(engine.adapter())
again = open_engine(kind, open_base(sys.argv[2]), task, spec, Training(lr=0.01, batch=200))
for _ in range(2):
    again.train_step(few)
print(json.dumps([failed, kept, after == encode_adapter(again.adapter())]))
"""


def answer(program: str, *arguments: object) -> list[int]:
    """What a fresh interpreter prints last, as JSON."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.skipif(not is_glibc_linux(), reason="freed memory goes back as glibc gives it")
def test_what_steps_have_taken_is_given_back_at_rest_and_at_the_end(
    wide_folder: Path, kind: str
) -> None:
    small, *large, closed = answer(OPENING + GIVING_BACK, kind, wide_folder)
    taken = 200 * 64 * 64 * 4 * 2 * 7  # bytes of queries, keys, values and sums of two layers
    assert all(size - small < taken / 8 for size in large)
    assert closed - small < taken / 8


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts so on Linux alone")
@pytest.mark.parametrize("spare_mib", first_fast([12, 0]))
def test_a_step_without_memory_leaves_adapter_and_optimizer_as_they_were(
    wide_folder: Path, kind: str, spare_mib: int
) -> None:
    assert answer(OPENING + FAILING, kind, wide_folder, spare_mib) == [True, True, True]

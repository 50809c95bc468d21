"""What only the onnx engine does; what every engine does is in `test_engines`."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.engine.onnx_backend.backend import OnnxBackend, threads
from smidgen.edge_client.engine.onnx_backend.head import cross_entropy
from smidgen.edge_client.engine.onnx_backend.network import Network
from smidgen.edge_client.engine.onnx_backend.spill import Spill
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.planning.plan import give_same_bytes
from smidgen.edge_client.planning.resources import usable_cores
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import SPECS, TEXTS, batch_of, engine_of
from tests.tiny import write_tiny_base

TRAINED = """
import sys
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.budgeted import open_within
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.wire.training import Training

words = ("mail", "power")
task = Task("hub", words, ("{text} . [MASK] .",), dict(zip(words, words)))
texts = [Example("a parcel", label="mail"), Example("twelve units", label="power")]
base, training = open_base(sys.argv[1]), Training(tokens=32, batch=2)
engine = open_within("onnx", base, task, parse_adapter("lora:4"), training, 2 << 30)
train(engine, texts, training, seed=1)
evaluate(engine, texts)
engine.features(texts, 1)
engine.close()
print(*sys.modules)
"""

STARVED = """
import resource, sys
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.planning.budget import is_allocation_failure
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.training import Training

words = ("mail", "power")
task = Task("hub", words, ("{text} . [MASK] .",), dict(zip(words, words)))
engine = open_engine("onnx", open_base(sys.argv[1]), task, parse_adapter("lora:4"), Training())
batch = engine.encoder.batch(engine.encoder.prompts([Example("a parcel", label="mail")]))
held = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (held + (3 << 19), -1))  # less than a stack
try:
    engine.train_step(batch)
except Exception as error:
    print(is_allocation_failure(error), error)
resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
engine.train_step(batch)
"""


def network_of(engine: Any) -> Network:
    network: Network = engine._backend.network
    return network


def test_a_process_that_has_trained_holds_nothing_but_the_runtime(tiny_base: Base) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINED, str(tiny_base.folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert {"smidgen", "numpy", "onnxruntime"} <= loaded
    assert not loaded & {"torch", "transformers", "peft", "bitsandbytes", "onnx"}
    assert "smidgen.coordinator" not in loaded


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts so on Linux alone")
def test_a_thread_or_a_graph_that_cannot_be_had_is_want_of_memory(tmp_path: Path) -> None:
    source = write_tiny_base(tmp_path / "base", hidden=64)
    pack_model(str(source), 4, tmp_path / "pack")
    done = subprocess.run(
        [sys.executable, "-c", STARVED, str(tmp_path / "pack")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    assert done.stdout.startswith(("True no memory for a thread", "True no memory for a graph"))


@pytest.mark.parametrize(
    ("asked", "given"), [("1", 1), ("3", 3), ("0", None), ("", None), ("4,2", None), ("-1", None)]
)
def test_threads_are_those_asked_for_or_all_processors(
    monkeypatch: pytest.MonkeyPatch, asked: str, given: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads() == (given or usable_cores())
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads() == usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", SPECS)
def test_gradients_are_the_slopes_of_the_loss(tiny_base: Base, hub_task: Task, name: str) -> None:
    """Exactly so in `tests/parity`; this needs no torch."""
    engine = engine_of("onnx", tiny_base, hub_task, name)
    network, batch, generator = (
        network_of(engine),
        batch_of(engine),
        np.random.Generator(np.random.PCG64(0)),
    )
    for array in network.adapter.values():
        array += 0.05 * generator.standard_normal(array.shape, np.float32)
    _, gradients = network.backward(batch, engine.plan)
    for tensor, gradient in gradients.items():
        array, size, losses = network.adapter[tensor], float(np.linalg.norm(gradient)), []
        start = array.copy()
        for step in (0.01, -0.01):
            np.copyto(array, start + step * gradient / size)
            losses.append(cross_entropy(network.logits(batch), batch.labels)[0])
        np.copyto(array, start)
        # Losses are good to 1e-7 or so; what bends the loss adds some parts in a thousand.
        assert (losses[0] - losses[1]) / 0.02 == pytest.approx(size, rel=0.01, abs=1e-4), tensor


@pytest.mark.parametrize("name", ["lora:4", "prompt:4", "head", "lora:4/top1"])
def test_padding_has_no_rows(tiny_base: Base, hub_task: Task, name: str) -> None:
    engine = engine_of("onnx", tiny_base, hub_task, name)
    batch, network = batch_of(engine), network_of(engine)
    more = ((0, 0), (0, 9))
    ids = np.pad(batch.ids, more, constant_values=7)
    wide = replace(batch, ids=ids, attention=np.pad(batch.attention, more))
    for found, again in zip(*(network.read(some) for some in (batch, wide)), strict=True):
        np.testing.assert_array_equal(found, again)
    (loss, gradients), (again, those) = (engine.gradients(some) for some in (batch, wide))
    assert loss == again
    for key in gradients:
        np.testing.assert_array_equal(gradients[key], those[key])
    rows = batch.attention.sum() + len(batch.ids) * engine.encoder.soft
    room = network._bench.rooms._rooms["x0"]
    assert len(room) == 4 * rows * engine._hidden


@pytest.mark.parametrize("name", ["lora:4", "prompt:4", "bias"])
def test_inputs_that_wait_in_half_precision_move_the_adapter_nearly_alike(
    tiny_base: Base, hub_task: Task, name: str
) -> None:
    exact, half = (engine_of("onnx", tiny_base, hub_task, name) for _ in range(2))
    half.use(replace(half.plan, is_kept_in_half=True, recompute=(0,)))
    batch = batch_of(exact)
    found = [network_of(engine).backward(batch, engine.plan) for engine in (exact, half)]
    assert found[0][0] == found[1][0]  # forward is computed from the inputs as they were
    errors = {
        tensor: float(np.linalg.norm(found[1][1][tensor] - gradient) / np.linalg.norm(gradient))
        for tensor, gradient in found[0][1].items()
        if gradient.any()  # of lora_A none has, as long as lora_B is zero
    }
    assert 0 < max(errors.values()) <= 2e-3  # float16 has eleven bits


@pytest.mark.parametrize("name", ["lora:4", "prompt:4", "bias", "lora:4/top1"])
def test_inputs_that_wait_in_a_file_give_the_bytes_of_those_that_do_not(
    tiny_base: Base, hub_task: Task, name: str
) -> None:
    kept, spilled = (engine_of("onnx", tiny_base, hub_task, name) for _ in range(2))
    plan = replace(spilled.plan, is_spilled=True, recompute=spilled.plan.recompute[:1])
    spilled.use(plan)
    assert give_same_bytes(plan, kept.plan)
    for _ in range(2):
        for engine in (kept, spilled):
            engine.train_step(batch_of(engine))
    for tensor, values in kept.adapter().items():
        assert np.array_equal(values, spilled.adapter()[tensor])
    spilled.close()


def test_a_file_that_cannot_be_had_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    engine = engine_of("onnx", tiny_base, hub_task, "lora:4")
    engine.use(replace(engine.plan, is_spilled=True))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    with pytest.raises(EngineError, match="gone: No such file or directory; free some, set TMPDIR"):
        engine.train_step(batch_of(engine))


def test_inputs_that_are_not_whole_in_the_file_end_the_step(tmp_path: Path) -> None:
    spill, x = Spill(), np.ones((2, 3), np.float32)
    spill.write(0, x)
    assert spill._file is not None
    spill._file.truncate(8)
    with pytest.raises(EngineError, match="8 of 24 bytes are there; set TMPDIR"):
        spill.read(0, x)
    spill.close()


def test_a_spill_that_goes_closes_its_file() -> None:
    spill = Spill()
    spill.write(0, np.ones(3, np.float32))
    file = spill._file
    assert file is not None and not file.closed
    del spill
    assert file.closed


def test_rooms_are_given_back_at_rest_and_before_another_plan(
    tiny_base: Base, hub_task: Task
) -> None:
    engine = engine_of("onnx", tiny_base, hub_task, "lora:4")
    rooms = network_of(engine)._bench.rooms
    for give_back in (engine.rest, lambda: engine.use(replace(engine.plan, recompute=(0, 1)))):
        engine.train_step(batch_of(engine))
        assert rooms.bytes > 0
        give_back()
        assert rooms.bytes == 0
    engine.train_step(batch_of(engine))
    engine.use(engine.plan, ceiling_bytes=1 << 40)  # the same plan: the rooms will do
    assert rooms.bytes > 0
    engine.close()
    assert rooms.bytes == 0


def test_a_bias_that_is_trained_is_the_adapters_own_array(tiny_base: Base, hub_task: Task) -> None:
    engine = engine_of("onnx", tiny_base, hub_task, "bias")
    network = network_of(engine)
    linear = network._layers[1].linears["up"]
    assert linear.bias is network.adapter[f"{linear.name}.bias"]
    before = linear.bias.copy()
    train(engine, TEXTS, Training(epochs=1, batch=3), seed=1)
    assert (linear.bias != before).any()
    engine.load_adapter({name: np.zeros_like(a) for name, a in network.adapter.items()})
    assert linear.bias is network.adapter[f"{linear.name}.bias"] and not linear.bias.any()


def test_nothing_of_the_base_is_written_to(tiny_base: Base, hub_task: Task) -> None:
    engine = engine_of("onnx", tiny_base, hub_task, "lora:2@q,k,v,o,up,down")
    network, before = network_of(engine), tiny_base.weights.read_bytes()
    norms = [norm for layer in network._layers for norm in layer.norms.values()]
    linears = [linear for layer in network._layers for linear in layer.linears.values()]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    of_norms = [vector for norm in norms for vector in (norm.bias, norm.weight)]
    vectors = [(vector, vector.copy()) for vector in (*biases, *of_norms)]
    train(engine, TEXTS, Training(epochs=2, batch=3), seed=1)
    assert all((vector == copy).all() for vector, copy in vectors)
    assert tiny_base.weights.read_bytes() == before
    with tiny_base.open_weights() as fresh:
        for name in (name for name in fresh.names if len(fresh.shape(name)) == 2):
            mapped = network.frozen.weights.stored(name).data
            assert (mapped == fresh.stored(name).data).all()


def test_an_engine_that_is_closed_lets_go_of_its_weights(tiny_base: Base, hub_task: Task) -> None:
    engine = engine_of("onnx", tiny_base, hub_task, "lora:4")
    assert isinstance(engine._backend, OnnxBackend)
    engine.train_step(batch_of(engine))
    mapped = network_of(engine).frozen.weights._map
    engine.close()
    mapped.close()  # refused as long as somebody looks into it
    assert mapped.closed

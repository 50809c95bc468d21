"""Every engine's gradients against those that onnxruntime-training derives by itself.

Both are float32, so they differ by rounding: 3e-6 at most where this was written. What is compared
is a function from base, LoRA, its state, a batch and label words to loss and gradients by PEFT's
names; another engine is another entry of `ENGINES`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from smidgen.edge_client.adapters.spec import AdapterSpec, parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.families import FAMILIES
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.profiling.instruments.environment import make
from smidgen.profiling.peers import ort as ort_training
from tests.families import ENCODERS, write_family

pytest.importorskip("torch")
pytest.importorskip("transformers")
reference = pytest.importorskip("smidgen.profiling.benchmarks.gradients")

Gradients = tuple[float, dict[str, np.ndarray]]
Engine = Callable[[Base, AdapterSpec, AdapterState, Batch, Sequence[int]], Gradients]
ADAPTERS = ["lora:4", "lora:2@q,k,v,o,up,down"]
WORDS = [1010, 1020, 1030, 1040]
# The peer's graph is BERT's: a table of positions, and no bias by distance.
TRAINED = [
    name for name in ENCODERS if FAMILIES[name].positions and not FAMILIES[name].relative_bias
]


def by_torch(
    base: Base, spec: AdapterSpec, state: AdapterState, batch: Batch, words: Sequence[int]
) -> Gradients:
    from smidgen.edge_client.engine.torch_backend.network import Network

    network = Network(base, spec, state, [[word] for word in words])
    texts, tokens = batch.ids.shape
    loss = network.backward(batch, Plan("float32", texts, (), base.layers, tokens))
    found = {name: tensor.grad for name, tensor in network.adapter.items()}
    network.close()
    return loss, {name: grad.numpy() for name, grad in found.items() if grad is not None}


def by_onnx(
    base: Base, spec: AdapterSpec, state: AdapterState, batch: Batch, words: Sequence[int]
) -> Gradients:
    from smidgen.edge_client.engine.onnx_backend.network import Network

    network = Network(base, spec, state, [[word] for word in words], threads=2)
    texts, tokens = batch.ids.shape
    found = network.backward(batch, Plan("float32", texts, (), base.layers, tokens))
    network.close()
    return found


ENGINES: dict[str, Engine] = {"torch": by_torch, "onnx": by_onnx}


def by_ort(
    base: Base, spec: AdapterSpec, state: AdapterState, batch: Batch, words: Sequence[int]
) -> Gradients:
    """Loss and gradient of every tensor, derived in the package's own environment."""
    with TemporaryDirectory() as folder:
        artifacts, asked, answer = (Path(folder) / n for n in ("made", "batch.npz", "answer.npz"))
        ort_training.write_artifacts(base, spec, state, words, artifacts)
        np.savez(asked, **asdict(batch))
        files = map(str, (artifacts, asked, answer))
        make(ort_training.command("tests.profiling.peers.ort_gradients", *files), {})
        with np.load(answer) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    return float(found.pop("loss")), found


def compare(base: Base, adapter: str) -> None:
    spec = parse_adapter(adapter)
    state = reference.random_adapter(spec, base, labels=len(WORDS), seed=1)
    batch = reference.random_batch(base, batch=5, tokens=24, labels=len(WORDS), seed=3)
    assert not batch.attention.all()
    expected_loss, expected = by_ort(base, spec, state, batch, WORDS)
    for engine, compute in ENGINES.items():
        loss, found = compute(base, spec, state, batch, WORDS)
        assert loss == pytest.approx(expected_loss, rel=1e-5), engine
        assert set(found) == set(expected) == set(state), engine
        for name, gradient in expected.items():
            error = np.linalg.norm(found[name] - gradient) / np.linalg.norm(gradient)
            assert gradient.any() and error <= 1e-4, f"{engine}: {name}: {error}"


@pytest.mark.usefixtures("ort_training_environment")
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("family", TRAINED)
def test_every_engine_gives_the_gradients_of_onnxruntime_training(
    tiny_base: Base, tmp_path: Path, family: str, adapter: str
) -> None:
    compare(write_family(family, tiny_base, tmp_path), adapter)


@pytest.mark.usefixtures("ort_training_environment")
@pytest.mark.parametrize("bits", [4, 8])
def test_every_engine_on_a_pack_gives_the_gradients_of_its_dequantized_weights(
    tiny_base: Base, tmp_path: Path, bits: int
) -> None:
    source = write_family("roberta", tiny_base, tmp_path / "hf")
    pack_model(str(source.folder), bits, tmp_path / "pack")
    compare(open_base(str(tmp_path / "pack")), "lora:2@q,k,v,o,up,down")

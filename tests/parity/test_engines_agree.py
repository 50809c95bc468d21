"""The onnx engine against the torch engine: the same logits, gradients and training.

Both compute in float32 from the same stored numbers, in another order: some 1e-6 of a tensor's
norm, an order of magnitude more where a gradient nearly cancels.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.planning.layer_cost import inner_parts
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Training
from tests.breadth import covering
from tests.conftest import shared
from tests.families import DECODERS, ENCODERS, write_family

pytest.importorskip("torch")
pytest.importorskip("transformers")
gradients = pytest.importorskip("smidgen.profiling.benchmarks.gradients")

WORDS = [1010, 1020, 1030, 1040]
ADAPTERS = ["lora:4", "lora:2@q,k,v,o,up,down", "prompt:5", "bias", "head", "prompt:3+head"]
TOPS = ["lora:4/top2", "lora:2@q,o,down/top1+head", "bias/top1"]  # not of ALBERT
RANKS = ["lora:4/0=0/1.v=2:32", "lora:2@q,o/1.down=3", "lora:4/1=1/0.q=0+head"]
FORMS, SIZES = (4, 8, 16, 32), ((1, 5), (7, 60), (5, 24))
# Every family with every adapter; stored forms and sizes of a batch go round.
CASES = [
    pytest.param(*case.values, bits, *size, marks=case.marks)
    for case, bits, size in zip(
        (
            *covering(ENCODERS, ADAPTERS),
            *map(pytest.param, ("bert", "roberta", "distilbert"), TOPS),
            *map(pytest.param, ("bert", "roberta", "distilbert"), RANKS),
        ),
        cycle(FORMS),
        cycle(SIZES),
        strict=False,
    )
]
Bases = Callable[[str, int], Base]


@pytest.fixture(scope="module")
def bases(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """A family's random model, in 4, 8 or 16 bits, or as a folder of float32."""

    @cache
    def find(family: str, bits: int) -> Base:
        folder = tmp_path_factory.mktemp(family) / "base"
        if bits == 32:
            return write_family(family, tiny_base, folder)
        pack_model(str(find(family, 32).folder), bits, folder)
        return open_base(str(folder))

    return find


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.few(8)
@pytest.mark.parametrize(("family", "adapter", "bits", "batch", "tokens"), CASES)
def test_gradients_and_logits_agree(
    bases: Bases, family: str, adapter: str, bits: int, batch: int, tokens: int
) -> None:
    base, spec = bases(family, bits), parse_adapter(adapter)
    words = [] if spec.head else WORDS
    state = gradients.random_adapter(spec, base, labels=4, seed=1)
    inputs = gradients.random_batch(base, batch, tokens, labels=4, seed=3)
    plans = gradients.every_plan(base, spec, batch, tokens)
    logits = [reader(base, spec, state, words)(inputs) for reader in (torch_logits, onnx_logits)]
    assert distance(logits[1], logits[0]) <= 1e-5
    with (
        gradients.our_gradients(base, spec, state, words) as torch_gradients,
        gradients.our_gradients(base, spec, state, words, "onnx") as onnx_gradients,
    ):
        for plan in (plans[0], plans[2], plans[4], plans[-1]):
            loss, wanted = torch_gradients(inputs, plan)
            found_loss, found = onnx_gradients(inputs, plan)
            assert found_loss == pytest.approx(loss, rel=1e-5)
            assert set(found) == set(wanted) and all(g.any() for g in found.values())
            worst = max(wanted, key=lambda name: distance(found[name], wanted[name]))
            assert distance(found[worst], wanted[worst]) <= 1e-4, (plan, worst)


Read = Callable[[object], np.ndarray]


def torch_logits(base: Base, spec: object, state: AdapterState, words: list[int]) -> Read:
    from smidgen.edge_client.engine.torch_backend.network import Network

    network = Network(base, spec, state, [[word] for word in words])  # type: ignore[arg-type]
    return lambda batch: network.logits(batch, "float32").numpy()  # type: ignore[arg-type]


def onnx_logits(base: Base, spec: object, state: AdapterState, words: list[int]) -> Read:
    from smidgen.edge_client.engine.onnx_backend.network import Network

    network = Network(base, spec, state, [[word] for word in words], threads=2)  # type: ignore[arg-type]
    return lambda batch: network.logits(batch)  # type: ignore[arg-type]


WIDE: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 1536, "num_hidden_layers": 1}
WIDE |= {"num_attention_heads": 16, "max_position_embeddings": 640}


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("adapter", ["lora:2@q,k,v,o,up,down", "bias", "prompt:5", "lora:4"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "llama", "qwen3", "gemma3_text"])
def test_a_feed_forward_in_parts_gives_the_same_gradients(
    tiny_base: Base, tmp_path: Path, family: str, adapter: str, bits: int
) -> None:
    changes = dict(WIDE)
    if family in DECODERS:  # so that keys and values are in slices too
        changes |= {"num_key_value_heads": 16, "head_dim": 128}
    if family == "gemma3_text":
        changes |= {"layer_types": ["full_attention"], "query_pre_attn_scalar": 128}
    write_family(family, tiny_base, tmp_path / "wide", **changes)
    pack_model(str(tmp_path / "wide"), bits, tmp_path / "packed")
    base = open_base(str(tmp_path / "packed"))
    assert len(inner_parts(base.shape.hidden, base.shape.intermediate)) == 2
    if base.shape.is_decoder:
        adapter = {"bias": "lora:2@gate,down"}.get(adapter, adapter)
    spec, words = parse_adapter(adapter), None if base.shape.is_decoder else WORDS
    state = gradients.random_adapter(spec, base, labels=4, seed=1)
    inputs = gradients.random_batch(base, 3, 24, labels=4, seed=3)
    if words is None:  # more answers than a head reads together
        inputs = gradients.random_batch(base, 1, 600, labels=4, seed=3)
        places, texts = np.arange(599), np.zeros(599, np.int64)
        labels = inputs.ids[0, 1:]
        inputs = replace(inputs, mask_positions=places, labels=labels, texts=texts)
    batch, tokens = inputs.ids.shape
    whole = Plan("float32", batch, (), 1, tokens)
    sliced = replace(whole, is_sliced=True)
    with (
        gradients.our_gradients(base, spec, state, words) as torch_gradients,
        gradients.our_gradients(base, spec, state, words, "onnx") as onnx_gradients,
    ):
        loss, wanted = torch_gradients(inputs, whole)
        for plan in (sliced, replace(sliced, recompute=(0,)), replace(sliced, is_spilled=True)):
            found_loss, found = onnx_gradients(inputs, plan)
            assert found_loss == pytest.approx(loss, rel=1e-5)
            assert set(found) == set(wanted) and all(g.any() for g in found.values())
            worst = max(wanted, key=lambda name: distance(found[name], wanted[name]))
            assert distance(found[worst], wanted[worst]) <= 1e-4, (plan, worst)


@pytest.mark.parametrize("adapter", ["lora:4", "lora:2@q,k,v,o,up,down", "prompt:5", "bias"])
def test_inputs_kept_in_half_precision_cost_little_of_the_gradients(
    bases: Bases, adapter: str
) -> None:
    base, spec = bases("roberta", 4), parse_adapter(adapter)
    state = gradients.random_adapter(spec, base, labels=4, seed=1)
    inputs = gradients.random_batch(base, 5, 24, labels=4, seed=3)
    with (
        gradients.our_gradients(base, spec, state, WORDS) as torch_gradients,
        gradients.our_gradients(base, spec, state, WORDS, "onnx") as onnx_gradients,
    ):
        _, wanted = torch_gradients(inputs, Plan("float32", 5, (), 3, 24))
        for recompute in ((), (0, 1), (0, 1, 2)):
            _, found = onnx_gradients(inputs, Plan("float32", 5, recompute, 3, 24, True))
            worst = max(wanted, key=lambda name: distance(found[name], wanted[name]))
            assert distance(found[worst], wanted[worst]) <= 2e-3, (recompute, worst)


@pytest.mark.parametrize("family", ["roberta", "albert"])
def test_each_place_s_loss_is_that_of_all_words_logits(bases: Bases, family: str) -> None:
    from smidgen.edge_client.engine.onnx_backend.network import Network as Onnx
    from smidgen.edge_client.engine.torch_backend.network import Network as Torch

    base, spec = bases(family, 8), parse_adapter("lora:4")
    state = gradients.random_adapter(spec, base, labels=4, seed=1)
    asked = gradients.random_places(base, gradients.random_batch(base, 5, 24, 4, 3), seed=4)
    torch_network, onnx_network = Torch(base, spec, state, None), Onnx(base, spec, state, None, 2)
    logits = onnx_network.logits(asked).astype(np.float64)
    assert logits.shape == (len(asked.labels), base.shape.vocabulary)
    assert distance(torch_network.logits(asked, "float32").numpy(), logits) <= 1e-5
    wanted = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(logits)), asked.labels]
    for losses, _ in (onnx_network.judge(asked), torch_network.judge(asked, "float32")):
        assert losses == pytest.approx(wanted, rel=1e-5)


NEWS = {"world": "world", "sports": "sports", "business": "business", "sci_tech": "science"}


@pytest.mark.slow
def test_ten_steps_on_real_texts_end_in_the_same_adapter() -> None:
    base = open_base(str(shared("models", "minilm-l6-mlm")))
    task = Task("news", tuple(NEWS), ("{text} . this is about [MASK] .",), NEWS)
    file: Path = shared("data", "ag_news") / "train.csv.gz"
    texts: list[Example] = read_file(file, task, labelled=True)[::240][:40]
    assert len({text.label for text in texts}) == 4
    spec, training = parse_adapter("lora:8"), Training(lr=1e-3, batch=4, epochs=1, tokens=64)
    start = initial_adapter(spec, base, 4, seed=3)
    deltas = []
    for kind in ("torch", "onnx"):
        engine = open_engine(kind, base, task, spec, training)
        engine.load_adapter(start)
        deltas.append(train(engine, texts, training, seed=1).delta)
        engine.close()
    assert all(delta.any() for delta in deltas[0].values())
    assert max(distance(deltas[1][name], deltas[0][name]) for name in start) <= 1e-3

"""Generation against transformers' own, with PEFT's adapter, on random models and a real one."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.generation import KeyValueCache, Sampling, generated
from smidgen.edge_client.engine.onnx_backend.network import Network
from tests.families import DECODERS, write_family

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
IDS = [101, 854, 1045, 996, 300, 1012, 703]


def opened(base: Base, adapter: str = "lora:2@q,k,v,o,gate,up,down") -> Network:
    spec = parse_adapter(adapter)
    state = initial_adapter(spec, base, 0, seed=3)
    noise = np.random.default_rng(5)
    moved = {
        name: tensor + noise.normal(0, 0.05, tensor.shape).astype(np.float32)
        for name, tensor in state.items()
    }
    return Network(base, spec, moved, None, 1)


def with_peft(base: Base, network: Network) -> Any:
    """The same model and adapter by transformers and PEFT."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    for name, tensor in network.adapter.items():
        if name.endswith("lora_B.weight"):
            module = name.removesuffix(".lora_B.weight").removeprefix("base_model.model.")
            a = torch.from_numpy(network.adapter[name.replace("lora_B", "lora_A")])
            scaling = 16 / len(a)
            weight = model.get_submodule(module).weight
            weight.data += scaling * (torch.from_numpy(tensor) @ a)
    return model.eval()


@pytest.mark.few(3)
@pytest.mark.parametrize("family", DECODERS)
def test_greedily_the_tokens_are_those_of_transformers(
    tiny_base: Base, tmp_path: Path, family: str
) -> None:
    base = write_family(family, tiny_base, tmp_path / "hf")
    network = opened(base)
    found = list(generated(network, IDS, Sampling(), 40))
    model = with_peft(base, network)
    asked = torch.tensor([IDS])
    wanted = model.generate(
        asked,
        attention_mask=torch.ones_like(asked),
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=-1,
        pad_token_id=0,
    )
    assert found == wanted[0, len(IDS) :].tolist()


@pytest.mark.parametrize("family", DECODERS)
def test_a_cache_gives_the_logits_of_the_whole_text(
    tiny_base: Base, tmp_path: Path, family: str
) -> None:
    network = opened(write_family(family, tiny_base, tmp_path / "hf"))
    ids = np.random.default_rng(1).integers(5, 900, 150)
    whole = network.answer(network.extend(ids, KeyValueCache(network.shape, 150)))
    for cuts in ([149], [1, 2, 149], [140], [130, 131]):
        cache = KeyValueCache(network.shape, 150)
        for part in np.split(ids, cuts):
            last = network.extend(part, cache)
        assert np.abs(network.answer(last) - whole).max() < 1e-4


def test_what_is_kept_dense_changes_no_token(tiny_base: Base, tmp_path: Path) -> None:
    network = opened(write_family("llama", tiny_base, tmp_path / "hf"))
    before = list(generated(network, IDS, Sampling(1.0, 0.9, seed=7), 20))
    assert network.keep_dense(0) == 0.0 and network.keep_dense(1 << 40) == 1.0
    assert list(generated(network, IDS, Sampling(1.0, 0.9, seed=7), 20)) == before
    assert list(generated(network, IDS, Sampling(1.0, 0.9, seed=8), 20)) != before
    first = before[4]
    assert list(generated(network, IDS, Sampling(1.0, 0.9, seed=7), 20, {first})) == list(
        islice(before, before.index(first))
    )

"""LoRA on fused matrices, whose rows are several linears of unequal size: PEFT's folders both ways.

PEFT knows Phi-3's `qkv_proj` and `gate_up_proj` as one module each. Here LoRA on q is LoRA on that
module, as there: one A and the rows of one B for all its linears.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.generation import KeyValueCache
from smidgen.edge_client.engine.onnx_backend.network import Network
from smidgen.edge_client.engine.torch_backend.network import Network as TorchNetwork
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from tests.families import FEED_FORWARD, HIDDEN, write_family

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

IDS = [40, 3, 77, 120, 9, 64, 33, 201, 5, 18, 90, 7, *range(300, 330)]
CHAT = Task("t", kind="chat")
QKV = "base_model.model.model.layers.0.self_attn.qkv_proj"


@pytest.fixture(scope="module")
def base(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> Base:
    return write_family("phi3", tiny_base, tmp_path_factory.mktemp("phi3") / "model")


def plain(base: Base) -> Any:
    return transformers.Phi3ForCausalLM.from_pretrained(base.folder, dtype=torch.float32)


def logits(model: Any) -> np.ndarray:
    """What a model answers behind `IDS`, (vocabulary,)."""
    with torch.no_grad():
        found: np.ndarray = model.eval()(input_ids=torch.tensor([IDS])).logits[0, -1].numpy()
    return found


def check_both_engines(base: Base, adapter: str, state: AdapterState, theirs: np.ndarray) -> None:
    spec, last = parse_adapter(adapter), np.array([len(IDS) - 1])
    onnx = Network(base, spec, state, None, 1)
    ours = [onnx.answer(onnx.extend(np.array(IDS), KeyValueCache(base.shape, 64)))[0]]
    asked = Batch(np.array([IDS]), np.ones((1, len(IDS)), np.int64), last, last, texts=last * 0)
    ours.append(TorchNetwork(base, spec, state, None).logits(asked, "float32").numpy()[0])
    for found in ours:
        np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-4)
    assert np.abs(logits(plain(base)) - theirs).max() > 0.05


@pytest.mark.parametrize(
    "adapter",
    ["lora:4", "lora:3@o,gate", "lora:2@q,k,v,o,gate,up,down/top2", "lora:4@v,down/0.down=0/1.v=2"],
)
def test_our_folder_gives_our_logits_in_peft(tmp_path: Path, base: Base, adapter: str) -> None:
    noise, spec = np.random.default_rng(5), parse_adapter(adapter)
    state = {
        name: (tensor + noise.normal(0, 0.3, tensor.shape)).astype(np.float32)
        for name, tensor in initial_adapter(spec, base, 0, seed=3).items()
    }
    known = Exported(adapter, base.peft_name, base.base_id, base.architecture, CHAT)
    write_peft_folder(tmp_path / "out", known, encode_adapter(state), base=base)
    model = peft.PeftModel.from_pretrained(plain(base), tmp_path / "out")
    adapted = {name for name, _ in model.named_modules() if name.endswith("lora_A.default")}
    assert len(adapted) == len(state) // 2
    check_both_engines(base, adapter, state, logits(model))


@pytest.mark.parametrize(
    ("targets", "adapter"),
    [(["qkv_proj", "o_proj"], "lora:4@q,o"), ("all-linear", "lora:4@q,o,up,down")],
)
def test_pefts_folder_gives_its_logits_here(
    tmp_path: Path, base: Base, targets: Any, adapter: str
) -> None:
    options = peft.LoraConfig(r=4, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
    torch.manual_seed(3)
    model = peft.get_peft_model(plain(base), options)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "theirs")
    spec, state = read_peft_adapter(tmp_path / "theirs", base, CHAT)
    assert str(spec) == adapter and state[f"{QKV}.lora_B.weight"].shape == (2 * HIDDEN, 4)
    check_both_engines(base, adapter, state, logits(model))


def test_linears_of_one_matrix_have_one_rank_and_the_matrix_bounds_it(base: Base) -> None:
    with pytest.raises(AdapterError, match=r"0\.v lies in self_attn\.qkv_proj with q; give both"):
        initial_adapter(parse_adapter("lora:4@q,v/0.v=2"), base, 0, seed=3)
    fed = initial_adapter(parse_adapter(f"lora:{HIDDEN}@gate"), base, 0, seed=3)
    assert {len(tensor) for tensor in fed.values()} == {HIDDEN, 2 * FEED_FORWARD}

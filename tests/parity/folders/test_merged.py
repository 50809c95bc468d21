"""Exports whose adapter is in the base's weights: transformers alone answers as both together."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.exports import write_merged
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import PREFIX, AdapterError, lora_modules, parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.bases.quantization import from_bfloat16, to_bfloat16
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from tests.edge_client.bases.gguf.files import write_gguf
from tests.families import DECODERS, write_family

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

IDS = [40, 3, 77, 120, 9, 64, 33, 201, 5, 18, 90, 7]
CHAT = Task("t", kind="chat")


def drawn(base: Base, adapter: str, spread: float = 0.3) -> AdapterState:
    noise = np.random.default_rng(5)
    return {
        name: (tensor + noise.normal(0, spread, tensor.shape)).astype(np.float32)
        for name, tensor in initial_adapter(parse_adapter(adapter), base, 0, seed=3).items()
    }


def export(base: Base, adapter: str, out: Path, state: AdapterState | None = None) -> Path:
    known = Exported(adapter, base.peft_name, base.base_id, base.architecture, CHAT)
    body = encode_adapter(drawn(base, adapter) if state is None else state)
    write_peft_folder(out, known, body, base=base, with_base="merged")
    return out / "merged"


def loaded(folder: Path, architecture: str) -> Any:
    is_decoder = architecture in DECODERS
    kind = transformers.AutoModelForCausalLM if is_decoder else transformers.AutoModelForMaskedLM
    model, told = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    return model


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([IDS])).logits[0]


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("family", "adapter"),
    [
        ("phi3", "lora:4@q,o,gate/1.q=2:32"),
        ("llama", "lora:3@q,k,v,o,gate,up,down/top2"),
        ("bert", "bias"),
        ("modernbert", "lora:4"),
        ("albert", "lora:4"),
        ("gemma3_text", "lora:4"),
        ("roberta", "bias/top1"),
        ("distilbert", "lora:4@q,v,down"),
        ("qwen2", "lora:4"),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_alone_answers_as_peft(
    tiny_base: Base, tmp_path: Path, family: str, adapter: str, tied: bool
) -> None:
    base = write_family(family, tiny_base, tmp_path / "base", tie_word_embeddings=tied)
    merged = export(base, adapter, tmp_path / "out")
    plain = loaded(base.folder, family)
    alone = logits(plain)
    theirs = logits(peft.PeftModel.from_pretrained(plain, tmp_path / "out"))
    model = loaded(merged, family)
    torch.testing.assert_close(logits(model), theirs, rtol=0, atol=1e-4)
    assert (alone - theirs).abs().max() > 0.05
    words = model.get_input_embeddings().weight.data_ptr()
    assert (model.get_output_embeddings().weight.data_ptr() == words) == tied
    assert "float32" in (merged / "README.md").read_text()
    assert (merged / "tokenizer.json").read_bytes() == (base.folder / "tokenizer.json").read_bytes()
    assert open_base(str(merged)).shape == base.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_16_bits_each_sum_is_rounded_once(tiny_base: Base, tmp_path: Path, dtype: Any) -> None:
    write_family("phi3", tiny_base, tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    held = {name: tensor.to(dtype) for name, tensor in safetensors.load_file(file).items()}
    safetensors.save_file(held, file, {"format": "pt"})
    base = open_base(str(tmp_path / "base"))
    merged = export(base, "lora:4", tmp_path / "out")
    found = safetensors.load_file(merged / "model.safetensors")
    model = peft.PeftModel.from_pretrained(loaded(base.folder, "phi3"), tmp_path / "out")
    wanted = model.merge_and_unload().state_dict()
    changed = {name for name in found if not torch.equal(found[name], held[name])}
    assert found.keys() == held.keys()
    assert changed == {f"model.layers.{i}.self_attn.qkv_proj.weight" for i in range(3)}
    step = 2.0 ** (-8 if dtype == torch.bfloat16 else -11)
    for name in changed:
        assert found[name].dtype == dtype
        exact = wanted[name]
        assert ((found[name].float() - exact).abs() <= 1.001 * step * exact.abs() + 1e-7).all()
    assert "16 bits once" in (merged / "README.md").read_text()


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_a_pack_is_dequantized(tiny_base: Base, tmp_path: Path, bits: int) -> None:
    write_family("phi3", tiny_base, tmp_path / "base")
    pack_model(str(tmp_path / "base"), bits, tmp_path / "pack")
    base, adapter = open_base(str(tmp_path / "pack")), "lora:4@q,down"
    state, modules = drawn(base, adapter), lora_modules(parse_adapter(adapter), base.shape)
    merged = export(base, adapter, tmp_path / "out", state)
    with base.open_weights() as weights, open_base(str(merged)).open_weights() as found:
        for name in weights.names:
            if len(weights.shape(name)) == 1:
                np.testing.assert_array_equal(found.vector(name), weights.vector(name))
                continue
            rows = np.arange(weights.shape(name)[0])
            wanted, module = weights.rows(name, rows), name.removesuffix(".weight")
            if module in modules:
                lora_a, lora_b = (state[f"{PREFIX}{module}{part}"] for part in (LORA_A, LORA_B))
                wanted = wanted + lora_b * np.float32(modules[module].scaling) @ lora_a
            rounded = from_bfloat16(to_bfloat16(wanted))
            # Sums of LoRA's product in another order may fall to the other side of a tie.
            np.testing.assert_allclose(found.rows(name, rows), rounded, rtol=2**-7, atol=1e-7)
            assert (found.rows(name, rows) == rounded).mean() > 0.999
    loaded(merged, "phi3")
    config, card = json.loads((merged / "config.json").read_text()), merged / "README.md"
    assert (config.get("dtype") == "bfloat16") == (bits < 16)
    assert f"{bits} bits" in card.read_text() and "transformers" in card.read_text()


@pytest.mark.parametrize("adapter", ["prompt:4", "head"])
def test_what_is_no_weight_of_the_base_is_refused(
    tiny_base: Base, tmp_path: Path, adapter: str
) -> None:
    known = Exported(adapter, "x/y", tiny_base.base_id, tiny_base.architecture, CHAT)
    state = initial_adapter(parse_adapter(adapter), tiny_base, 2, seed=3)
    with pytest.raises(AdapterError, match=r"--with-base merged: adapter .* has a") as caught:
        write_peft_folder(
            tmp_path / "out", known, encode_adapter(state), base=tiny_base, with_base="merged"
        )
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_gguf_file_is_refused(tmp_path: Path) -> None:
    base = open_base(str(write_gguf(tmp_path / "tiny.gguf", "f32")))
    with pytest.raises(AdapterError, match=r"is a GGUF file, which is served beside adapter\.gguf"):
        export(base, "lora:2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_sum_beyond_its_type_leaves_the_export_before(tiny_base: Base, tmp_path: Path) -> None:
    write_family("llama", tiny_base, tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    held = {name: tensor.half() for name, tensor in safetensors.load_file(file).items()}
    safetensors.save_file(held, file, {"format": "pt"})
    base, out = open_base(str(tmp_path / "base")), tmp_path / "out"
    whole = export(base, "lora:2", out)
    before = {path: path.read_bytes() for path in whole.iterdir()}
    with pytest.raises(Failed, match=r"q_proj\.weight, merged, is beyond F16"):
        export(base, "lora:2", out, drawn(base, "lora:2", 3e4))
    assert {path: path.read_bytes() for path in whole.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"base", "out"}


def test_a_few_rows_are_in_memory_at_a_time(tiny_base: Base, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 1}
    write_family("phi3", tiny_base, tmp_path / "base", **sizes, rope_parameters=None)
    pack_model(str(tmp_path / "base"), 8, tmp_path / "pack")
    base, adapter = open_base(str(tmp_path / "pack")), "lora:4@gate"
    state = drawn(base, adapter)
    tracemalloc.start()
    write_merged(tmp_path / "merged", base, parse_adapter(adapter), state)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20 < 8192 * 512 * 4  # the matrix in float32, which is one of four

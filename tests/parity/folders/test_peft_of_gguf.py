"""A PEFT folder of a GGUF base, loaded by the lines of its card: transformers makes the file dense,
PEFT puts the adapter on it, and what both answer is what we do."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import CONFIG, Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.generation import KeyValueCache
from smidgen.edge_client.engine.onnx_backend.network import Network
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import encode_adapter
from tests.breadth import covering
from tests.edge_client.bases.gguf.files import fields, gguf, scaled_rope, tensors, write_gguf
from tests.parity.folders.test_gguf_pieces import write_gemma, write_phi

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytest.importorskip("gguf")
IDS = [40, 3, 77, 120, 9, 64, 33, 201, 5, 18, 90, 7] * 8
CHAT = Task("t", kind="chat")
FILES = [
    *(("llama", kind) for kind in ("q4_1", "q8_0", "f32")),
    ("qwen2", "q5_0"),
    *((family, "f32") for family in ("scaled", "partial", "longrope", "gemma3")),
]


def logits(model: Any) -> np.ndarray:
    """What a model answers behind `IDS`, (vocabulary,)."""
    with torch.no_grad():
        found: np.ndarray = model.eval()(input_ids=torch.tensor([IDS])).logits[0, -1].numpy()
    return found


def write(path: Path, family: str, kind: str) -> None:
    """A tiny file, of rotary positions as Llama 3.1, Phi-4-mini or Phi-3.5 have them, too."""
    if family == "gemma3":
        write_gemma(path)
    elif family in ("partial", "longrope"):
        write_phi(path, is_long=family == "longrope")
    else:
        is_scaled = family == "scaled"
        own = fields("llama", llama__rope__freq_base=500000.0) if is_scaled else fields(family)
        parts = tensors(kind, biased=family == "qwen2") | (scaled_rope() if is_scaled else {})
        path.write_bytes(gguf(own, parts))


@pytest.mark.parametrize(
    ("file", "adapter"), covering(FILES, ["lora:3@q,k,v,o,gate,up,down", "lora:4@q,v", "prompt:4"])
)
def test_the_lines_of_its_card_give_our_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: tuple[str, str], adapter: str
) -> None:
    model, family = tmp_path / "tiny.gguf", file[0]
    write(model, *file)
    base, spec = open_base(str(model)), parse_adapter(adapter)
    noise = np.random.default_rng(5)
    state = {
        name: (tensor + noise.normal(0, 0.3, tensor.shape)).astype(np.float32)
        for name, tensor in initial_adapter(spec, base, 0, seed=3).items()
    }
    out, body = tmp_path / "out", encode_adapter(state)
    known = Exported(adapter, base.peft_name, base.base_id, base.architecture, CHAT)
    write_peft_folder(out, known, body, base=base)
    assert json.loads((out / CONFIG).read_text())["base_model_name_or_path"] == "./tiny.gguf"
    write_peft_folder(out, known, body, base=base, with_base="copied")

    lines = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(out)
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    theirs = logits(names["model"])
    monkeypatch.chdir(tmp_path)
    if family in ("llama", "qwen2"):  # PEFT's auto class takes no config of the base
        auto = peft.AutoPeftModelForCausalLM
        again = auto.from_pretrained(out, gguf_file=model.name, dtype="float32")
        np.testing.assert_array_equal(logits(again), theirs)

    network = Network(base, spec, state, None, 1)
    ours = network.answer(network.extend(np.array(IDS), KeyValueCache(base.shape, 128)))[0]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())
    bare = Network(base, parse_adapter("lora:1"), {}, None, 1)
    alone = bare.answer(bare.extend(np.array(IDS), KeyValueCache(base.shape, 128)))[0]
    assert np.abs(alone - theirs).max() > 0.05


def test_a_gguf_file_is_not_copied_beside_the_name_of_another_base(
    tmp_path: Path,
) -> None:
    base = open_base(str(write_gguf(tmp_path / "tiny.gguf", "f32")))
    body = encode_adapter(initial_adapter(parse_adapter("lora:2"), base, 0, seed=3))
    known = Exported("lora:2", "org/tiny", base.base_id, base.architecture, CHAT)
    with pytest.raises(AdapterError, match="is a GGUF file, org/tiny is not; leave it out"):
        write_peft_folder(tmp_path / "out", known, body, base=base, with_base="copied")

"""Exported `adapter.gguf` in llama.cpp itself, beside the base's own file."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.exports import has_gguf_form, write_gguf_adapter
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.generation import KeyValueCache
from smidgen.edge_client.engine.onnx_backend.network import Network
from tests.edge_client.bases.gguf.files import WORDS, write_gguf

IDS = [40, 3, 77, 120, 9, 64, 33, 201, 5, 18, 90, 7]
# In a process of its own, which it leaves without the runtime's own goodbye.
LLAMA = """
import json, os, sys
import xllamacpp as llama
model, adapter, ids, words = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
asked = llama.CommonParams()
asked.model.path, asked.n_ctx, asked.warmup, asked.verbosity = model, 64, False, -1
asked.cache_type_k = asked.cache_type_v = llama.ggml_type.GGML_TYPE_F32
asked.flash_attn_type = llama.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
if adapter:
    lora = llama.CommonAdapterLoraInfo()
    lora.path, lora.scale = adapter, 1.0
    asked.lora_adapters = [lora]
server = llama.Server(asked)
told = server.handle_completions(
    {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": words}
)
rows = told["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
print(json.dumps({one["id"]: one["logprob"] for one in rows}), flush=True)
os._exit(0)
"""


def by_llama(model: Path, adapter: Path | str) -> np.ndarray:
    """llama.cpp's log-probabilities (vocabulary,) of what follows `IDS`."""
    pytest.importorskip("xllamacpp")
    words = [str(model), str(adapter), json.dumps(IDS), str(len(WORDS))]
    done = subprocess.run(
        [sys.executable, "-c", LLAMA, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode == -signal.SIGILL:
        pytest.skip("llama.cpp's wheel was built for another processor")
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    return np.array([told[str(word)] for word in range(len(WORDS))])


@pytest.mark.parametrize("adapter", ["", "lora:3@q,k,v,o,gate,up,down", "lora:4/1.q=2:8/0.k=1"])
def test_llama_cpp_has_our_log_probabilities(tmp_path: Path, adapter: str) -> None:
    model = write_gguf(tmp_path / "model.gguf", "f32")
    base, spec = open_base(str(model)), parse_adapter(adapter or "lora:1")
    drawn, noise = initial_adapter(spec, base, 0, seed=3), np.random.default_rng(5)
    state = {
        name: (tensor + noise.normal(0, 0.3, tensor.shape)).astype(np.float32)
        for name, tensor in drawn.items()
    }
    out: Path | str = ""
    if adapter:
        assert has_gguf_form(spec, base.shape)
        write_gguf_adapter(out := tmp_path / "adapter.gguf", spec, base.shape, state)
    network = Network(base, spec, state if adapter else {}, None, 1)
    logits = network.answer(network.extend(np.array(IDS), KeyValueCache(base.shape, 64)))[0]
    shifted = logits.astype(np.float64) - logits.max()
    ours = shifted - np.log(np.exp(shifted).sum())
    assert np.abs(by_llama(model, out) - ours).max() < 1e-4
    if adapter:
        assert np.abs(by_llama(model, "") - ours).max() > 0.05


@pytest.mark.parametrize("adapter", ["prompt:4", "bias", "lora:2+generator"])
def test_what_llama_cpp_does_not_load_is_not_written(tmp_path: Path, adapter: str) -> None:
    base = open_base(str(write_gguf(tmp_path / "model.gguf", "f32")))
    assert not has_gguf_form(parse_adapter(adapter), base.shape)

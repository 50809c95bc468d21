"""GGUF files with either kind of BPE, and Gemma 3's, against llama.cpp and transformers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from smidgen.edge_client.adapters.exports import write_gguf_adapter
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.bases.gguf.tokenizer import SPLITTINGS, gguf_tokenizer
from smidgen.edge_client.engine.generation import KeyValueCache
from smidgen.edge_client.engine.onnx_backend.network import Network
from tests.breadth import first_fast
from tests.edge_client.bases.gguf.files import (
    BYTES,
    fields,
    gguf,
    sentence_piece_fields,
    tensors,
)
from tests.edge_client.bases.gguf.test_tokenizer import BITS, odd_texts
from tests.parity.folders.test_gguf_adapter import LLAMA

SPECIALS = ("<pad>", "<eos>", "<bos>", "<unk>")
# In a process of its own, over the server's own loopback port.
TOKENIZE = """
import json, os, sys, time, urllib.error, urllib.request
import xllamacpp as llama

def fetch(asking):
    for _ in range(100):  # it tells its port before it listens
        try:
            return json.loads(urllib.request.urlopen(asking, timeout=5).read())
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit("no answer")

asked = llama.CommonParams()
asked.model.path, asked.n_ctx, asked.warmup, asked.verbosity = sys.argv[1], 64, False, -1
asked.port = 0
server = llama.Server(asked)
place, found = server.listening_address + "/tokenize", []
for text in json.load(open(sys.argv[2])):
    body = {"content": text, "add_special": True, "parse_special": False}
    head = {"content-type": "application/json"}
    asking = urllib.request.Request(place, json.dumps(body).encode(), head)
    found.append(fetch(asking)["tokens"])
print(json.dumps(found), flush=True)
os._exit(0)
"""


def run(code: str, *words: str) -> Any:
    """What llama.cpp answers to a program, in its last line."""
    pytest.importorskip("xllamacpp")
    line = [sys.executable, "-c", code, *words]
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    more: Any = {"capture_output": True, "text": True, "env": env}
    done = subprocess.run(line, timeout=240, check=False, **more)
    if done.returncode == -signal.SIGILL:
        pytest.skip("llama.cpp's wheel was built for another processor")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def learnt() -> list[str]:
    """Pieces that BPE learns of odd texts, the first ones first."""
    texts = [text.replace(" ", "\u2581") for text in odd_texts(400)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, min_frequency=2)
    tokenizer.train_from_iterator(texts, trainer)
    found: list[str] = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    # llama.cpp reads a word up to its first NUL.
    return [piece for piece in found if piece not in BYTES and "\0" not in piece]


def byte_level(texts: list[str]) -> dict[str, Any]:
    """Words and merges that byte-level BPE learns of odd texts, not split before."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, min_frequency=2, initial_alphabet=letters
    )
    tokenizer.train_from_iterator(texts, trainer)
    known = json.loads(tokenizer.to_str())["model"]
    return {"tokens": list(known["vocab"]), "merges": [" ".join(one) for one in known["merges"]]}


@pytest.mark.parametrize("pre", first_fast([*SPLITTINGS]))
def test_ids_of_byte_level_words_are_llama_cpps(tmp_path: Path, pre: str) -> None:
    cased = [
        "HelloWorld don'T",
        "DON'Ts",
        "aBC",
        "ABc",
        "ÄÖü'LL",
        "\u01c5x",
        "1a/\n//\n\nb",
        "\u02b0A",
    ]
    odd = [text for text in odd_texts(1000) if "Cn" not in map(category, text)]  # docs/packs.md
    texts = [*odd, *BITS, *cased, *map("".join, pairwise(BITS)), "a", ""]
    words = byte_level(texts)
    count = len(words["tokens"])
    words |= {"pre": pre, "token_type": [1] * count, "add_bos_token": False}
    words |= {"eos_token_id": None, "padding_token_id": None}
    known = fields(**{f"tokenizer__ggml__{name}": item for name, item in words.items()})
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(known, tensors("f32", words=count)))
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    theirs = run(TOKENIZE, str(path), str(tmp_path / "texts.json"))
    ours = Tokenizer.from_str(gguf_tokenizer(path)[0])
    for text, ids in zip(texts, theirs, strict=True):
        assert ours.encode(text).ids == ids, json.dumps(text)


@pytest.mark.parametrize("front", [True, False])
def test_ids_of_sentence_pieces_are_llama_cpps(tmp_path: Path, front: bool) -> None:
    whole = ["<|im_start|>", "\n\n"]
    words = list(dict.fromkeys((*SPECIALS, *BYTES, *whole, *learnt(), "\u2581")))
    known = sentence_piece_fields(words, tokenizer__ggml__add_space_prefix=front)
    for place in map(words.index, whole):
        known["tokenizer.ggml.token_type"][place] = 4
    path, texts = tmp_path / "model.gguf", [*odd_texts(1000), *BITS, "a", " ", ""]
    path.write_bytes(gguf(known, tensors("f32", words=len(words))))
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    theirs = run(TOKENIZE, str(path), str(tmp_path / "texts.json"))
    ours = Tokenizer.from_str(gguf_tokenizer(path)[0])
    for text, ids in zip(texts, theirs, strict=True):
        assert ours.encode(text).ids == ids, json.dumps(text)
    if not front:
        assert all(ours.decode(ours.encode(text).ids) == text for text in texts)


GEMMA = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7}
GEMMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 8}
GEMMA |= {"query_pre_attn_scalar": 32, "max_position_embeddings": 128, "pad_token_id": 0}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    **{f"self_attn.{one}_norm": f"attn_{one}_norm" for one in "qk"},
    **{f"self_attn.{one}_proj": f"attn_{one}" for one in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")},
}


def random_model(family: str, config: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    """A random model of transformers, and its tensors by llama.cpp's names."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    known = transformers.AutoConfig.for_model(family, **config)
    model = transformers.AutoModelForCausalLM.from_config(known, dtype=torch.float32).eval()
    for tensor in model.parameters():
        tensor.data.add_(torch.randn_like(tensor) * (0.3 if tensor.dim() == 1 else 0.05))
    model.get_output_embeddings().weight.data[:260] *= 0.1  # no byte is the likeliest
    parts = {}
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, tensor in model.state_dict().items():
        module = name.removesuffix(".weight")
        _, _, layer, inner = f"{module}...".split(".", 3)
        given = top.get(module) or f"blk.{layer}.{names.get(inner.rstrip('.'), '')}"
        array = tensor.numpy()
        if family == "gemma3_text" and module.endswith("norm"):
            array = array + np.float32(1)
        if module != "lm_head" or not known.tie_word_embeddings:
            parts[f"{given}.weight"] = ("F32", array.shape, array.astype("<f4").tobytes())
    return model, parts


def write_pieces(path: Path, architecture: str, own: Mapping[str, Any], parts: Any) -> None:
    """A file with a tokenizer of 300 pieces."""
    words = [*SPECIALS, *BYTES, *(f"w{number}" for number in range(40))]
    known = {k: v for k, v in sentence_piece_fields(words).items() if not k.startswith("llama.")}
    known |= {"general.architecture": architecture}
    path.write_bytes(gguf(known | {f"{architecture}.{key}": x for key, x in own.items()}, parts))


def write_gemma(path: Path) -> Any:
    """A random Gemma 3 of transformers, written as llama.cpp's converter writes it.

    From 4B on, layers without a window divide positions by 8.
    """
    angles = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4}
    rope = {"full_attention": angles, "sliding_attention": {"rope_theta": 1e3}}
    model, parts = random_model("gemma3_text", GEMMA | {"rope_parameters": rope}, NAMES)
    own: dict[str, Any] = {"block_count": 7, "context_length": 128, "embedding_length": 64}
    own |= {"feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2}
    own |= {f"attention.{name}_length": 32 for name in ("key", "value")}
    own |= {"attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 8}
    own |= {"rope.freq_base": 1e4, "rope.freq_base_swa": 1e3}
    own |= {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    write_pieces(path, "gemma3", own, parts)
    return model


def check_decoder(model: Any, path: Path, adapter: str, most: float) -> None:
    """Our log-probabilities are llama.cpp's, and without an adapter transformers'."""
    base, spec = open_base(str(path)), parse_adapter(adapter or "lora:1")
    drawn, noise = initial_adapter(spec, base, 0, seed=3), np.random.default_rng(5)
    state = {
        name: (tensor + noise.normal(0, 0.1, tensor.shape)).astype(np.float32)
        for name, tensor in drawn.items()
    }
    out = path.with_name("adapter.gguf") if adapter else ""
    if adapter:
        write_gguf_adapter(path.with_name("adapter.gguf"), spec, base.shape, state)
    ids = noise.integers(260, 300, 40)
    network = Network(base, spec, state if adapter else {}, None, 1)
    logits = network.answer(network.extend(ids, KeyValueCache(base.shape, 64)))[0]
    ours = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    theirs = run(LLAMA, str(path), str(out), json.dumps(ids.tolist()), "300")
    assert max(abs(theirs[str(word)] - ours[word]) for word in range(300)) < most
    import torch

    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)[None]).logits[0, -1].log_softmax(-1).numpy()
    assert (np.abs(ours - wanted).max() < 1e-5) == (not adapter)


@pytest.mark.parametrize("adapter", ["", "lora:3@q,k,v,o,gate,up,down"])
def test_gemma_3_is_transformers_and_llama_cpps(tmp_path: Path, adapter: str) -> None:
    """llama.cpp looks the activation up by its argument in 16 bits: equal to a thousandth."""
    model, path = write_gemma(tmp_path / "model.gguf"), tmp_path / "model.gguf"
    base = open_base(str(path))
    assert base.shape.local_layers == (0, 1, 2, 3, 4, 6) and base.shape.is_tied
    assert base.shape.rope_scaling == (8.0,)
    check_decoder(model, path, adapter, 3e-3)


PHI = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
PHI |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
PHI |= {"max_position_embeddings": 2048, "original_max_position_embeddings": 512}
FACTORS = [1.0, 1.1, 1.5, 2.0, 3.5, 5.0]  # of the 12 columns of a head's 16 that turn
PHI_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
PHI_NAMES |= {"self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output"}
PHI_NAMES |= {"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def write_phi(path: Path, *, is_long: bool) -> Any:
    """A random Phi-3 of transformers, written as llama.cpp's converter writes it."""
    rope: dict[str, Any] = {"rope_theta": 1e3, "partial_rotary_factor": 0.75}
    if is_long:
        rope |= {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": [9.0] * 6}
    model, parts = random_model("phi3", PHI | {"rope_parameters": rope}, PHI_NAMES)
    own: dict[str, Any] = {"block_count": 3, "context_length": 2048, "embedding_length": 64}
    own |= {"feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2}
    own |= {"attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": 8}
    own |= {"rope.dimension_count": 12, "rope.freq_base": 1e3}
    own |= {"rope.scaling.original_context_length": 512}
    if is_long:
        factor = model.model.rotary_emb.attention_scaling
        assert factor > 1.05
        own |= {"rope.scaling.attn_factor": float(factor)}
        for name, numbers in (("short", FACTORS), ("long", [9.0] * 6)):
            body = np.array(numbers, "<f4").tobytes()
            parts[f"rope_factors_{name}.weight"] = ("F32", (6,), body)
    write_pieces(path, "phi3", own, parts)
    return model


@pytest.mark.parametrize("adapter", ["", "lora:3@q,o,gate,down"])
@pytest.mark.parametrize("is_long", [False, True])
def test_phi_3_is_transformers_and_llama_cpps(tmp_path: Path, adapter: str, is_long: bool) -> None:
    model, path = write_phi(tmp_path / "model.gguf", is_long=is_long), tmp_path / "model.gguf"
    base = open_base(str(path))
    assert (base.shape.turned, base.shape.positions) == (12, 512 if is_long else 2048)
    check_decoder(model, path, adapter, 1e-4)

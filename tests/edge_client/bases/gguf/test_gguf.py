import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.card import licence_of
from smidgen.edge_client.api.plan import plan
from smidgen.edge_client.bases.base import BaseError, open_base
from smidgen.edge_client.bases.families import FAMILIES
from smidgen.edge_client.bases.gguf.blocks import BLOCKS
from smidgen.edge_client.bases.gguf.header import GgufFile
from smidgen.edge_client.bases.gguf.model import config_of, rotary_order
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.bases.quantization import dequantize
from smidgen.edge_client.bases.tokenizer import open_tokens, tokenizer_kind
from smidgen.edge_client.engine.frozen_base import FrozenBase
from tests.edge_client.bases.gguf.files import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    WORDS,
    fields,
    gguf,
    scaled_rope,
    string,
    tensors,
    value,
    write_gguf,
)


def opened(path: Path, body: bytes) -> str:
    """The error with which a file of these bytes is refused."""
    path.write_bytes(body)
    with pytest.raises(BaseError) as error:
        open_base(str(path))
    said = str(error.value)
    assert "\n" not in said and str(path) in said
    return said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def test_a_file_is_a_base_with_its_sizes(path: Path) -> None:
    base = open_base(str(write_gguf(path)))
    shape = base.shape
    assert (shape.architecture, shape.hidden, shape.layers) == ("llama", HIDDEN, LAYERS)
    assert (shape.heads, shape.kv_heads, shape.vocabulary) == (HEADS, KV_HEADS, len(WORDS))
    assert shape.is_tied and shape.is_decoder and shape.norm_eps == 1e-5
    assert shape.pad_id == len(WORDS) - 2
    assert (base.bits, base.peft_name, base.is_gguf) == (8, "./tiny.gguf", True)
    assert base.has_head and base.weights == path


def test_a_place_is_nobodys_business(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(path)
    monkeypatch.chdir(path.parent)
    assert open_base("tiny.gguf").peft_name == "./tiny.gguf"


@pytest.mark.parametrize(
    "kind", ["f32", *(k for k, block in BLOCKS.items() if block.elements == 32)]
)
def test_rows_and_matrices_are_hugging_faces(path: Path, kind: str) -> None:
    base = open_base(str(write_gguf(path, kind)))
    given = tensors(kind)
    with base.open_weights() as weights:
        for name in weights.names:
            if weights.shape(name) == (HIDDEN,):
                continue
            short = name.rpartition(".weight")[0].rpartition(".")[2]
            ours = weights.rows(name, range(weights.shape(name)[0]))
            if short in ("q_proj", "k_proj"):
                heads = HEADS if short == "q_proj" else KV_HEADS
                layer = int(name.split(".")[2])
                _, size, body = given[f"blk.{layer}.attn_{short[0]}.weight"]
                flat = np.frombuffer(body, np.uint8).reshape(size[0], -1)
                moved = flat.reshape(heads, 8, 2, -1).swapaxes(1, 2).reshape(flat.shape)
                stored = replace(weights.stored(name), data=moved, order=None)
                if kind == "f32":
                    stored = replace(stored, data=moved.copy().view("<f4"))
                assert np.array_equal(ours, dequantize(stored))
                assert np.array_equal(weights.rows(name, [3, 1]), ours[[3, 1]])
                part = FrozenBase(base).matrix(name.removesuffix(".weight"), slice(4, 9))
                assert np.array_equal(dequantize(part), ours[4:9])
            elif kind == "f32":
                assert weights.stored(name).order is None


def test_the_order_is_undone_by_the_converters_permutation() -> None:
    rows = np.arange(3 * 64)
    theirs = rows.reshape(3, 2, 32).swapaxes(1, 2).reshape(-1)  # Hugging Face's, as GGUF has them
    assert np.array_equal(theirs[rotary_order(len(rows), 64)], rows)


def test_biases_of_q_and_k_have_the_rows_of_their_matrices(path: Path) -> None:
    own = fields("qwen2")
    path.write_bytes(gguf(own, tensors("f32", biased=True)))
    base = open_base(str(path))
    assert base.architecture == "qwen2"
    with base.open_weights() as weights:
        given = np.frombuffer(tensors("f32", biased=True)["blk.1.attn_q.bias"][2], "<f4")
        assert np.array_equal(weights.vector("model.layers.1.self_attn.q_proj.bias"), given)
        assert weights.stored("model.layers.0.self_attn.q_proj.weight").order is None


def test_qwen_3_has_norms_of_heads_and_rows_as_they_lie(path: Path) -> None:
    width, parts = HIDDEN // HEADS * 2, tensors("f32")
    for layer in range(LAYERS):
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            size = (heads * width, HIDDEN)
            parts[f"blk.{layer}.attn_{name}.weight"] = ("F32", size, bytes(4 * size[0] * size[1]))
        size = (HIDDEN, HEADS * width)
        parts[f"blk.{layer}.attn_output.weight"] = ("F32", size, bytes(4 * size[0] * size[1]))
        for name in ("q", "k"):
            norm = np.arange(width, dtype="<f4") + 1
            parts[f"blk.{layer}.attn_{name}_norm.weight"] = ("F32", (width,), norm.tobytes())
    own = {f"qwen3.attention.{name}_length": width for name in ("key", "value")}
    path.write_bytes(gguf(fields("qwen3") | own, parts))
    base = open_base(str(path))
    assert (base.shape.head_dim, base.shape.hidden) == (width, HIDDEN)
    with base.open_weights() as weights:
        norm = weights.vector("model.layers.1.self_attn.k_norm.weight")
        assert np.array_equal(norm, np.arange(width) + 1)
        assert weights.stored("model.layers.0.self_attn.q_proj.weight").order is None


def test_every_fourth_layer_of_smollm_3_is_not_rotated(path: Path) -> None:
    own = fields("smollm3", smollm3__block_count=4)
    parts = tensors("f32")
    for layer in (2, 3):
        parts |= {
            name.replace("blk.1", f"blk.{layer}"): part
            for name, part in parts.items()
            if "blk.1" in name
        }
    path.write_bytes(gguf(own, parts))
    base = open_base(str(path))
    assert base.shape.unrotated_layers == (3,) and base.shape.rope_theta == 10000.0
    with base.open_weights() as weights:
        assert weights.stored("model.layers.3.self_attn.q_proj.weight").order is not None


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_silent_file_has_what_llama_cpp_takes(path: Path, architecture: str) -> None:
    own = fields(architecture)
    for name in ("attention.head_count_kv", "rope.freq_base"):
        del own[f"{architecture}.{name}"]
    path.write_bytes(gguf(own, tensors("f32")))
    with GgufFile(path) as file:
        config = config_of(file)
    assert config["num_key_value_heads"] == HEADS
    assert config["head_dim"] == HIDDEN // HEADS and config["rope_theta"] == 10000.0


def test_every_tensor_of_its_family_is_there_by_its_name(path: Path) -> None:
    with open_base(str(write_gguf(path))).open_weights() as weights:
        family = FAMILIES["llama"]
        named = {family.linear(1, target) + ".weight" for target in family.linears}
        assert named < set(weights.names)
        weights.release(weights.names)
        assert weights.vector("model.norm.weight").shape == (HIDDEN,)


def test_a_head_of_its_own_is_not_tied(path: Path) -> None:
    own = tensors() | {"output.weight": tensors()["token_embd.weight"]}
    path.write_bytes(gguf(fields(), own))
    base = open_base(str(path))
    assert not base.shape.is_tied
    assert FrozenBase(base).decoder == "lm_head.weight"


def test_an_identity_is_of_tensors_and_tokenizer_alone(path: Path) -> None:
    first = open_base(str(write_gguf(path))).base_id
    own, parts = fields(general__name="another"), tensors()
    path.write_bytes(gguf(dict(reversed(own.items())), dict(reversed(parts.items())), unit=32))
    assert open_base(str(path)).base_id == first
    write_gguf(path, tokenizer__chat_template="{{ x }}")
    assert open_base(str(path)).base_id != first
    body = bytearray(gguf(fields(), tensors()))
    body[-5] ^= 1
    path.write_bytes(body)
    assert open_base(str(path)).base_id != first


def test_a_version_2_file_and_another_alignment_are_read(path: Path) -> None:
    path.write_bytes(gguf(fields(general__alignment=64), tensors(), version=2, unit=64))
    assert open_base(str(path)).bits == 8


def test_llama_3s_scaling_is_recovered(path: Path) -> None:
    theta, factor, width = 500000.0, 32.0, HIDDEN // HEADS
    own, parts = fields(llama__rope__freq_base=theta), tensors() | scaled_rope(theta, factor)
    divisors = np.frombuffer(parts["rope_freqs.weight"][2], "<f4")
    path.write_bytes(gguf(own, parts))
    shape = open_base(str(path)).shape
    assert shape.rope_scaling == (factor, 1.0, 4.0, 8192.0) and shape.rope_theta == theta
    parts["rope_freqs.weight"] = ("F32", (width // 2,), (divisors * 1.5).astype("<f4").tobytes())
    assert "not those of Llama 3's scaling" in opened(path, gguf(own, parts))
    parts["rope_freqs.weight"] = ("F32", (width // 2,), np.ones(width // 2, "<f4").tobytes())
    path.write_bytes(gguf(own, parts))
    assert open_base(str(path)).shape.rope_theta == theta


Broken = Callable[[], bytes]
BROKEN: dict[str, tuple[Broken, str]] = {
    "empty": (lambda: b"", "has 0 bytes"),
    "something else": (lambda: b"PK\3\4" + bytes(50), "does not begin with GGUF"),
    "big-endian": (
        lambda: struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
        "is big-endian; a little-endian file is read here",
    ),
    "version 1": (lambda: gguf(fields(), tensors(), version=1), "is of GGUF version 1"),
    "many fields": (lambda: struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60), "speaks of 11529"),
    "many tensors": (lambda: struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0), "11529"),
    "a part": (lambda: gguf(fields(split__count=3), tensors()), "is one of 3 parts (split.count)"),
    "an adapter": (lambda: gguf(fields(general__type="adapter"), {}), "general.type 'adapter'"),
    "cut in its header": (lambda: gguf(fields(), tensors())[:900], "cut short"),
    "cut in its tensors": (lambda: gguf(fields(), tensors())[:-1], "'blk.1.ffn_down.weight' ends"),
    "another architecture": (
        lambda: gguf(fields("mamba"), tensors()),
        "is of architecture 'mamba', which is not read from GGUF here; llama, qwen2",
    ),
    "no architecture": (lambda: gguf({}, tensors()), "is of architecture 'None'"),
    "another quantization": (
        lambda: gguf(fields(), tensors() | {"x": ("Q2_K", (1, 256), bytes(84))}),
        "has 'x' in the type Q2_K, which is not read here",
    ),
    "more words than rows": (
        lambda: gguf(fields(tokenizer__ggml__tokens=["a"]), tensors()),
        f"has {len(WORDS)} words in token_embd.weight and 1 in tokenizer.ggml.tokens",
    ),
    "no words": (lambda: gguf(fields(tokenizer__ggml__tokens=None), tensors()), "and None in"),
    "an unknown tensor": (
        lambda: gguf(fields(), tensors() | {"blk.0.attn_q.bias": ("F32", (64,), bytes(256))}),
        "holds 'blk.0.attn_q.bias', which no operation of a llama reads",
    ),
    "a tensor's other name": (
        lambda: gguf(fields(), tensors() | {"blk.00.attn_norm.weight": ("F32", (64,), bytes(256))}),
        "holds 'blk.00.attn_norm.weight'",
    ),
    "a layer too many": (lambda: gguf(fields(llama__block_count=1), tensors()), "holds 'blk.1."),
    "a layer too few": (
        lambda: gguf(fields(llama__block_count=3), tensors()),
        "lacks model.layers.2.input_layernorm.weight",
    ),
    "absurd layers": (lambda: gguf(fields(llama__block_count=1 << 30), tensors()), "no model has"),
    "another shape": (
        lambda: gguf(fields(llama__feed_forward_length=128), tensors()),
        "has shape (96, 64) in Q8_0, its metadata says (128, 64)",
    ),
    "an absurd shape": (
        lambda: gguf(fields(), {"x": ("Q8_0", (1 << 62, 32), b"")}),
        "has a tensor 'x' of shape",
    ),
    "half a block": (lambda: gguf(fields(), {"x": ("Q8_0", (1, 33), b"")}), "which Q8_0 cannot"),
    "five dimensions": (lambda: gguf(fields(), {"x": ("F32", (1,) * 5, bytes(4))}), "5 dimensions"),
    "quantized norm": (
        lambda: gguf(fields(), tensors() | {"output_norm.weight": ("Q8_0", (64,), bytes(68))}),
        "output_norm.weight has shape (64,) in Q8_0, its metadata says (64,) in floats",
    ),
    "lines in a name": (
        lambda: gguf(fields() | {"llama.a\x1b\nb": "c\nd"}, tensors()),
        r"has 'llama.a\x1b\nb', 'c\nd', which is not supported here",
    ),
    "experts": (
        lambda: gguf(fields(llama__expert_count=8), tensors()),
        "'llama.expert_count', '8'",
    ),
    "scaled angles": (
        lambda: gguf(fields(llama__rope__scaling__type="yarn"), tensors()),
        "has 'llama.rope.scaling.type', 'yarn', which is not supported here",
    ),
    "a part of each head": (
        lambda: gguf(fields(llama__rope__dimension_count=8), tensors()),
        "only whole heads",
    ),
    "an odd part of each head": (
        lambda: gguf(fields("phi3", phi3__rope__dimension_count=11), tensors()),
        "has phi3.rope.dimension_count '11'; an even number up to a head's 16 columns is expected",
    ),
    "a part of each head in words": (
        lambda: gguf(fields("phi3", phi3__rope__dimension_count="8"), tensors()),
        "has phi3.rope.dimension_count '8'; an even number",
    ),
    "other divisors": (
        lambda: gguf(
            fields("phi3"), tensors() | {"rope_factors_short.weight": ("F32", (6,), bytes(24))}
        ),
        "has rope_factors_short.weight of shape (6,) in F32; (8,) in F32 is expected",
    ),
    "divisors of nothing": (
        lambda: gguf(
            fields("phi3"), tensors() | {"rope_factors_short.weight": ("F32", (8,), bytes(32))}
        ),
        "a short_factor above 0 for each two",
    ),
    "queries apart where they are fused": (
        lambda: gguf(fields("phi3"), tensors()),
        "holds 'blk.0.attn_q.weight', which no operation of a phi3 reads",
    ),
    "sizes by layer": (
        lambda: gguf(fields(llama__attention__head_count_kv=[2, 1]), tensors()),
        "one number above 0, the same for all layers",
    ),
    "not causal": (
        lambda: gguf(fields(llama__attention__causal=False), tensors()),
        "'llama.attention.causal', 'False', which is not supported here",
    ),
    "no size": (lambda: gguf(fields(llama__embedding_length=None), tensors()), "embedding_length"),
    "not a number": (
        lambda: gguf(fields(llama__rope__freq_base=float("nan")), tensors()),
        "llama.rope.freq_base 'nan'",
    ),
    "alignment 3": (lambda: gguf(fields(general__alignment=3), tensors()), "general.alignment '3'"),
    "a field's type": (lambda: gguf({"x": struct.pack("<I", 99)}, {}), "of type 99"),
    "nested lists": (
        lambda: gguf({"x": struct.pack("<IIQ", 9, 9, 1)}, tensors()),
        "field 'x' of type 9",
    ),
    "a list without end": (
        lambda: gguf({"x": struct.pack("<IIQ", 9, 0, 1 << 60)}, tensors()),
        "more than it holds",
    ),
    "a text without end": (
        lambda: gguf({"x": struct.pack("<IIQQ", 9, 8, 1, (1 << 64) - 1)}, tensors()),
        "cut short",
    ),
    "a text that is none": (
        lambda: gguf(fields(general__architecture=struct.pack("<I", 8) + string(b"\xff")), {}),
        "not UTF-8",
    ),
    "a tokenizer": (
        lambda: gguf(fields(tokenizer__ggml__model="t5"), tensors()),
        "has a tokenizer of model 't5'",
    ),
    "a pre-tokenizer": (
        lambda: gguf(fields(tokenizer__ggml__pre="tekken"), tensors()),
        "with the pre-tokenizer 'tekken'; gpt2 with one of gpt-2, smollm",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_read_is_refused_in_a_line(path: Path, case: str) -> None:
    body, said = BROKEN[case]
    assert said in opened(path, body())


def test_a_file_is_not_packed_and_names_its_licence(path: Path, tmp_path: Path) -> None:
    write_gguf(path)
    with pytest.raises(BaseError, match=r"is a GGUF file, which is used as it lies: --base"):
        pack_model(str(path), 8, tmp_path / "pack")
    with pytest.raises(BaseError, match=r"--bits 8: base .* is a GGUF file, used in the bits"):
        plan(path, bits=8)
    assert licence_of(open_base(str(path))) == "mit"
    assert licence_of(open_base(str(write_gguf(path, general__license="a b\nc")))) == ""


def test_its_tokenizer_is_opened_as_any_bases(path: Path) -> None:
    tokens = open_tokens(open_base(str(write_gguf(path))))
    assert tokens.encode("ab ab") == [WORDS.index("ab"), WORDS.index("Ġab")]
    assert tokens.pad_id == len(WORDS) - 2 and tokenizer_kind(path) == "BPE in GGUF"


def test_a_field_and_a_tensor_come_once(path: Path) -> None:
    twice = string("x") + value(1)
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + twice + twice
    assert "has the field 'x' twice" in opened(path, head)
    one = string("t") + struct.pack("<IQIQ", 1, 8, 0, 0)
    body = struct.pack("<4sIQQ", b"GGUF", 3, 2, 0) + one + string("t")
    body += struct.pack("<IQIQ", 1, 8, 0, 32)
    assert "has the tensor 't' twice" in opened(path, body + bytes(200))
    body = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + string("t") + struct.pack("<IQIQ", 1, 8, 0, 8)
    assert "has 't' at 8 of its tensors, not at 0" in opened(path, body + bytes(200))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaseError, match=r"none\.gguf: No such file"):
        open_base(str(tmp_path / "none.gguf"))


OPENED = """
import sys, time
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.bases.gguf.header import GgufFile
from smidgen.edge_client.bases.gguf.model import config_of
from smidgen.edge_client.metering.memory import peak_rss_bytes
from pathlib import Path
before, began_s = peak_rss_bytes(), time.process_time()
with GgufFile(Path(sys.argv[1])) as file:
    config_of(file)
spent_s = time.process_time() - began_s
base = open_base(sys.argv[1])
print(base.layers, spent_s, peak_rss_bytes() - before)
"""


def test_smollm2_is_opened_in_a_second_and_few_megabytes(smollm2: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPENED, str(smollm2)], capture_output=True, text=True, check=True
    )
    layers, spent_s, grown_bytes = done.stdout.split()
    assert int(layers) == 30
    assert float(spent_s) <= 1.0 and int(grown_bytes) <= 20e6

import math
from typing import Any

import pytest

from smidgen.edge_client.bases.architectures import ArchitectureError
from smidgen.edge_client.bases.layout import (
    PackError,
    checked_shape,
    lay_out,
    pooler_of,
    tensors_of,
)
from smidgen.edge_client.bases.random_models import CONFIGS

# Parameters of the public models' language models, tied decoder counted once, no pooler.
PARAMETERS = {
    "albert-base": 11_221_680,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "camembert-base": 110_655_493,
    "distilbert": 66_985_530,
    "electra-base": 109_514_298,
    "electra-small": 13_546_682,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mmbert-base": 307_786_240,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
    "mpnet-base": 109_518_527,
    "qwen2.5-0.5b": 494_032_768,
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    "smollm2-135m": 134_515_008,
    "xlm-roberta-base": 278_295_186,
    "xlm-v-base": 779_396_349,
}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def names(config: dict[str, Any]) -> list[str]:
    return [tensor.name for group in tensors_of(config) for tensor in group]


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_real_shape_has_the_public_models_parameters(name: str) -> None:
    tensors = lay_out(CONFIGS[name], 8).tensors
    assert sum(math.prod(tensor.shape) for tensor in tensors) == PARAMETERS[name]


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_layers_lie_side_by_side_and_every_float_is_aligned(name: str, bits: int) -> None:
    layout = lay_out(CONFIGS[name], bits)
    ends = [end for _, end in layout.layers]
    assert [start for start, _ in layout.layers[1:]] == ends[:-1]
    for entry in layout.entries.values():
        assert entry.start % {"F32": 4, "BF16": 2}.get(entry.dtype, 1) == 0
    spans = sum(end - start for start, end in layout.layers)
    inside = [e for e in layout.entries.values() if layout.layers[0][0] <= e.start < ends[-1]]
    assert spans == sum(entry.end - entry.start for entry in inside)


def test_albert_stores_its_shared_layer_once() -> None:
    layout = lay_out(CONFIGS["albert-base"], 4)
    assert len(layout.layers) == 1 and checked_shape(CONFIGS["albert-base"]).layers == 12


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", ["albert-base", "bert-base"])
def test_a_pooler_lies_behind_everything_else(name: str, bits: int) -> None:
    config = CONFIGS[name]
    without, layout = lay_out(config, bits), lay_out(config, bits, has_pooler=True)
    width, pooler = checked_shape(config).hidden, pooler_of(config["model_type"])
    extra = {entry: layout.entries[entry] for entry in layout.entries if pooler in entry}
    assert [t.shape for t in layout.tensors[-2:]] == [(width, width), (width,)]
    assert layout.tensors[:-2] == without.tensors and len(layout.layers) == len(without.layers)
    assert min(e.start for e in extra.values()) >= layout.layers[-1][1]
    assert max(e.end for e in extra.values()) == layout.file_bytes


def test_only_bert_and_albert_have_a_pooler_below_their_classifiers() -> None:
    named = {name: pooler_of(name) for name in ("bert", "albert", "roberta", "distilbert", "llama")}
    assert {name for name, pooler in named.items() if pooler} == {"bert", "albert"}


def test_neither_pooler_nor_classifier_is_taken() -> None:
    assert not [name for name in names(CONFIGS["bert-base"]) if "pooler" in name]
    assert not [name for name in names(CONFIGS["roberta-base"]) if "classifier" in name]


def test_a_decoder_is_stored_only_where_it_is_not_the_word_table() -> None:
    bert, llama = CONFIGS["bert-base"], LLAMA
    assert "cls.predictions.decoder.weight" not in names(bert)
    assert "cls.predictions.decoder.weight" in names(bert | {"tie_word_embeddings": False})
    assert "lm_head.weight" not in names(llama)
    assert names(llama | {"tie_word_embeddings": False})[-1] == "lm_head.weight"


def test_decoders_have_biases_only_where_the_family_has() -> None:
    assert not [name for name in names(LLAMA) if name.endswith("bias")]
    biases = {n.split(".")[-2] for n in names(LLAMA | {"model_type": "qwen2"}) if "bias" in n}
    assert biases == {"q_proj", "k_proj", "v_proj"}


def test_grouped_queries_have_fewer_rows_of_keys() -> None:
    shapes = {t.name: t.shape for group in tensors_of(LLAMA) for t in group}
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (64, 128)
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (128, 128)


def test_what_is_quantized_is_the_linears_and_the_word_table() -> None:
    tensors = [t for group in tensors_of(CONFIGS["roberta-base"]) for t in group]
    plain = {t.name.split(".")[-2] for t in tensors if not t.is_quantized}
    tables = {"position_embeddings", "token_type_embeddings", "LayerNorm", "layer_norm", "lm_head"}
    linears = {"query", "key", "value", "dense"}  # their biases
    assert plain == tables | linears
    matrices = [t for t in tensors if t.is_quantized]
    assert len(matrices) == 12 * 6 + 2 and all(len(t.shape) == 2 for t in matrices)


def test_four_bits_of_odd_columns_name_the_tensor_and_the_way_out() -> None:
    config = CONFIGS["bert-base"] | {"intermediate_size": 3000}
    said = r"blocks of 64, but bert.encoder.layer.0.output.dense.weight has 3000; use --bits 8"
    with pytest.raises(PackError, match=said):
        lay_out(config, 4)
    lay_out(config, 8)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"type_vocab_size": "two"},
        {"type_vocab_size": 0},
        {"max_position_embeddings": float("inf")},
        {"vocab_size": []},
        {"intermediate_size": -1},
        {"model_type": "llama", "rope_scaling": ["linear"]},
    ],
)
def test_sizes_that_no_model_has_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArchitectureError) as caught:
        tensors_of(CONFIGS["bert-base"] | change)
    assert "\n" not in str(caught.value)

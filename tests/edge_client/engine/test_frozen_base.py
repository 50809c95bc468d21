from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.layout import checked_shape
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.frozen_base import FrozenBase
from smidgen.edge_client.planning.layer_cost import TABLE_ROWS
from tests.tiny import write_tiny_base

SIZES = {
    "hidden_size": 4,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 50,
    "max_position_embeddings": 12,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}


def other_base(tmp_path: Path, family: str, tensors: dict[str, np.ndarray]) -> Base:
    """A base of a family, with some of its tensors alone."""
    save_file(tensors, tmp_path / "model.safetensors")
    shape = checked_shape(SIZES | {"model_type": family, "embedding_size": 4})
    return Base(family, tmp_path, "some", shape, 32)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_words_are_rows_of_the_table_however_often_and_however_many(
    tmp_path: Path, bits: int
) -> None:
    base = open_base(str(write_tiny_base(tmp_path / "plain")))
    if bits < 32:
        pack_model(str(base.folder), bits, tmp_path / "pack")
        base = open_base(str(tmp_path / "pack"))
    frozen = FrozenBase(base)
    ids = np.random.Generator(np.random.PCG64(0)).integers(0, 1100, (5, 2 * TABLE_ROWS))
    ids[3], ids[4] = ids[0, ::-1], 7
    name = f"{frozen.family.words}.weight"
    rows = frozen.words(ids)
    assert rows.dtype == np.float32 and rows.shape == (*ids.shape, base.hidden)
    assert (rows.reshape(-1, base.hidden) == frozen.weights.rows(name, ids.ravel())).all()


def test_positions_of_a_roberta_begin_behind_its_padding(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).repeat(4).reshape(12, 4)
    table = {"roberta.embeddings.position_embeddings.weight": rows}
    (places,) = FrozenBase(other_base(tmp_path, "roberta", table)).places(3)
    assert places[:, 0].tolist() == [2, 3, 4]


def test_places_of_a_bert_are_positions_and_the_first_segment(tiny_base: Base) -> None:
    frozen = FrozenBase(tiny_base)
    positions, segment = frozen.places(9)
    table = frozen.weights.stored("bert.embeddings.position_embeddings.weight").data
    assert (positions == table[:9]).all() and segment.shape == (1, tiny_base.hidden)


def test_label_rows_come_with_their_biases(tmp_path: Path) -> None:
    rows = np.arange(200, dtype=np.float32).reshape(50, 4)
    tensors = {"lm_head.decoder.weight": rows, "lm_head.decoder.bias": rows[:, 0] + 1}
    base = other_base(tmp_path, "roberta", tensors)
    untied = replace(base, shape=replace(base.shape, is_tied=False))
    found, bias = FrozenBase(untied).label_rows([[7], [3]])
    assert (found == rows[[7, 3]]).all() and bias.tolist() == [29, 13]


def test_a_word_of_several_tokens_has_their_mean_row_and_bias(tmp_path: Path) -> None:
    rows = np.random.Generator(np.random.PCG64(0)).normal(size=(50, 4)).astype(np.float32)
    tensors = {"lm_head.decoder.weight": rows, "lm_head.decoder.bias": rows[:, 0].copy()}
    base = other_base(tmp_path, "roberta", tensors)
    untied = replace(base, shape=replace(base.shape, is_tied=False))
    found, bias = FrozenBase(untied).label_rows([[7, 3, 3], [5], [9, 8]])
    assert found.dtype == bias.dtype == np.float32
    np.testing.assert_allclose(found[[0, 2]], [rows[[7, 3, 3]].mean(0), rows[[9, 8]].mean(0)])
    np.testing.assert_allclose(bias[[0, 2]], found[[0, 2], 0])
    assert (found[1] == rows[5]).all() and bias[1] == rows[5, 0]


def test_the_word_table_answers_where_the_head_has_no_rows_of_its_own(tiny_base: Base) -> None:
    frozen = FrozenBase(tiny_base)
    assert frozen.decoder == "bert.embeddings.word_embeddings.weight"
    assert (frozen.label_rows([[9]])[0] == frozen.words(np.array([[9]]))[0]).all()


def test_an_alberts_layers_share_what_is_stored(tmp_path: Path) -> None:
    frozen = FrozenBase(other_base(tmp_path, "albert", {"x": np.zeros(1, np.float32)}))
    assert [frozen.stored_layer(index) for index in range(6)] == [0] * 6
    groups = replace(frozen.shape, stored_layers=2)
    frozen.shape = groups
    assert [frozen.stored_layer(index) for index in range(6)] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("family", "kind"), [("roberta", "gelu"), ("bert", "relu")])
def test_a_robertas_head_has_the_exact_gelu_whatever_its_layers_have(
    tmp_path: Path, family: str, kind: str
) -> None:
    base = other_base(tmp_path, family, {"x": np.zeros(1, np.float32)})
    frozen = FrozenBase(replace(base, shape=replace(base.shape, activation="relu")))
    assert frozen.head_activation == kind


def test_a_layer_that_was_released_is_read_again(tiny_base: Base) -> None:
    frozen = FrozenBase(tiny_base)
    module = frozen.layer_prefix(1) + frozen.family.linears["q"]
    before = frozen.matrix(module).data.copy()
    frozen.ceiling_bytes = 1  # always above it
    frozen.release_layer(1)
    frozen.release_all()
    assert (frozen.matrix(module).data == before).all()

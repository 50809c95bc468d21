import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from smidgen.edge_client.bases.layout import PackError, Tensor
from smidgen.edge_client.bases.random_models import (
    CONFIGS,
    LABEL_WORDS,
    draw_blocks,
    hub_config,
    tokenizer_files,
)
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.tokens import Tokens

IDS = {
    "bert-base": {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103},
    "albert-base": {"<pad>": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4},
    "camembert-base": {"<pad>": 1, "<unk>": 3, "<s>": 5, "</s>": 6, "<mask>": 32004},
    "electra-small": {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103},
    "mpnet-base": {"<s>": 0, "<pad>": 1, "</s>": 2, "[UNK]": 104, "<mask>": 30526},
    "roberta-base": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 50264},
    "xlm-roberta-base": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 250001},
}


def drawn(tensor: Tensor, seed: int, block_rows: int) -> np.ndarray:
    return np.concatenate(list(draw_blocks(tensor, seed, block_rows)))


@given(st.integers(1, 12), st.integers(1, 12))
def test_the_size_of_the_blocks_changes_no_number(rows: int, other: int) -> None:
    tensor = Tensor("x.weight", (11, 7), is_quantized=True)
    assert (drawn(tensor, 1, rows) == drawn(tensor, 1, other)).all()


def test_seeds_and_names_give_weights_of_their_own() -> None:
    first = drawn(Tensor("x", (200, 64)), 0, 50)
    assert abs(first.std() - 0.02) < 0.001 and abs(first.mean()) < 0.001
    assert (first != drawn(Tensor("y", (200, 64)), 0, 50)).any()
    assert (first != drawn(Tensor("x", (200, 64)), 1, 50)).any()


def test_norms_start_as_one_and_biases_as_zero() -> None:
    assert (drawn(Tensor("a.LayerNorm.weight", (5,)), 0, 2) == 1).all()
    assert (drawn(Tensor("a.LayerNorm.bias", (5,)), 0, 2) == 0).all()
    assert (drawn(Tensor("lm_head.bias", (5,)), 0, 2) == 0).all()


@pytest.mark.few(3)
@pytest.mark.parametrize("name", sorted(IDS))
def test_the_tokenizer_has_the_familys_specials(name: str) -> None:
    config = CONFIGS[name]
    tokenizer = Tokenizer.from_str(tokenizer_files(config)["tokenizer.json"].decode())
    assert {token: tokenizer.token_to_id(token) for token in IDS[name]} == IDS[name]
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert sorted(tokenizer.get_vocab().values()) == list(range(config["vocab_size"]))
    specials = IDS[name]
    first, last, mask = (
        ("<s>", "</s>", "<mask>") if "<s>" in specials else ("[CLS]", "[SEP]", "[MASK]")
    )
    ids = tokenizer.encode(f"w500 w12345 {mask}").ids
    assert ids == [specials[first], 500, 12345, specials[mask], specials[last]]


@pytest.mark.parametrize("name", ["bert-base", "roberta-base", "albert-base", "distilbert"])
def test_label_words_are_one_token_and_prompts_can_be_asked(tmp_path: Path, name: str) -> None:
    for file, body in tokenizer_files(CONFIGS[name]).items():
        (tmp_path / file).write_bytes(body)
    tokens = Tokens(tmp_path)
    words = dict(zip(LABEL_WORDS, LABEL_WORDS, strict=True))
    task = Task("t", LABEL_WORDS, ("[MASK] {text}",), words)
    assert len(tokens.label_word_ids(task)) == len(LABEL_WORDS)
    assert tokens.pad_id == CONFIGS[name]["pad_token_id"]


def test_a_configuration_is_the_callers_own() -> None:
    hub_config("bert-base")["vocab_size"] = 7
    assert hub_config("bert-base")["vocab_size"] == 30522
    assert json.loads(json.dumps(hub_config("albert-base"))) == CONFIGS["albert-base"]


def test_an_unknown_shape_shows_the_known_ones() -> None:
    with pytest.raises(PackError, match="knows no shape 'bert-huge'; one of albert-base, bert"):
        hub_config("bert-huge")

"""CamemBERT's and XLM-R's tokenizers as transformers builds them, from files old and new.

The oracle is AutoTokenizer of the same folder, which builds its class from the file's vocabulary.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from smidgen.edge_client.bases.configurations import shape_of
from smidgen.edge_client.bases.tokenizer import disagreements, tokenizer_kind
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens

transformers = pytest.importorskip("transformers")

PIECES = [
    *("▁", "▁le", "▁la", "▁match", "▁était", "▁très", "bon", "▁bon", "▁mal", "s", "e", "a", "t"),
    *(
        "▁news",
        "▁good",
        "日",
        "本",
        ".",
        ",",
        "!",
        "(",
        ")",
        "é",
        "è",
        "n",
        "o",
        "m",
        "b",
        "l",
        "r",
    ),
]
FIRST = {  # ids of special tokens before the pieces; the mask is the last
    "camembert": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
    "xlm-roberta": ["<s>", "<pad>", "</s>", "<unk>"],
}
CLASSES = {"camembert": "CamembertTokenizer", "xlm-roberta": "XLMRobertaTokenizer"}
TEXTS = st.lists(
    st.sampled_from(
        ["le match", " était", "très", "  ", "\n", "日本", "!", "(bon)", "É", "<s>", "x"]
    ),
    max_size=8,
).map("".join)


def write(family: str, folder: Path, *, is_old: bool) -> Path:
    """A folder as on the hub: tokenizer.json by today's library, or by that of 2020."""
    vocabulary = [(piece, 0.0) for piece in FIRST[family]]
    vocabulary += [(piece, -float(len(piece) < 3) - 2) for piece in PIECES] + [("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 3, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.add_special_tokens([*("<s>", "<pad>", "</s>", "<unk>", "<mask>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    document = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["lstrip"] = token["content"] == "<mask>"
    if is_old:
        del document["model"]["type"], document["model"]["byte_fallback"]
        metaspace = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁"}
        document["pre_tokenizer"]["pretokenizers"][1] = metaspace | {"add_prefix_space": True}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    named = {} if is_old else {"tokenizer_class": CLASSES[family], "mask_token": "<mask>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "config.json").write_text(json.dumps(config(family)))
    return folder


def config(family: str) -> dict[str, Any]:
    size = len(FIRST[family]) + len(PIECES) + 1
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    return {"model_type": family, "vocab_size": size, **sizes}


@pytest.fixture(scope="module", params=[(f, old) for f in FIRST for old in (True, False)], ids=str)
def read(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    family, is_old = request.param
    folder = write(family, tmp_path_factory.mktemp("t") / "m", is_old=is_old)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert type(theirs).__name__ == CLASSES[family]
    assert tokenizer_kind(folder) == "Unigram"
    assert disagreements(folder, shape_of(config(family))) == []
    return Tokens(folder), theirs


@given(first=TEXTS, second=TEXTS)
def test_a_cloze_has_the_ids_that_the_class_gives_the_sentence(
    read: Any, first: str, second: str
) -> None:
    ours, theirs = read
    plain, other = (text.replace("<s>", "") for text in (first, second))
    prompt = ours.cloze("{text_a} ? [MASK] , {text_b}", Example(plain, other), 500)
    assert prompt.ids == theirs(f"{plain} ? <mask> , {other}")["input_ids"]
    pair = ours.plain(Example(plain, other or "bon"), 500)
    assert pair.ids == theirs(plain, other or "bon")["input_ids"] and pair.segments is None


@given(text=TEXTS)
def test_a_typed_control_word_is_text(read: Any, text: str) -> None:
    ours, theirs = read
    ids = ours.plain(Example(text), 500).ids
    assert ids[0] == theirs.cls_token_id and ids[-1] == theirs.sep_token_id
    assert not {theirs.cls_token_id, theirs.mask_token_id} & set(ids[1:-1])


@pytest.mark.parametrize("family", FIRST)
def test_a_file_that_splits_otherwise_than_its_class_is_named(family: str, tmp_path: Path) -> None:
    path = write(family, tmp_path, is_old=False) / "tokenizer.json"
    for normalizer, splitting in (
        (None, pre_tokenizers.Metaspace()),
        (normalizers.Lowercase(), Tokenizer.from_file(str(path)).pre_tokenizer),
    ):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.pre_tokenizer = splitting
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.save(str(path.with_name("other.json")))
        before = path.read_bytes()
        path.write_bytes(path.with_name("other.json").read_bytes())
        (line,) = disagreements(tmp_path, shape_of(config(family)))
        assert f"otherwise than {CLASSES[family]} does in transformers; save it again" in line
        path.write_bytes(before)

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from smidgen.edge_client.bases.gguf.tokenizer import SPLITTINGS, gguf_tokenizer
from smidgen.edge_client.bases.header import WeightsError
from tests.edge_client.bases.gguf.files import (
    BYTES,
    WORDS,
    gguf,
    sentence_piece_fields,
    write_gguf,
)

# What scripts, digits, white space and control words are made of.
BITS = (
    *("hello", "World", "don't", "it'LL", " ", "  ", "\t", "\n", "\n\n", "\r\n", "7", "123", "٣٤"),
    *(
        "½",
        "Ⅷ",
        "²",
        "१२३",
        "你好",
        "日本語",
        "한국어",
        "Привет",
        "مرحبا",
        "שלום",
        "ไทย",
        "क्षि",
        "é",
    ),
    *(
        "e\u0301",
        "\u200b",
        "\u00a0",
        "\u2028",
        "\u0085",
        "\u3000",
        "😀",
        "👩‍👩‍👧",
        "🇩🇪",
        "...",
        "$9.99",
    ),
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start",
        "<|endoftext|>",
        "<repo_name>",
        "|>",
        "C++",
        "\x00",
    ),
    *(
        "\x1c",
        "\u180e",
        "\ufeff",
        "ſ",
        "İ",
        "(x)",
        "-->",
        "\u202e",
        "①",
        "₂",
        "𝟙",
        "'s",
        "'S",
        "1,000",
    ),
)


ZEROS = [0.0] * len(WORDS)
NOWHERE = [*ZEROS[1:], float("nan")]


def tokenizer(path: Path, **changes: Any) -> tuple[Tokenizer, dict[str, Any]]:
    body, config = gguf_tokenizer(write_gguf(path / "tiny.gguf", **changes))
    return Tokenizer.from_str(body), config


def pieces(path: Path, text: str, **changes: Any) -> list[str]:
    return list(tokenizer(path, **changes)[0].encode(text, add_special_tokens=False).tokens)


def test_merges_specials_and_added_words_are_the_files(tmp_path: Path) -> None:
    made, config = tokenizer(tmp_path)
    assert made.get_vocab_size() == len(WORDS)
    assert made.encode("ab ab<|end|> <tool>b").tokens == [
        "ab",
        "Ġab",
        "<|end|>",
        "Ġ",
        "<tool>",
        "b",
    ]
    assert config == {"eos_token": "<|end|>", "pad_token": "<|pad|>", "add_bos_token": False}
    added = {token.content: token.special for token in made.get_added_tokens_decoder().values()}
    assert added == {"<|end|>": True, "<|pad|>": True, "<tool>": False}
    assert made.decode(made.encode("ab é 12\n").ids) == "ab é 12\n"


@pytest.mark.parametrize(
    ("pre", "text", "splits"),
    [
        ("smollm", "a  7b12", ["a", "ĠĠ", "7", "b", "1", "2"]),
        ("gpt-2", "a  77b", ["a", "Ġ", "Ġ77", "b"]),
        ("llama-bpe", "A'LL 12345\n\nb", ["A", "'LL", "Ġ", "123", "45", "ĊĊ", "b"]),
        ("qwen2", "x12 (y)", ["x", "1", "2", "Ġ(", "y", ")"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", "Ġ", "123", "4"]),
        ("default", "a+1234", ["a", "+", "123", "4"]),
    ],
)
def test_texts_are_split_as_llama_cpp_splits_them(
    tmp_path: Path, pre: str, text: str, splits: list[str]
) -> None:
    made, _ = tokenizer(tmp_path, tokenizer__ggml__pre=pre)
    assert made.pre_tokenizer is not None
    assert [piece for piece, _ in made.pre_tokenizer.pre_tokenize_str(text)] == splits


def sentence_pieces(path: Path, *words: str, **changes: Any) -> Tokenizer:
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *BYTES, *words]
    (path / "tiny.gguf").write_bytes(gguf(sentence_piece_fields(names, **changes), {}))
    return Tokenizer.from_str(gguf_tokenizer(path / "tiny.gguf")[0])


def test_neighbours_are_joined_into_the_piece_of_the_highest_score(tmp_path: Path) -> None:
    made = sentence_pieces(tmp_path, "bc", "ab", "\u2581ab", "a", "b", "c", "\u2581")
    assert made.encode("abc").tokens == ["<bos>", "\u2581", "a", "bc"]
    assert made.encode("ab é").tokens[1:] == ["\u2581ab", "\u2581", "<0xC3>", "<0xA9>"]
    assert made.decode(made.encode("ab é").ids) == "ab é"
    front = {"tokenizer__ggml__add_space_prefix": False, "tokenizer__ggml__add_bos_token": False}
    bare = sentence_pieces(tmp_path, "bc", "ab", "a", "b", "c", "\u2581", **front)
    assert bare.encode("ab c").tokens == ["ab", "\u2581", "c"]
    assert bare.decode(bare.encode(" ab c").ids) == " ab c"


def test_silent_pieces_have_llama_cpps_specials(tmp_path: Path) -> None:
    silent = {f"tokenizer__ggml__{name}_token_id": None for name in ("bos", "eos", "unknown")}
    made = sentence_pieces(tmp_path, "a", "\u2581", **silent)
    assert made.encode("a").tokens == ["<eos>", "\u2581", "a"]  # id 1


def test_what_ends_a_turn_is_a_control_word_whatever_the_file_says(tmp_path: Path) -> None:
    kinds = [1] * (len(WORDS) - 3) + [4, 3, 4]
    known = {"tokenizer__ggml__token_type": kinds}
    names = [*WORDS[:-3], "<end_of_turn>", "<|pad|>", "<tool>"]
    made, _ = tokenizer(tmp_path, tokenizer__ggml__tokens=names, **known)
    added = made.get_added_tokens_decoder().values()
    assert {one.content: one.special for one in added}["<end_of_turn>"]


@pytest.mark.parametrize(
    ("words", "scores", "said"),
    [
        (("bc", "ab", "a", "b", "c"), {"bc": 0.0, "ab": 0.0}, "gives two words one score"),
        (("\u00e9a", "a"), {}, r"'\\xe9' of its words is no word by itself"),
    ],
)
def test_pieces_that_llama_cpp_joins_otherwise_are_refused(
    tmp_path: Path, words: tuple[str, ...], scores: dict[str, float], said: str
) -> None:
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *BYTES, *words]
    own = [scores.get(word, -float(place)) for place, word in enumerate(names)]
    with pytest.raises(WeightsError, match=said):
        sentence_pieces(tmp_path, *words, tokenizer__ggml__scores=own)


def test_a_file_without_a_pre_tokenizer_has_llama_cpps_default(tmp_path: Path) -> None:
    made, _ = tokenizer(tmp_path, tokenizer__ggml__pre=None)
    expected, _ = tokenizer(tmp_path, tokenizer__ggml__pre="default")
    assert made.to_str() == expected.to_str()


def test_specials_stand_around_a_text_where_the_file_says_so(tmp_path: Path) -> None:
    asked = {
        "tokenizer__ggml__bos_token_id": len(WORDS) - 2,
        "tokenizer__ggml__add_eos_token": True,
    }
    made, config = tokenizer(tmp_path, tokenizer__ggml__add_bos_token=True, **asked)
    assert made.encode("b").tokens == ["<|pad|>", "b", "<|end|>"]
    assert made.encode("b", "a").tokens == ["<|pad|>", "b", "<|end|>", "<|pad|>", "a", "<|end|>"]
    assert made.encode("b", add_special_tokens=False).tokens == ["b"]
    assert config["add_bos_token"] and config["bos_token"] == "<|pad|>"


def test_llama_3_begins_with_its_first_special_where_the_file_is_silent(tmp_path: Path) -> None:
    own = {"tokenizer__ggml__pre": "llama-bpe", "tokenizer__ggml__bos_token_id": len(WORDS) - 2}
    assert tokenizer(tmp_path, **own)[0].encode("b").tokens == ["<|pad|>", "b"]
    silent = tokenizer(tmp_path, **own, tokenizer__ggml__add_bos_token=False)[0]
    assert silent.encode("b").tokens == ["b"]


def test_a_whole_piece_that_is_a_word_is_not_merged_in_llama_3(tmp_path: Path) -> None:
    merges = {"tokenizer__ggml__merges": ["Ġ a", "a b"]}
    assert pieces(tmp_path, " ab", **merges) == ["Ġa", "b"]
    assert pieces(tmp_path, " ab", **merges, tokenizer__ggml__pre="llama-bpe") == ["Ġab"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "t5"}, "a tokenizer of model 't5'"),
        (
            {"pre": "tekken"},
            "one of gpt-2, smollm, llama-bpe, qwen2, gpt-4o, default, or llama, is",
        ),
        ({"model": "llama"}, "scores does not give each word a number"),
        ({"model": "llama", "scores": [0.0]}, "scores does not give each word a number"),
        ({"model": "llama", "scores": NOWHERE}, "scores does not give each word a number"),
        ({"model": "llama", "scores": ZEROS}, "its vocabulary lacks <0x00>, one of 256 bytes"),
        ({"add_bos_token": "false"}, "add_bos_token is 'false'; true or false is expected"),
        ({"pre": 3}, "'3'"),
        ({"tokens": ["a", "a"]}, "not a list of different words"),
        ({"tokens": 3}, "not a list of different words"),
        ({"merges": ["ab"]}, "merges is not a list of pairs"),
        ({"merges": None}, "merges is not a list of pairs"),
        ({"token_type": [1]}, "does not name each word's type"),
        ({"eos_token_id": 1 << 20}, "which is none of its"),
        ({"eos_token_id": "x"}, "which is none of its"),
    ],
)
def test_fields_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(WeightsError, match=said):
        tokenizer(tmp_path, **{f"tokenizer__ggml__{key}": item for key, item in changes.items()})


def test_each_split_is_one_that_tokenizers_reads(tmp_path: Path) -> None:
    for pre in SPLITTINGS:
        made, _ = tokenizer(tmp_path, tokenizer__ggml__pre=pre)
        assert made.decode(made.encode("".join(BITS)).ids, skip_special_tokens=False) == "".join(
            BITS
        )


def odd_texts(count: int) -> list[str]:
    draw = random.Random(0)
    ranges = ((32, 0x500), (0x500, 0x3000), (0x3000, 0xD7FF), (0x10000, 0x1FFFF))
    mixed = ["".join(draw.choices(BITS, k=draw.randint(1, 14))) for _ in range(count // 2)]
    drawn = [[chr(draw.randrange(*draw.choice(ranges))) for _ in range(10)] for _ in mixed]
    return [*mixed, *map("".join, drawn)]


def test_ids_of_odd_texts_are_those_of_smollm2s_folder(smollm2: Path) -> None:
    body, _ = gguf_tokenizer(smollm2)
    ours = Tokenizer.from_str(body)
    theirs = Tokenizer.from_file(str(smollm2.with_name("tokenizer.json")))
    for text in odd_texts(2000):
        assert ours.encode(text).ids == theirs.encode(text).ids, json.dumps(text)

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from smidgen.edge_client.texts.vocabulary import disk_folder, read_tokenizer
from tests.conftest import shared


def byte_level(*, is_whole_first: bool = False) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, "ab", "Ġa", "Ġab", "[END]", "<s>"]
    ids = {word: place for place, word in enumerate(words)}
    model = models.BPE(
        ids, [("a", "b"), ("Ġ", "a"), ("Ġa", "b")], ignore_merges=is_whole_first, unk_token="a"
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("[END]", lstrip=True), AddedToken("<new>")])
    tokenizer.add_tokens([AddedToken("tool", single_word=True, normalized=False)])
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", ids["<s>"])])
    return tokenizer


@pytest.mark.parametrize("is_a_file", [True, False])
@pytest.mark.parametrize("is_whole_first", [True, False])
@pytest.mark.parametrize("are_pairs", [True, False])
def test_a_tokenizer_is_in_the_state_that_the_library_leaves_it_in(
    tmp_path: Path, are_pairs: bool, is_whole_first: bool, is_a_file: bool
) -> None:
    document = json.loads(byte_level(is_whole_first=is_whole_first).to_str())
    if not are_pairs:  # as before tokenizers 0.20
        document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    text = json.dumps(document, indent=2)
    (tmp_path / "tokenizer.json").write_text(text)
    found = read_tokenizer(tmp_path / "tokenizer.json" if is_a_file else text)
    own, typed = Tokenizer.from_str(text), "[END] ab tool a<new>"
    assert found.to_str() == own.to_str()
    assert found.encode(typed).ids == own.encode(typed).ids


@pytest.mark.parametrize("half", ["a b", "a\n", "\u00a0", "#version"])
def test_merges_that_a_file_of_lines_could_not_hold_are_read_all_the_same(half: str) -> None:
    model = models.BPE({half: 0, "c": 1, f"{half}c": 2, f"c{half}": 3}, [(half, "c"), ("c", half)])
    text = Tokenizer(model).to_str()
    assert read_tokenizer(text).to_str() == text


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"a": 0}, "a"),
        models.WordPiece({"a": 0}, unk_token="a"),
        models.Unigram([("a", 0.0)], 0, False),
        models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], byte_fallback=True),
    ],
)
def test_other_models_are_read_by_the_library(model: models.Model) -> None:
    text = Tokenizer(model).to_str()
    assert read_tokenizer(text).to_str() == text


@pytest.mark.parametrize("change", ["normalized", "special", "id", "mixed"])
def test_what_the_library_would_not_write_is_left_to_it(change: str) -> None:
    document = json.loads(byte_level().to_str())
    if change == "mixed":
        document["model"]["merges"][0] = " ".join(document["model"]["merges"][0])
    else:
        del document["added_tokens"][0][change]
    text = json.dumps(document)
    with pytest.raises(Exception, match=r"\w") as theirs:
        Tokenizer.from_str(text)
    with pytest.raises(Exception, match=r"\w") as ours:
        read_tokenizer(text)
    assert str(ours.value) == str(theirs.value)


def test_without_a_folder_for_files_it_is_read_by_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    assert disk_folder() == str(tmp_path / "gone")
    text = byte_level().to_str()
    assert read_tokenizer(text).to_str() == text
    with pytest.raises(Exception, match="EOF"):
        read_tokenizer(text[:-40])


def test_a_released_tokenizer_is_read_as_the_library_reads_it() -> None:
    path = shared("models", "smollm2-135m-instruct") / "tokenizer.json"
    assert read_tokenizer(path).to_str() == Tokenizer.from_file(str(path)).to_str()

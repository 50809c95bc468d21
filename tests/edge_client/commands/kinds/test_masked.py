"""Texts whose masked words are guessed, from training to perplexity by language."""

import math
from pathlib import Path

import pytest

import smidgen
from smidgen.edge_client.bases.base import Base
from tests.edge_client.commands.alone import client, refused, train
from tests.edge_client.commands.kinds.texts import last_object, masked_data, objects


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return masked_data(tmp_path_factory.mktemp("masked") / "data")


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, data: Path) -> Path:
    done = train(tiny_base, data, data.parent / "out", "--adapter", "lora:2")
    assert done.exit_code == 0, done.output
    return data.parent / "out"


def test_each_mask_gets_its_likeliest_words(tiny_base: Base, adapter: Path) -> None:
    text = "rain at [MASK] and [MASK]"
    asked = ("predict", tiny_base, "--adapter", adapter, text, "--top", 3)
    lines = client(*asked).stdout.splitlines()
    assert lines[0].startswith("rain at [") and lines[1].startswith("  1: ") and len(lines) == 3
    (found,) = last_object(client(*asked, "--json"))["answers"]
    assert [len(one) for one in found["guesses"]] == [3, 3] and found["perplexity"] is None
    sure = [one["probability"] for one in found["guesses"][0]]
    assert sure == sorted(sure, reverse=True)
    words = [one[0]["word"] for one in found["guesses"]]
    assert found["filled"] == f"rain at {words[0]} and {words[1]}"


def test_a_text_without_a_mask_has_a_perplexity_of_its_own(tiny_base: Base, adapter: Path) -> None:
    asked = ("predict", tiny_base, "--adapter", adapter)
    (found,) = last_object(client(*asked, "rain at nine", "--json"))["answers"]
    assert found["perplexity"] > 1 and found["tokens"] >= 8 and found["guesses"] == []
    other = last_object(client(*asked, "snow", "rain at nine", "--json"))["answers"]
    assert other[1] == found  # which others there are does not matter
    assert client(*asked, "rain at nine").stdout.startswith("perplexity ")


def test_the_base_alone_guesses_too(tiny_base: Base, data: Path) -> None:
    done = client("predict", tiny_base, "rain at [MASK]", "--task", data / "task.toml", "--json")
    assert len(last_object(done)["answers"][0]["guesses"][0]) == 5


def test_a_mask_that_is_not_read_is_told(tiny_base: Base, adapter: Path, tmp_path: Path) -> None:
    far = f"{'rain ' * 200}[MASK]"
    (tmp_path / "in.txt").write_text(f"{far}\nrain [MASK]\n")
    done = client("predict", tiny_base, "--adapter", adapter, "--file", tmp_path / "in.txt")
    assert "line 1: a [MASK] behind the first" in done.stderr and done.exit_code == 0
    with pytest.raises(
        smidgen.WrongInput, match=r"1 of 1 row left out \(1 columns\): line 1: a \[MASK\] behind"
    ):
        smidgen.fill([far], adapter, base=tiny_base.folder, engine="onnx")


def test_a_file_of_guesses_is_one_object_per_text(
    tiny_base: Base, adapter: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("id,text\na,rain [MASK]\nb,rain\n")
    out = tmp_path / "out.jsonl"
    words = ("--adapter", adapter, "--file", tmp_path / "in.csv", "--out", out)
    told = last_object(client("predict", tiny_base, *words, "--json"))
    assert (told["texts"], told["with_a_mask"]) == (2, 1)
    first, second = objects(out)
    assert (first["id"], second["id"]) == ("a", "b") and second["perplexity"] > 1
    assert client("predict", tiny_base, *words).exit_code == 0  # it replaces its own


def test_an_evaluation_tells_perplexity_language_by_language(
    tiny_base: Base, data: Path, adapter: Path
) -> None:
    done = client("evaluate", tiny_base, "--data", data, "--adapter", adapter)
    assert "perplexity" in done.stdout and "\nde " in done.stdout
    asked = ("evaluate", tiny_base, "--data", data, "--adapter", adapter)
    found = last_object(client(*asked, "--json"))
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert [(one["language"], one["texts"]) for one in found["languages"]] == [("de", 1), ("en", 2)]
    assert found["tokens"] == sum(one["answers"] for one in found["languages"])
    logs = [one["answers"] * math.log(one["perplexity"]) for one in found["languages"]]
    assert sum(logs) / found["tokens"] == pytest.approx(found["loss"], rel=1e-5)


def test_figures_are_those_that_training_gave(tiny_base: Base, data: Path, tmp_path: Path) -> None:
    trained = last_object(train(tiny_base, data, tmp_path / "out", "--json"))
    done = client("evaluate", tiny_base, "--data", data, "--adapter", tmp_path / "out", "--json")
    assert last_object(done)["accuracy"] == trained["accuracy_after"]


def test_what_masked_words_have_none_of_is_refused_in_one_line(
    tiny_base: Base, data: Path, adapter: Path, tmp_path: Path
) -> None:
    said = refused(client("predict", tiny_base, "rain", "--adapter", adapter, "--top", 0))
    assert "--top 0: 1 to 100 is expected" in said
    out = ("--out", tmp_path / "out.jsonl")
    said = refused(client("evaluate", tiny_base, "--data", data, "--adapter", adapter, *out))
    assert "masked words have no answer of each text" in said
    said = refused(train(tiny_base, data, tmp_path / "out", "--adapter", "lora:2+head"))
    assert "asks for masked words, which the base's own head answers; take lora:2" in said

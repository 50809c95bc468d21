"""Conversations and plain texts learned by a decoder, from training to the answers' perplexity."""

import json
import math
from pathlib import Path

import pytest

import smidgen
from smidgen.edge_client.bases.base import Base, open_base
from tests.command_line import Done
from tests.command_line import smidgen as command
from tests.edge_client.commands.alone import client, refused
from tests.edge_client.commands.kinds.texts import last_object
from tests.edge_client.tasks.tiny_decoder import write_tiny_decoder

pytest.importorskip("jinja2")
ROOMS, ACTS = ("lamp", "door", "oven", "fan"), ("start", "stop", "check")
LONG = "z" * 200  # its answer lies behind what is read


def row(act: str, room: str, language: str) -> dict[str, str]:
    said = json.dumps({"do": act, "at": room})
    return {"prompt": f"{act} the {room}", "completion": said, "language": language}


def write(path: Path, *rows: object) -> None:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in rows))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return open_base(str(write_tiny_decoder(tmp_path_factory.mktemp("decoder") / "base")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home") / "data"
    folder.mkdir()
    rows = [row(act, room, "de" if act == "stop" else "en") for act in ACTS for room in ROOMS]
    bad = {"prompt": LONG, "completion": "x"}, {"messages": [{"role": "user", "content": "x"}]}
    write(folder / "labelled.jsonl", *rows[::2], *bad)
    write(folder / "test.jsonl", *rows[1::2], bad[0])
    (folder / "task.toml").write_text('name = "home"\nkind = "chat"\n')
    return folder


def trained(base: Base, data: Path, out: Path, *more: object) -> Done:
    known = ("--tokens", 120, "--epochs", 4, "--batch", 4, "--lr", 0.01, "--adapter", "lora:2")
    return client("train", base, "--data", data, "--out", out, *known, *more)


@pytest.fixture(scope="module")
def adapter(base: Base, data: Path) -> Path:
    done = trained(base, data, data.parent / "out")
    assert done.exit_code == 0, done.output
    return data.parent / "out"


def test_training_teaches_the_answers_and_counts_what_was_left_out(
    base: Base, data: Path, tmp_path: Path
) -> None:
    done = trained(base, data, tmp_path / "out", "--json")
    found = last_object(done)
    assert found["score_after"] < 0.7 * found["score_before"] and found["measure"] == "perplexity"
    assert (found["num_examples"], found["test_examples"]) == (6, 6)
    left_out = {"too long": 1, "unanswered": 1}
    assert found["rows"]["labelled"] == {"rows": 8, "read": 6, "left_out": left_out}
    assert "texts to train on: 1 of 7 rows left out (1 too long): labelled.jsonl, line 7" in (
        done.stderr
    )
    assert LONG not in done.output


def test_what_is_left_in_the_folder_is_an_adapter_of_a_causal_model(adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["task_type"] == "CAUSAL_LM" and "auto_mapping" not in config
    card = (adapter / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card and "of the answers in each" in card
    assert "AutoPeftModelForCausalLM" in card and "client predict" not in card


def test_an_evaluation_tells_the_answers_perplexity_language_by_language(
    base: Base, data: Path, adapter: Path
) -> None:
    asked = ("--data", data, "--adapter", adapter)
    done = client("evaluate", base, *asked)
    assert "answer tokens" in done.stdout and ", exact match 0.0 %" in done.stdout
    assert "\nde " in done.stdout
    found = last_object(client("evaluate", base, *asked, "--json"))
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert [one["language"] for one in found["languages"]] == ["de", "en"]
    assert found["rows"] == {"rows": 7, "read": 6, "left_out": {"too long": 1}}
    rows = [json.loads(line) for line in (data / "test.jsonl").read_text().splitlines()][:6]
    assert found["tokens"] == sum(len(one["completion"]) + 2 for one in rows)  # with what ends it
    assert found["exact_match"] == 0.0
    alone = smidgen.evaluate(data, task=data / "task.toml", base=base.folder, engine="onnx")
    assert found["perplexity"] < alone.perplexity


@pytest.mark.slow
def test_figures_are_those_that_training_gave(base: Base, data: Path, tmp_path: Path) -> None:
    found = last_object(trained(base, data, tmp_path / "out", "--json"))
    done = last_object(
        client("evaluate", base, "--data", data, "--adapter", tmp_path / "out", "--json")
    )
    assert done["accuracy"] == found["accuracy_after"]


def test_plain_texts_are_learned_too(base: Base, tmp_path: Path) -> None:
    (tmp_path / "unlabelled.txt").write_text("rain at nine\nrain at ten\nx\nrain at noon\n" * 4)
    (tmp_path / "test.txt").write_text("rain at seven\n")
    (tmp_path / "task.toml").write_text('name = "notes"\nkind = "completion"\n')
    found = last_object(trained(base, tmp_path, tmp_path / "out", "--json"))
    assert found["score_after"] < 0.7 * found["score_before"] and found["num_examples"] == 12
    assert found["rows"]["unlabelled"]["left_out"] == {"too short": 4}


def test_what_such_a_task_has_none_of_is_refused_in_one_line(
    base: Base, data: Path, adapter: Path, tmp_path: Path
) -> None:
    said = refused(client("predict", base, "start the oven", "--adapter", adapter))
    assert "`smidgen client generate` writes texts, `smidgen client evaluate` tells loss" in said
    with pytest.raises(smidgen.WrongInput, match=r"take smidgen\.generate"):
        smidgen.predict(["a"], adapter, base=base.folder, engine="onnx")
    out = ("--out", tmp_path / "out.jsonl")
    said = refused(client("evaluate", base, "--data", data, "--adapter", adapter, *out))
    assert "answer tokens have no answer of each text to write" in said
    none = ("--base", str(base.folder), "--adapter", str(tmp_path / "none"))
    said = refused(command("client", "generate", "start the oven", *none))
    assert said.endswith("none: there is no such folder")
    said = refused(trained(base, data, tmp_path / "out", "--adapter", "lora:2+head"))
    assert "asks for answer tokens, which the base's own head answers; take lora:2" in said


def test_a_folder_of_which_nothing_can_be_asked_is_refused_and_nothing_is_written(
    base: Base, tmp_path: Path
) -> None:
    write(tmp_path / "labelled.jsonl", {"prompt": LONG, "completion": "x"})
    (tmp_path / "task.toml").write_text('name = "home"\nkind = "chat"\n')
    said = refused(trained(base, tmp_path, tmp_path / "out"))
    assert "1 of 1 row left out (1 too long)" in said and LONG not in said
    assert not (tmp_path / "out").exists()


def test_a_base_without_a_template_is_refused(data: Path, tmp_path: Path) -> None:
    bare = open_base(str(write_tiny_decoder(tmp_path / "base", template="")))
    said = refused(trained(bare, data, tmp_path / "out"))
    assert "has no chat template" in said and 'or take kind = "completion"' in said


def test_an_adapter_of_ones_own_is_made_of_what_can_be_asked(
    base: Base, data: Path, adapter: Path, tmp_path: Path
) -> None:
    known = ("--shared", adapter, "--tokens", 120, "--epochs", 1, "--json")
    done = client("personalize", base, "--data", data, "--out", tmp_path / "own", *known)
    found = last_object(done)
    assert (found["num_examples"], found["measure"]) == (6, "perplexity")

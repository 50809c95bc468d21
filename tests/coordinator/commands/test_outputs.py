"""Where `export` and `figures` write, and what is refused before any work."""

import json
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.peft_folder import read_peft_folder
from smidgen.edge_client.bases.base import Base, open_base
from tests.command_line import Done, smidgen
from tests.coordinator.test_cli import created


@pytest.fixture
def store(tmp_path: Path, tiny_base: Base) -> Path:
    created(tmp_path, tiny_base, rounds=1)
    return tmp_path / "store"


def run(command: str, store: Path, *options: str) -> Done:
    return smidgen("coordinator", command, "--store", str(store), *options)


def refused(done: Done, said: str, option: str = "out") -> None:
    assert done.exit_code == 2 and said in done.stderr, done
    started = done.stderr.startswith(f"smidgen coordinator: --{option}")
    assert done.stderr.count("\n") == 1 and started


def test_an_export_replaces_an_earlier_one_and_nothing_else(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "adapter"
    for _ in range(2):
        assert run("export", store, "--out", str(out)).exit_code == 0
    (out / "letter.txt").write_text("mine")
    refused(run("export", store, "--out", str(out)), "holds other things, such as letter.txt")
    assert (out / "letter.txt").read_text() == "mine" and read_peft_folder(out)[1]


def test_a_base_is_copied_that_lies_where_the_command_is_started(
    store: Path, tmp_path: Path, tiny_base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "adapter"
    refused(
        run("export", store, "--out", str(out), "--with-base", "copied"),
        "no base at ./base",
        "with-base",
    )
    assert not out.exists()
    monkeypatch.chdir(tiny_base.folder.parent)
    assert run("export", store, "--out", str(out), "--with-base", "copied").exit_code == 0
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(out / "base")
    assert (out / "base" / "tokenizer.json").is_file()
    assert json.loads((out / "smidgen.json").read_text())["words"]


def test_a_base_is_merged_that_is_named(store: Path, tmp_path: Path, tiny_base: Base) -> None:
    out = tmp_path / "adapter"
    asked = ("export", store, "--out", str(out), "--base", str(tiny_base.folder), "--with-base")
    assert run(*asked, "merged").exit_code == 0
    merged = open_base(str(out / "merged"))
    assert merged.shape == tiny_base.shape and (out / "merged" / "README.md").is_file()
    assert run(*asked, "copied").exit_code == 0
    assert (out / "base").is_dir() and not (out / "merged").exists()
    assert run(*asked, "both").exit_code == 2


def test_a_base_that_lies_elsewhere_is_named(store: Path, tmp_path: Path, tiny_base: Base) -> None:
    out, said = tmp_path / "adapter", "the run's base ./base is not here; name it by --base"
    done = run("export", store, "--out", str(out))
    assert done.exit_code == 0 and said in done.stderr
    assert not json.loads((out / "smidgen.json").read_text())["words"]
    done = run("export", store, "--out", str(out), "--base", str(tiny_base.folder))
    assert done.exit_code == 0 and "--base" not in done.stderr
    assert json.loads((out / "smidgen.json").read_text())["words"]
    for other, why in (("embedded", "embedded is not the run's base"), ("./no", "no base")):
        refused(run("export", store, "--out", str(out), "--base", other), why, "base")


def test_an_export_into_a_file_is_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused(run("export", store, "--out", str(tmp_path / "file")), "is a file; a folder is")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_export_before_any_training_says_so(store: Path, tmp_path: Path) -> None:
    done = run("export", store, "--out", str(tmp_path / "adapter"), "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 0 and told["round_index"] == 0 and not told["is_trained"]
    assert "this is the untrained adapter of round 0" in done.stderr


def test_figures_into_a_folder_that_is_not_there_are_refused(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "none" / "rounds.jsonl"
    refused(run("figures", store, "--out", str(out)), f"there is no folder {out.parent}")
    assert not out.parent.exists()
    refused(run("figures", store, "--out", str(tmp_path)), "is a folder; a file is expected")


def test_a_place_is_looked_at_before_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in ("export", "figures"):
        out = str(tmp_path / "file" / "below")
        refused(run(command, tmp_path / "none", "--out", out), "")


def test_nobody_serves_a_store_that_is_not_there(tmp_path: Path) -> None:
    done = smidgen("coordinator", "serve", "--store", str(tmp_path / "typo"), "--port", "0")
    assert done.exit_code == 2 and f"no store at {tmp_path / 'typo'}; make one" in done.stderr
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("command", ["create", "init"])
def test_a_store_is_made_in_nobody_s_own_folder(tmp_path: Path, command: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "labelled.csv").write_text("text,label\n")
    what = ("--task", "agnews") if command == "create" else ()
    done = run(command, mine, *what)
    said = f"--store {mine} holds other things, such as labelled.csv; give a new or an empty folder"
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in mine.iterdir()] == ["labelled.csv"]

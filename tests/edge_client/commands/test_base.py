import json
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from tests.command_line import smidgen
from tests.edge_client.commands.alone import refused

EMBEDDED = open_base("embedded")


def test_the_path_is_a_line_of_its_own() -> None:
    assert (
        smidgen("client", "base", "--path", "embedded").stdout == f"{EMBEDDED.folder.resolve()}\n"
    )


def test_a_base_is_told_in_words_and_as_json() -> None:
    said = smidgen("client", "base", "embedded").stdout
    assert f"base id      {EMBEDDED.base_id}" in said and "loaded as    ./embedded" in said
    found = json.loads(smidgen("client", "base", "embedded", "--json").stdout)
    assert found["base_id"] == EMBEDDED.base_id and found["licence"] == "other"


def test_without_a_name_all_that_are_here_are_listed(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert smidgen("client", "base").stdout.splitlines()[0].split()[0] == "embedded"
    copy = tmp_path / "models--org--tiny" / "snapshots" / ("0" * 40)
    copy.mkdir(parents=True)
    for file in tiny_base.folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (tmp_path / "models--org--empty" / "snapshots" / ("1" * 40)).mkdir(parents=True)
    found = json.loads(smidgen("client", "base", "--json").stdout)["bases"]
    assert [base["name"] for base in found] == ["embedded", "org/tiny"]


def test_a_pack_is_no_folder_for_peft(tiny_base: Base, tmp_path: Path) -> None:
    pack_model(str(tiny_base.folder), 8, tmp_path / "pack")
    said = refused(smidgen("client", "base", "--path", str(tmp_path / "pack")))
    assert "is a pack, which transformers does not read" in said
    assert "kind         pack" in smidgen("client", "base", str(tmp_path / "pack")).stdout


@pytest.mark.parametrize("words", [("--path",), ("./none",)])
def test_wrong_use_is_one_line(words: tuple[str, ...]) -> None:
    assert refused(smidgen("client", "base", *words))

"""An export with its base beside it is loaded from anywhere, by PEFT's own auto classes."""

import json
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.peft_folder import read_peft_folder
from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from tests.parity.snippet.scenes import ONE, Scene, export
from tests.tiny import write_tiny_base

peft = pytest.importorskip("peft")
pytest.importorskip("torch")
CLASSES = {
    "lora:4": peft.AutoPeftModel,
    "bias": peft.AutoPeftModel,
    "lora:4+head": peft.AutoPeftModelForSequenceClassification,
}


@pytest.mark.parametrize("name", CLASSES)
def test_peft_finds_the_base_from_any_folder(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    export(Scene(name, ONE), tiny_base, tmp_path / "adapter")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    more = {"num_labels": 3} if "head" in name else {}
    model = CLASSES[name].from_pretrained(str(tmp_path / "adapter"), **more)
    assert model.config.vocab_size == tiny_base.shape.vocabulary
    assert open_base(str(tmp_path / "adapter" / "base")).base_id == tiny_base.base_id


def test_an_export_without_its_base_replaces_one_with_it(tiny_base: Base, tmp_path: Path) -> None:
    out = tmp_path / "adapter"
    export(Scene("lora:4", ONE), tiny_base, out)
    assert (out / "base" / "model.safetensors").is_file()
    export(Scene("lora:4", ONE), tiny_base, out)
    export(Scene("lora:4", ONE, knows_base=False), tiny_base, out)
    assert (out / "base").is_symlink()  # which the scene puts in its place


def test_it_is_filled_file_by_file_where_no_rename_may_replace_it(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the shell's own folder
    for _ in range(2):
        export(Scene("lora:4", ONE), tiny_base, tmp_path)
        assert sorted(path.name for path in (tmp_path / "base").iterdir())[0] == "config.json"
    export(Scene("bias", ONE), tiny_base, tmp_path)
    assert read_peft_folder(tmp_path, tiny_base)[0].adapter == "bias"


def test_a_pack_is_not_copied_since_peft_does_not_load_it(tmp_path: Path) -> None:
    pack_model(str(write_tiny_base(tmp_path / "base", hidden=64)), 8, tmp_path / "pack")
    with pytest.raises(AdapterError, match=r"--with-base: base .* is a pack"):
        export(Scene("lora:4", ONE), open_base(str(tmp_path / "pack")), tmp_path / "out")


def test_an_export_of_an_older_form_is_refused_in_one_line(tiny_base: Base, tmp_path: Path) -> None:
    export(Scene("lora:4", ONE), tiny_base, tmp_path / "out")
    path = tmp_path / "out" / "smidgen.json"
    known = json.loads(path.read_text())
    for form in (None, 1, 3, "x"):
        changed = {name: value for name, value in known.items() if name != "format"}
        path.write_text(json.dumps(changed | ({} if form is None else {"format": form})))
        said = f"is an adapter of format {form or 1}, this smidgen reads 2: its prompts had other"
        with pytest.raises(AdapterError, match=said) as caught:
            read_peft_folder(tmp_path / "out")
        assert len(str(caught.value).splitlines()) == 1

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import smidgen
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.tokenizer import disagreements
from tests.command_line import smidgen as command


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.fixture
def base(model: Path) -> Base:
    return open_base(str(model))


def found(base: Base) -> str:
    (line,) = disagreements(base.folder, base.shape)
    assert "\n" not in line
    return line


def test_a_base_saved_by_transformers_has_nothing_to_say(base: Base, real_base: Base) -> None:
    assert disagreements(base.folder, base.shape) == []
    assert disagreements(real_base.folder, real_base.shape) == []


def test_no_special_tokens_around_a_text_are_one_line(base: Base) -> None:
    edit(base.folder / "tokenizer.json", lambda document: document.update(post_processor=None))
    assert found(base).startswith("tokenizer.json has no post-processor, so no [CLS] and [SEP]")


def test_special_tokens_other_than_the_configured_ones_are_one_line(base: Base) -> None:
    edit(base.folder / "tokenizer_config.json", lambda config: config.update(cls_token="[UNK]"))
    assert "puts [CLS] and [SEP] around a text" in found(base)


@pytest.mark.parametrize("name", ["BertTokenizerFast", "ElectraTokenizerFast", "MPNetTokenizer"])
def test_a_class_that_lowers_otherwise_is_one_line(base: Base, name: str) -> None:
    def keep(config: dict[str, Any]) -> None:
        config.update(tokenizer_class=name, do_lower_case=False)

    edit(base.folder / "tokenizer_config.json", keep)
    assert f"tokenizer.json lowers upper case, but {name}" in found(base)


def test_more_words_than_rows_are_one_line(base: Base) -> None:
    small = replace(base, shape=replace(base.shape, vocabulary=base.shape.vocabulary - 1))
    assert f"the word table {small.shape.vocabulary} rows; resize" in found(small)


def test_another_pad_id_is_one_line_where_positions_are_counted_from_it(base: Base) -> None:
    shape = replace(base.shape, architecture="roberta", pad_id=1)
    assert "config.json's pad_token_id is 1, and positions" in found(replace(base, shape=shape))
    assert disagreements(base.folder, replace(base.shape, pad_id=1)) == []


@pytest.mark.slow
def test_pack_and_doctor_say_it(base: Base, tmp_path: Path) -> None:
    edit(base.folder / "tokenizer.json", lambda document: document.update(post_processor=None))
    said = command("pack", str(base.folder), "--bits", "8", "--out", str(tmp_path / "p"))
    lines = [line for line in said.stderr.splitlines() if line.startswith("warning: tokenizer")]
    assert said.exit_code == 0 and len(lines) == 1
    assert smidgen.pack(base.folder, 8, tmp_path / "p").warnings == (lines[0][9:],)
    findings = smidgen.doctor(bases=[base.folder], engine="onnx").findings
    assert [one.state for one in findings if one.check == "tokenizer"] == ["warning"]

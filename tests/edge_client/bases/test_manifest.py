import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smidgen.edge_client.bases.architectures import ArchitectureError
from smidgen.edge_client.bases.base import Base, BaseError, open_base
from smidgen.edge_client.bases.layout import PackError
from smidgen.edge_client.bases.manifest import (
    QUANTIZATIONS,
    Manifest,
    partial_folder,
    read_manifest,
    read_pack,
)
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.wire.fleet import PackFile

GOLDEN = Manifest(
    name="a/model",
    licence="mit",
    architecture="bert",
    config={"model_type": "bert", "hidden_size": 64, "layer_norm_eps": 1e-12},
    quantization=QUANTIZATIONS[4],
    random_seed=None,
    layers=((100, 200), (200, 300)),
    files={"weights.safetensors": PackFile(300, "0" * 64)},
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_base: Base) -> Path:
    """A whole pack, not to be changed."""
    return pack_model(str(tiny_base.folder), 8, tmp_path_factory.mktemp("pack") / "whole").folder


@pytest.fixture
def pack(whole: Path, tmp_path: Path) -> Path:
    """A copy that may be broken."""
    return Path(shutil.copytree(whole, tmp_path / "pack"))


def change_manifest(pack: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((pack / "manifest.json").read_text())
    change(document)
    (pack / "manifest.json").write_text(json.dumps(document))


def test_the_identity_of_a_manifest_is_this_one() -> None:
    # A change here gives every pack in the world another identity: it needs a new schema number.
    assert GOLDEN.pack_id == "8598a0bee5d30813ca09477f7920e5329698875da461da77a2ebc88378b218a2"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "b"},
        {"licence": None},
        {"random_seed": 0},
        {"quantization": QUANTIZATIONS[8]},
        {"layers": ((100, 200),)},
        {"files": {"weights.safetensors": PackFile(300, "1" * 64)}},
    ],
)
def test_every_field_is_part_of_the_identity(change: dict[str, Any]) -> None:
    assert replace(GOLDEN, **change).pack_id != GOLDEN.pack_id


def test_a_whole_pack_is_a_base(whole: Path, tiny_base: Base) -> None:
    base = open_base(str(whole))
    assert base.manifest == read_pack(whole)
    assert base.base_id == read_pack(whole).pack_id != tiny_base.base_id
    assert (base.bits, base.shape) == (8, tiny_base.shape)
    assert base.weights == whole / "weights.safetensors"
    with base.open_weights() as weights:
        assert weights.stored("bert.embeddings.word_embeddings.weight").bits == 8


def test_an_exported_adapter_names_the_hubs_model_where_there_is_one(pack: Path) -> None:
    assert open_base(str(pack)).peft_name == f"./{read_pack(pack).name}"
    change_manifest(pack, lambda document: document.update(name="FacebookAI/roberta-base"))
    assert open_base(str(pack)).peft_name == "FacebookAI/roberta-base"


def test_the_form_of_the_manifest_is_no_part_of_the_identity(whole: Path, pack: Path) -> None:
    change_manifest(pack, lambda document: document)  # written without indents
    assert (pack / "manifest.json").read_bytes() != (whole / "manifest.json").read_bytes()
    assert read_pack(pack).pack_id == read_pack(whole).pack_id


def test_files_that_are_not_of_the_pack_are_left_alone(whole: Path, pack: Path) -> None:
    (pack / "README.md").write_text("mine")
    assert read_pack(pack) == read_pack(whole)


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer.json", "config.json"])
def test_a_file_cut_short_is_named(pack: Path, name: str) -> None:
    (pack / name).write_bytes((pack / name).read_bytes()[:-1])
    with pytest.raises(PackError, match=rf"{name} has \d+ bytes, its manifest says \d+; copy it"):
        read_pack(pack)


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_an_altered_file_is_named(pack: Path, name: str) -> None:
    body = bytearray((pack / name).read_bytes())
    body[-2] ^= 1
    (pack / name).write_bytes(body)
    with pytest.raises(PackError, match=f"{name} has another SHA-256 than its manifest; copy it"):
        read_pack(pack)


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer.json", "config.json"])
def test_a_lost_file_is_named(pack: Path, name: str) -> None:
    (pack / name).unlink()
    with pytest.raises(PackError, match=f"lacks {name}, which its manifest lists"):
        read_pack(pack)


@pytest.mark.parametrize(
    ("schema", "what_to_do"),
    [(1, "pack the model again"), (3, "update smidgen, or pack the model")],
)
def test_another_schema_is_refused_with_what_to_do(
    pack: Path, schema: int, what_to_do: str
) -> None:
    change_manifest(pack, lambda document: document.update(schema=schema))
    with pytest.raises(
        PackError, match=f"schema {schema}, this smidgen reads 2, .* otherwise; {what_to_do}"
    ):
        read_pack(pack)


def test_what_an_interrupted_packing_left_is_no_base(pack: Path) -> None:
    partial = pack.rename(partial_folder(pack, 123))
    with pytest.raises(BaseError, match=r"pack\.partial-123 is a half-written pack"):
        open_base(str(partial))
    (partial / "manifest.json").unlink()
    moved = partial.rename(pack)  # even under another name: the manifest is written last
    with pytest.raises(BaseError, match="is a half-written pack, left by an interrupted"):
        open_base(str(moved))


def test_opening_a_pack_changes_nothing(pack: Path) -> None:
    before = {name: (pack / name).stat().st_mtime_ns for name in os.listdir(pack)}  # noqa: PTH208
    base = open_base(str(pack))
    with base.open_weights() as weights:
        weights.stored("bert.encoder.layer.0.output.dense.weight").data[:] = 0
    assert {name: (pack / name).stat().st_mtime_ns for name in before} == before
    assert open_base(str(pack)).base_id == base.base_id


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_byte_can_change_under_the_same_identity(
    whole: Path, tmp_path: Path, data: st.DataObject
) -> None:
    known = read_pack(whole)
    name = data.draw(st.sampled_from(["manifest.json", *sorted(known.files)]))
    body = bytearray((whole / name).read_bytes())
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] ^= data.draw(st.integers(1, 255))
    pack = tmp_path / "damaged"
    shutil.rmtree(pack, ignore_errors=True)
    shutil.copytree(whole, pack)
    (pack / name).write_bytes(body)
    try:
        found = read_pack(pack)
    except (PackError, ArchitectureError):
        return
    assert name == "manifest.json"
    assert found == known or found.pack_id != known.pack_id


def test_a_manifest_alone_can_be_read(whole: Path) -> None:
    assert read_manifest(whole / "manifest.json").bits == 8

import json
import shutil
from pathlib import Path

import pytest

from edge_client.bases.base import EMBEDDED, Base, BaseError, open_base


@pytest.fixture
def folder(tiny_base: Base, tmp_path: Path) -> Path:
    """A copy of the tiny base that may be broken."""
    return Path(shutil.copytree(tiny_base.folder, tmp_path / "base"))


def test_the_embedded_base_has_its_sizes() -> None:
    base = open_base(EMBEDDED)
    assert (base.architecture, base.hidden, base.layers, base.bits) == ("bert", 192, 4, 16)
    assert base.shape.vocabulary == 20000 and base.manifest is None
    with base.open_weights() as weights:
        assert weights.shape("bert.embeddings.word_embeddings.weight") == (20000, 192)


def test_the_real_bases_are_of_16_bits(real_base: Base) -> None:
    assert real_base.bits == 16 and real_base.shape.vocabulary == 30522


def test_a_base_of_float32_has_32_bits(tiny_base: Base) -> None:
    assert tiny_base.bits == 32


def test_the_identity_is_of_the_bytes_not_of_the_place(tiny_base: Base, folder: Path) -> None:
    assert open_base(str(folder)).base_id == tiny_base.base_id
    config = folder / "config.json"
    config.write_text(config.read_text() + " ")
    assert open_base(str(folder)).base_id != tiny_base.base_id


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(BaseError, match=f"lacks {missing}; a pack made by `smidgen pack`, or"):
        open_base(str(folder))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt_neox"}, "'gpt_neox' is not known here; expected one of albert, bert"),
        ({"model_type": None}, "is not a Hugging Face configuration"),
        ({"hidden_size": None}, "lacks a usable"),
        ({"num_attention_heads": 0}, "sizes that no model has"),
        ({"num_hidden_layers": 10**12}, "sizes that no model has"),
        ({"vocab_size": "many"}, "sizes that no model has"),
        ({"hidden_size": -16}, "sizes that no model has"),
        ({"position_embedding_type": "relative_key"}, "which is not supported here"),
    ],
)
def test_a_configuration_that_cannot_be_is_one_line(
    folder: Path, change: dict[str, object], said: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(BaseError, match=said) as caught:
        open_base(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_configuration_that_is_no_json_object_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(BaseError, match=r"config\.json is n"):
        open_base(str(folder))


def test_truncated_weights_are_told(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(BaseError, match="copy the file again"):
        open_base(str(folder))


def test_nothing_at_a_path_is_told() -> None:
    with pytest.raises(BaseError, match=r"no base at \./nowhere; give a folder, a hub name or"):
        open_base("./nowhere")

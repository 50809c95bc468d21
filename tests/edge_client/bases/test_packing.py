import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED, Base, BaseError, open_base
from smidgen.edge_client.bases.layout import PackError
from smidgen.edge_client.bases.packing import pack_model, pack_random
from smidgen.edge_client.bases.quantization import (
    Stored,
    dequantize,
    from_bfloat16,
    quantize_int8,
    quantize_nf4,
    to_bfloat16,
)
from smidgen.edge_client.bases.weights import Weights

LINEAR = "bert.encoder.layer.1.output.dense.weight"
WORDS = "bert.embeddings.word_embeddings.weight"


def change(model: Path, **tensors: np.ndarray | None) -> None:
    """Replace or drop tensors of a model, dots written as two underscores."""
    held = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        held.pop(name.replace("__", "."), None)
        if tensor is not None:
            held[name.replace("__", ".")] = tensor
    save_file(held, model / "model.safetensors")


def as_packed(weight: np.ndarray, bits: int) -> np.ndarray:
    """What a matrix must read as, quantized in one piece."""
    if bits == 16:
        return from_bfloat16(to_bfloat16(weight))
    data, scale = (quantize_nf4 if bits == 4 else quantize_int8)(weight)
    kind = "nf4" if bits == 4 else "int8"
    return dequantize(Stored(bits, kind, (weight.shape[0], weight.shape[1]), data, scale))


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_every_tensor_is_the_checkpoints_own_quantized(tmp_path: Path, bits: int) -> None:
    packed = pack_model(EMBEDDED, bits, tmp_path / "p")
    source = load_file(open_base(EMBEDDED).weights)
    base = open_base(str(tmp_path / "p"))
    assert (base.base_id, base.bits) == (packed.manifest.pack_id, bits)
    with base.open_weights() as weights:
        assert set(weights.names) == set(source)
        assert packed.parameters == sum(tensor.size for tensor in source.values())
        for name in weights.names:
            wide = source[name].astype(np.float32)
            matrix = wide.ndim == 2 and "position" not in name and "token_type" not in name
            if matrix:
                assert weights.stored(name).bits == bits
                found, wide = weights.rows(name, range(len(wide))), as_packed(wide, bits)
            else:
                found = weights.vector(name)
            assert (found == wide).all(), name


@pytest.mark.parametrize(("bits", "error"), [(4, 0.1), (8, 0.02), (16, 0.003)])
def test_real_checkpoints_stay_what_they_are(
    real_base: Base, tmp_path: Path, bits: int, error: float
) -> None:
    manifest = pack_model(str(real_base.folder), bits, tmp_path / "p").manifest
    assert manifest.name == real_base.folder.name
    packed = open_base(str(tmp_path / "p"))
    assert packed.shape == real_base.shape and len(manifest.layers) == real_base.layers
    with packed.open_weights() as ours, real_base.open_weights() as theirs:
        assert set(ours.names) == set(theirs.names)
        for name in (WORDS, LINEAR):
            rows = np.arange(ours.shape(name)[0])
            wide = theirs.rows(name, rows)
            moved = np.linalg.norm(ours.rows(name, rows) - wide) / np.linalg.norm(wide)
            assert moved < error  # relative, over the whole matrix


@pytest.mark.parametrize("bits", [4, 8])
def test_the_safetensors_library_reads_the_same(tmp_path: Path, bits: int) -> None:
    pack_model(EMBEDDED, bits, tmp_path / "p")
    path = tmp_path / "p" / "weights.safetensors"
    with safe_open(path, "numpy") as theirs, Weights(path) as ours:
        for name in ours.names:
            tensor = theirs.get_tensor(name)
            if tensor.dtype == np.float32:
                assert (ours.vector(name) == tensor).all()
                continue
            stored = ours.stored(name)
            assert (stored.data == tensor).all()
            assert stored.scale is not None
            assert (stored.scale == theirs.get_tensor(name + ".scale")).all()


def test_a_layers_tensors_lie_where_the_manifest_says(tmp_path: Path) -> None:
    manifest = pack_model(EMBEDDED, 4, tmp_path / "p").manifest
    body = (tmp_path / "p" / "weights.safetensors").read_bytes()
    header_bytes = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(body[8:header_bytes])
    assert len(manifest.layers) == 4
    for layer, (first, end) in enumerate(manifest.layers):
        prefix = f"bert.encoder.layer.{layer}."
        spans = [v["data_offsets"] for name, v in header.items() if name.startswith(prefix)]
        assert len(spans) == 16 + 6  # six linears, their biases and scales, two norms
        assert min(s[0] for s in spans) + header_bytes == first
        assert max(s[1] for s in spans) + header_bytes == end
        assert sum(s[1] - s[0] for s in spans) == end - first


def test_equal_input_gives_equal_bytes_wherever_it_lies(model: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    copy = Path(shutil.copytree(model, tmp_path / "elsewhere" / "model"))
    one = pack_model(str(model), 8, tmp_path / "one")
    two = pack_model(f"{copy}/", 8, tmp_path / "two")
    assert one.manifest.pack_id == two.manifest.pack_id
    for name in os.listdir(one.folder):  # noqa: PTH208
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes()


def test_the_licence_and_the_seed_are_part_of_the_identity(model: Path, tmp_path: Path) -> None:
    plain = pack_model(str(model), 8, tmp_path / "1").manifest
    licensed = pack_model(str(model), 8, tmp_path / "2", licence="mit").manifest
    assert (plain.licence, licensed.licence) == (None, "mit")
    ids = {pack_random("albert-base", 4, tmp_path / f"r{s}", s).manifest.pack_id for s in (0, 1)}
    assert len({plain.pack_id, licensed.pack_id} | ids) == 4


def test_a_random_pack_is_the_same_every_time(tmp_path: Path) -> None:
    one = pack_random("albert-base", 8, tmp_path / "1", seed=3)
    two = pack_random("albert-base", 8, tmp_path / "2", seed=3)
    assert one.manifest == two.manifest and one.manifest.random_seed == 3
    base = open_base(str(one.folder))
    assert (base.shape.layers, base.shape.stored_layers, base.shape.embedding) == (12, 1, 128)


def test_the_checkpoint_in_every_form_gives_the_same_pack(model: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    expected = pack_model(str(model), 8, tmp_path / "whole").manifest
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma"): t for n, t in tensors.items()}
    pickled = {n: torch.from_numpy(t) for n, t in old.items()}
    torch.save(pickled, model / "pytorch_model.bin")
    assert pack_model(str(model), 8, tmp_path / "pickled").manifest == expected
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:9], "model-2.safetensors": names[9:]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, model / shard)
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    index = {"metadata": {}, "weight_map": weight_map}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert pack_model(str(model), 8, tmp_path / "sharded").manifest == expected


def test_the_other_name_of_the_decoders_bias_is_known(model: Path, tmp_path: Path) -> None:
    bias = load_file(model / "model.safetensors")["cls.predictions.bias"] + np.float32(1)
    change(model, cls__predictions__bias=None, cls__predictions__decoder__bias=bias)
    pack_model(str(model), 8, tmp_path / "p")
    with open_base(str(tmp_path / "p")).open_weights() as weights:
        assert (weights.vector("cls.predictions.bias") == 1).all()


def test_an_adapter_starts_alike_from_the_model_and_from_its_pack(
    model: Path, tmp_path: Path
) -> None:
    base = open_base(str(model))
    pack_model(str(model), 16, tmp_path / "p")
    packed = open_base(str(tmp_path / "p"))
    for adapter in ("lora:4@q,k,v,o,up,down", "head"):
        spec = parse_adapter(adapter)
        first, second = (initial_adapter(spec, b, 3, seed=1) for b in (base, packed))
        assert first.keys() == second.keys()
        assert all((first[name] == second[name]).all() for name in first)
    spec = parse_adapter("prompt:3")
    first, second = (initial_adapter(spec, b, 3, 1, [7, 9]) for b in (base, packed))
    rounded = as_packed(first["prompt_embeddings"], 16)
    assert (second["prompt_embeddings"] == rounded).all()


def test_the_very_same_pack_may_be_there(model: Path, tmp_path: Path) -> None:
    first = pack_model(str(model), 8, tmp_path / "p")
    again = pack_model(str(model), 8, tmp_path / "p")
    assert first.is_new and not again.is_new and first.manifest == again.manifest
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "p"]


def test_another_pack_in_its_place_is_never_touched(model: Path, tmp_path: Path) -> None:
    before = pack_model(str(model), 8, tmp_path / "p").manifest
    with pytest.raises(PackError, match=rf"another pack \(model, 8 bits, {before.pack_id[:12]}\)"):
        pack_model(str(model), 16, tmp_path / "p")
    change(model, cls__predictions__bias=None)  # same configuration, other weights
    names = load_file(tmp_path / "model" / "model.safetensors")
    change(model, cls__predictions__bias=np.ones(len(names[WORDS]), np.float32))
    with pytest.raises(PackError, match="choose another folder or delete it"):
        pack_model(str(model), 8, tmp_path / "p")
    assert open_base(str(tmp_path / "p")).base_id == before.pack_id
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "p"]


@pytest.mark.parametrize("kind", ["file", "folder", "broken"])
def test_what_is_no_pack_is_never_replaced(model: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "p"
    if kind == "file":
        out.write_text("mine")
    elif kind == "folder":
        out.mkdir()
    else:
        pack_model(str(model), 8, out)
        (out / "tokenizer.json").write_text("{}")
    said = "is a broken pack, delete it first" if kind == "broken" else "exists and is not a pack"
    with pytest.raises(PackError, match=said):
        pack_model(str(model), 8, out)
    assert out.exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [LINEAR, WORDS, "cls.predictions.bias"])
def test_a_weight_that_is_not_finite_is_named(
    model: Path, tmp_path: Path, name: str, value: float
) -> None:
    tensor = load_file(model / "model.safetensors")[name]
    tensor.flat[-1] = value
    change(model, **{name.replace(".", "__"): tensor})
    with pytest.raises(PackError, match=f"{name} holds NaN or infinity"):
        pack_model(str(model), 8, tmp_path / "p")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_a_missing_tensor_is_named(model: Path, tmp_path: Path) -> None:
    change(model, **{LINEAR.replace(".", "__"): None})
    with pytest.raises(PackError, match=f"lacks {LINEAR}; a checkpoint with its language-model"):
        pack_model(str(model), 8, tmp_path / "p")


def test_a_checkpoint_without_its_prefix_gives_the_same_pack(model: Path, tmp_path: Path) -> None:
    expected = pack_model(str(model), 8, tmp_path / "p").manifest
    held = load_file(model / "model.safetensors")
    bare = {name.removeprefix("bert."): tensor for name, tensor in held.items()}
    save_file(bare, model / "model.safetensors")
    assert pack_model(str(model), 8, tmp_path / "bare").manifest == expected
    assert WORDS in open_base(str(model)).open_weights()


def test_a_checkpoint_of_the_encoder_alone_gives_a_pack_without_a_head(
    model: Path, tmp_path: Path
) -> None:
    whole = pack_model(str(model), 8, tmp_path / "whole").folder
    held = load_file(model / "model.safetensors")
    bare = {n.removeprefix("bert."): t for n, t in held.items() if n.startswith("bert.")}
    save_file(bare, model / "model.safetensors")
    pack_model(str(model), 8, tmp_path / "p")
    base, expected = open_base(str(tmp_path / "p")), open_base(str(whole)).open_weights()
    found = base.open_weights()
    assert set(expected.names) - set(found.names) == {n for n in expected.names if "cls." in n}
    assert not base.has_head and all("cls." not in name for name in found.names)


def test_a_head_that_lacks_a_part_is_refused(model: Path, tmp_path: Path) -> None:
    held = load_file(model / "model.safetensors")
    save_file({n: t for n, t in held.items() if "transform" not in n}, model / "model.safetensors")
    with pytest.raises(PackError, match=r"lacks cls\.predictions.*with its language-model head"):
        pack_model(str(model), 8, tmp_path / "p")


def test_an_untied_head_without_its_matrix_is_named(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text()) | {"tie_word_embeddings": False}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(PackError, match=r"lacks cls.predictions.decoder.weight, though its config"):
        pack_model(str(model), 8, tmp_path / "p")


def test_doubles_are_packed_and_named_where_they_are_opened(model: Path, tmp_path: Path) -> None:
    expected = pack_model(str(model), 8, tmp_path / "p").manifest
    held = load_file(model / "model.safetensors")
    doubles = {name: tensor.astype(np.float64) for name, tensor in held.items()}
    save_file(doubles, model / "model.safetensors")
    assert pack_model(str(model), 8, tmp_path / "q").manifest == expected
    with pytest.raises(BaseError, match=r"is F64.*`smidgen pack` reads it"):
        open_base(str(model))


def test_a_tensor_of_another_shape_is_named(model: Path, tmp_path: Path) -> None:
    change(model, **{LINEAR.replace(".", "__"): np.ones((16, 31), np.float32)})
    with pytest.raises(PackError, match=rf"{LINEAR} has shape \(16, 31\), its config.json says"):
        pack_model(str(model), 8, tmp_path / "p")


def test_four_bits_of_narrow_columns_say_to_use_eight(model: Path, tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"word_embeddings\.weight has 16; use --bits 8"):
        pack_model(str(model), 4, tmp_path / "p")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tokenizer.json", "lacks tokenizer.json; save its fast tokenizer"),
        ("model.safetensors", "has no weights"),
        ("config.json", "cannot read .*config.json"),
    ],
)
def test_a_model_that_is_not_whole_says_what_is_missing(
    model: Path, tmp_path: Path, name: str, said: str
) -> None:
    (model / name).unlink()
    with pytest.raises(PackError, match=said):
        pack_model(str(model), 8, tmp_path / "p")


@pytest.mark.parametrize("change", [{"layer_norm_eps": float("nan")}, {"note": "\ud800"}])
def test_a_configuration_without_canonical_form_is_refused(
    model: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    config = json.loads((model / "config.json").read_text()) | change
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(PackError, match=r"config\.json has no canonical JSON"):
        pack_model(str(model), 8, tmp_path / "p")


def test_a_pack_is_not_packed_again(model: Path, tmp_path: Path) -> None:
    pack_model(str(model), 8, tmp_path / "p")
    with pytest.raises(PackError, match="is a pack already; give the model it was made from"):
        pack_model(str(tmp_path / "p"), 4, tmp_path / "q")


def test_progress_counts_parameters_to_their_end(model: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    packed = pack_model(
        str(model), 8, tmp_path / "p", progress=lambda done, total: seen.append((done, total))
    )
    assert seen == sorted(seen) and seen[-1] == (packed.parameters, packed.parameters)

"""Packs and checkpoints made to harm: each ends in one clear line, and nothing in them is run."""

import hashlib
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smidgen.edge_client.bases.base import Base, BaseError, open_base
from smidgen.edge_client.bases.header import WeightsError, write_header
from smidgen.edge_client.bases.layout import PackError
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.bases.weights import Weights


def framed(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(first: object, end: object, shape: object = None, dtype: object = "U8") -> Any:
    sizes = [4] if shape is None else shape
    return {"dtype": dtype, "shape": sizes, "data_offsets": [first, end]}


TWICE = b'{"a":%b,"a":%b}' % ((json.dumps(tensor(0, 4)).encode(),) * 2)
# What a reader would do that believed it: read elsewhere, run out of memory, or loop.
HEADERS = {
    "nothing at all": b"",
    "a length alone, of more than the file": (1 << 62).to_bytes(8, "little"),
    "a length that is negative where it is signed": b"\xff" * 8 + b"{}",
    "a header that wants 17 MiB of JSON parsed": framed(b"[" + b"0," * (17 << 19) + b"0]"),
    "a name twice: which of them counts?": framed(TWICE, bytes(4)),
    "tensors over one another": framed({"a": tensor(0, 4), "b": tensor(2, 6)}, bytes(6)),
    "two tensors in one place": framed({"a": tensor(0, 4), "b": tensor(0, 4)}, bytes(4)),
    "a tensor before the data": framed({"a": tensor(-4, 0)}, bytes(4)),
    "a tensor behind the file": framed({"a": tensor(0, 4)}, bytes(2)),
    "bytes that belong to nobody": framed({"a": tensor(0, 4)}, bytes(9)),
    "a hole": framed({"a": tensor(0, 4), "b": tensor(5, 9)}, bytes(9)),
    "an end before its start": framed({"a": tensor(4, 0)}, bytes(4)),
    "two negative sizes whose product fits": framed({"a": tensor(0, 6, [-2, -3])}, bytes(6)),
    "sizes that overflow to four": framed({"a": tensor(0, 4, [2**32, 2**32, 4])}, bytes(4)),
    "a size beyond every integer": framed({"a": tensor(0, 4, [2**64])}, bytes(4)),
    "an offset of ten thousand digits": framed(b'{"a":%b}' % (b"9" * 10_000)),
    "truth for a number": framed({"a": tensor(False, True, [True])}, bytes(1)),
    "a fraction of a byte": framed({"a": tensor(0, 4.0)}, bytes(4)),
    "three offsets": framed({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 2, 4]}}),
    "text for sizes": framed({"a": tensor(0, 4, "4")}, bytes(4)),
    "a type that no reader knows": framed({"a": tensor(0, 4, None, "Q4_K")}, bytes(4)),
    "a list for a type": framed({"a": tensor(0, 4, None, ["U8"])}, bytes(4)),
    "a list for a header": framed([tensor(0, 4)], bytes(4)),
    "a number for a tensor": framed({"a": 4}, bytes(4)),
    "brackets without end": framed(b"[" * 200_000),
    "no UTF-8": framed(json.dumps({"a": tensor(0, 4)}).encode("utf-16"), bytes(4)),
    "gamma beside weight": framed({"a.gamma": tensor(0, 4), "a.weight": tensor(4, 8)}, bytes(8)),
}


@pytest.mark.parametrize("why", HEADERS)
def test_a_hostile_header_is_one_line(tiny_base: Base, tmp_path: Path, why: str) -> None:
    folder = Path(shutil.copytree(tiny_base.folder, tmp_path / "base"))
    (folder / "model.safetensors").write_bytes(HEADERS[why])
    start = time.process_time()
    with pytest.raises(WeightsError) as weights_said:
        Weights(folder / "model.safetensors")
    with pytest.raises(BaseError, match=r"model\.safetensors") as base_said:
        open_base(str(folder))
    with pytest.raises((PackError, WeightsError)):
        pack_model(str(folder), 8, tmp_path / "p")
    assert time.process_time() - start < 5 and not (tmp_path / "p").exists()
    assert all("\n" not in str(said.value) for said in (weights_said, base_said))
    assert len(str(base_said.value)) < 1000


def test_scales_that_do_not_fit_are_refused_when_they_are_used(tmp_path: Path) -> None:
    header, _ = write_header({"x.scale": ("F32", (1, 1)), "x": ("I8", (2, 4))})
    (tmp_path / "w").write_bytes(header + bytes(12))
    with pytest.raises(WeightsError, match="scales of x are"):
        Weights(tmp_path / "w").rows("x", [1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_base: Base) -> Path:
    return pack_model(str(tiny_base.folder), 8, tmp_path_factory.mktemp("pack") / "whole").folder


@pytest.fixture
def pack(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "pack"))


def put(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


FACTS = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
# A manifest is the attacker's own; its hashes are as good as he likes.
MANIFESTS = {
    "a file above the folder": put("files", "../secret", value=FACTS),
    "a file anywhere": put("files", "/etc/hostname", value=FACTS),
    "itself": put("files", "manifest.json", value=FACTS),
    "the folder itself": put("files", ".", value=FACTS),
    "no weights": lambda document: document["files"].pop("weights.safetensors"),
    "a tokenizer setting it does not list": lambda d: d["files"].pop("tokenizer_config.json"),
    "a size that is none": put("files", "weights.safetensors", "bytes", value=-1),
    "a size as text": put("files", "weights.safetensors", "bytes", value="1"),
    "a hash that is none": put("files", "weights.safetensors", "sha256", value="*"),
    "a million million layers": put("config", "num_hidden_layers", value=10**12),
    "no head at all": put("config", "num_attention_heads", value=0),
    "a word table of no memory": put("config", "vocab_size", value=2**60),
    "another architecture than its configuration": put("architecture", value="roberta"),
    "an architecture that is not known": put("config", "model_type", value="gpt_neox"),
    "two bits": put("quantization", value={"bits": 2, "scheme": "nf2"}),
    "bits that its scheme has not": put("quantization", "bits", value=4),
    "bits of other tensors": put("quantization", value={"bits": 16, "scheme": "bfloat16"}),
    "layers elsewhere": put("layers", 0, value=[0, 10**15]),
    "layers too few": lambda document: document["layers"].pop(),
    "a field nobody knows": put("run", value="rm -rf /"),
    "no schema": lambda document: document.pop("schema"),
    "schema zero": put("schema", value=0),
    "a schema as truth": put("schema", value=True),
    "a schema of tomorrow": put("schema", value=10**30),
    "text that is not Unicode": put("name", value="\ud800"),
    "NaN": put("config", "layer_norm_eps", value=float("nan")),
    "a mountain": put("name", value="x" * (5 << 20)),
}


@pytest.mark.parametrize("why", MANIFESTS)
def test_a_hostile_manifest_is_one_line(pack: Path, why: str) -> None:
    document = json.loads((pack / "manifest.json").read_text())
    MANIFESTS[why](document)
    (pack / "manifest.json").write_text(json.dumps(document))
    start = time.process_time()
    with pytest.raises(BaseError) as said:
        open_base(str(pack))
    assert time.process_time() - start < 5
    assert "\n" not in str(said.value) and len(str(said.value)) < 1000


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "{" * 100_000, "[" * 100_000, "\xff"])
def test_a_manifest_that_is_none_is_one_line(pack: Path, text: str) -> None:
    (pack / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(BaseError, match=r"manifest\.json is n"):
        open_base(str(pack))


def rehash(pack: Path, name: str) -> None:
    """Give the manifest the hash of a changed file, as an attacker would."""
    document, body = json.loads((pack / "manifest.json").read_text()), (pack / name).read_bytes()
    document["files"][name] = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    (pack / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"cls.predictions.bias"', b'"cls.predictions.bios"', "'cls.predictions.bias' is missing"),
        (b'"I8"', b'"U8"', "expected"),
        (b'"shape":[32]', b'"shape":[ 4]', "is not a tensor|does not fill"),
    ],
)
def test_a_pack_that_only_its_own_hashes_hold_together_is_refused(
    pack: Path, old: bytes, new: bytes, said: str
) -> None:
    weights = pack / "weights.safetensors"
    body = weights.read_bytes()
    assert old in body
    weights.write_bytes(body.replace(old, new.ljust(len(old)), 1))
    rehash(pack, "weights.safetensors")
    with pytest.raises(BaseError, match=said):
        open_base(str(pack))


def test_a_configuration_beside_the_manifests_own_is_refused(pack: Path) -> None:
    config = json.loads((pack / "config.json").read_text())
    (pack / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1.0}))
    rehash(pack, "config.json")
    with pytest.raises(BaseError, match="says otherwise than the manifest"):
        open_base(str(pack))


def test_a_pipe_for_weights_does_not_hang(pack: Path) -> None:
    (pack / "weights.safetensors").unlink()
    os.mkfifo(pack / "weights.safetensors")
    with pytest.raises(BaseError, match=r"lacks weights\.safetensors"):
        open_base(str(pack))


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def model(tiny_base: Base, tmp_path: Path) -> Path:
    """A model whose weights are still to be written."""
    pytest.importorskip("torch")
    folder = Path(shutil.copytree(tiny_base.folder, tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("form", ["zip", "legacy", "plain"])
def test_code_in_a_pickle_is_never_run(model: Path, tmp_path: Path, form: str) -> None:
    import torch

    marker, path = tmp_path / "ran", model / "pytorch_model.bin"
    state = {"x": torch.ones(2), "y": Payload(marker)}
    if form == "plain":
        path.write_bytes(pickle.dumps({"y": Payload(marker)}))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(PackError, match="save the model with save_pretrained") as said:
        pack_model(str(model), 8, tmp_path / "p")
    assert not marker.exists() and not (tmp_path / "p").exists()
    assert "\n" not in str(said.value)
    if form == "zip":
        assert "not a pickle of tensors alone; code in it is never run" in str(said.value)


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "nested", "list"])
def test_a_pickle_that_is_no_table_of_tensors_is_one_line(
    model: Path, tmp_path: Path, damage: str
) -> None:
    import torch

    path = model / "pytorch_model.bin"
    states: dict[str, Any] = {"nested": {"model": {"x": torch.ones(2)}}, "list": [torch.ones(2)]}
    torch.save(states.get(damage, {"x": torch.ones(2000)}), path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-500])
    elif damage in ("garbage", "empty"):
        path.write_bytes(b"\x80\x02garbage" if damage == "garbage" else b"")
    with pytest.raises(PackError, match="save the model with save_pretrained") as said:
        pack_model(str(model), 8, tmp_path / "p")
    assert "\n" not in str(said.value)

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from smidgen.edge_client.bases.checkpoints import Checkpoint, open_checkpoint
from smidgen.edge_client.bases.families import FAMILIES
from smidgen.edge_client.bases.header import WeightsError, write_header
from smidgen.edge_client.bases.layout import PackError

TABLE = np.arange(60, dtype=np.float32).reshape(20, 3)


def check_table(checkpoint: Checkpoint) -> None:
    assert checkpoint.shape("table.weight") == (20, 3)
    assert checkpoint.shape("nobody") is None
    rows = checkpoint.rows("table.weight", 5, 7)
    assert rows.dtype == np.float32 and (rows == TABLE[5:7]).all()
    assert (checkpoint.rows("norm.bias", 1, 3) == [1, 2]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_rows_of_a_safetensors_file(tmp_path: Path, dtype: type[np.floating]) -> None:
    tensors = {"table.weight": TABLE.astype(dtype), "norm.beta": np.arange(4).astype(dtype)}
    save_file(tensors, tmp_path / "model.safetensors")
    check_table(open_checkpoint(tmp_path, FAMILIES["bert"]))


def test_rows_of_bfloat16(tmp_path: Path) -> None:
    header, _ = write_header({"x": ("BF16", (2, 2))})
    body = np.array([0x3F80, 0x4000, 0x4040, 0xC080], np.uint16).tobytes()
    (tmp_path / "model.safetensors").write_bytes(header + body)
    assert open_checkpoint(tmp_path, FAMILIES["bert"]).rows("x", 1, 2).tolist() == [[3.0, -4.0]]


def test_rows_of_shards(tmp_path: Path) -> None:
    save_file({"table.weight": TABLE}, tmp_path / "model-1.safetensors")
    save_file({"norm.bias": np.arange(4.0)}, tmp_path / "model-2.safetensors")
    shards = {"table.weight": "model-1.safetensors", "norm.bias": "model-2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    check_table(open_checkpoint(tmp_path, FAMILIES["bert"]))


def test_rows_of_a_pickle_that_is_mapped_afresh(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    large = torch.arange(5000 * 1024, dtype=torch.float32).reshape(5000, 1024)
    half = torch.arange(4).to(torch.bfloat16)
    tensors = {"table.weight": torch.from_numpy(TABLE), "norm.beta": half, "large": large}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    checkpoint = open_checkpoint(tmp_path, FAMILIES["bert"])
    for _ in range(3):  # 20 MB a turn: past what is read from one map
        assert (checkpoint.rows("large", 0, 5000) == large.numpy()).all()
        check_table(checkpoint)


@pytest.mark.parametrize("missing", ["model-2.safetensors", "../model-1.safetensors"])
def test_a_shard_that_is_not_there_is_named(tmp_path: Path, missing: str) -> None:
    save_file({"table.weight": TABLE}, tmp_path / "model-1.safetensors")
    index = {"weight_map": {"table.weight": "model-1.safetensors", "x": missing}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PackError, match=f"speaks of '{missing}', which is not in the folder"):
        open_checkpoint(tmp_path, FAMILIES["bert"])


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors"):
        save_file({"table.weight": TABLE}, tmp_path / name)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"table\.weight comes twice in this checkpoint"):
        open_checkpoint(tmp_path, FAMILIES["bert"])


def test_a_tensor_of_integers_is_named(tmp_path: Path) -> None:
    save_file({"x": np.ones((2, 2), np.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(PackError, match="x is I64; F32, F16, BF16, F64 are packed"):
        open_checkpoint(tmp_path, FAMILIES["bert"]).rows("x", 0, 1)


def test_a_folder_without_weights_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"model\.safetensors.* or pytorch_model\.bin is expected"):
        open_checkpoint(tmp_path, FAMILIES["bert"])

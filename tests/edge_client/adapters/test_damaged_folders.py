"""Adapter folders that are damaged or say nonsense: one line that names the file and a remedy."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import smidgen
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, read_peft_folder, write_peft_folder
from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import encode_adapter


def write_folder(folder: Path, base: Base, task: Task, adapter: str = "lora:2") -> None:
    state = initial_adapter(parse_adapter(adapter), base, len(task.labels), seed=3)
    origin = Exported(adapter, str(base.folder), base.base_id, base.architecture, task)
    write_peft_folder(folder, origin, encode_adapter(state))


def change(folder: Path, **options: Any) -> None:
    """Change options of the configuration; None takes one out."""
    config = json.loads((folder / "adapter_config.json").read_text()) | options
    known = {name: value for name, value in config.items() if value is not None}
    (folder / "adapter_config.json").write_text(json.dumps(known))


@pytest.mark.parametrize("is_ours", [False, True])
def test_junk_for_weights_ends_predict_in_one_line(
    tiny_base: Base,
    hub_task: Task,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_ours: bool,
) -> None:
    write_folder(tmp_path, tiny_base, hub_task)
    if not is_ours:
        (tmp_path / "smidgen.json").unlink()
    (tmp_path / "adapter_model.safetensors").write_bytes(b"junk" * 99)
    line = ["client", "predict", "rain", "--base", str(tiny_base.folder), "--task", "agnews"]
    with pytest.raises(SystemExit) as ended:
        smidgen.main([*line, "--adapter", str(tmp_path)])
    said = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and len(said.splitlines()) == 1, said
    assert str(tmp_path / "adapter_model.safetensors") in said and "copy or save it again" in said


needs_flags_first = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="flags inside an expression are taken, as PEFT takes them"
)


@pytest.mark.parametrize(
    ("adapter", "options", "named"),
    [
        ("lora:2", {"r": 0}, "r is 0"),
        ("lora:2", {"r": None}, "r is missing"),
        ("lora:2", {"r": "two"}, "r is 'two'"),
        ("lora:2", {"r": 10**400}, "r is 1000"),
        ("lora:2", {"lora_alpha": None}, "lora_alpha is missing"),
        ("lora:2", {"lora_alpha": [16]}, "lora_alpha is"),
        ("lora:2", {"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ("lora:2", {"lora_alpha": 1e300}, "lora_alpha is 1e"),
        pytest.param(
            "lora:2",
            {"rank_pattern": {"(?i)query": 2}},
            "names as regular expressions",
            marks=needs_flags_first,
        ),
        ("lora:2", {"alpha_pattern": {"value": 8, "(": 2}}, "names as regular expressions"),
        ("lora:2", {"rank_pattern": {"q" * 10_001: 2}}, "names of up to 10000 characters"),
        ("prompt:4", {"num_virtual_tokens": None}, "num_virtual_tokens is missing"),
        ("prompt:4", {"num_virtual_tokens": 0}, "num_virtual_tokens is 0"),
        ("prompt:4", {"num_virtual_tokens": "four"}, "num_virtual_tokens is 'four'"),
        ("prompt:4", {"num_virtual_tokens": True}, "num_virtual_tokens is True"),
    ],
)
def test_nonsense_in_the_configuration_is_named(
    tiny_base: Base,
    hub_task: Task,
    tmp_path: Path,
    adapter: str,
    options: dict[str, Any],
    named: str,
) -> None:
    write_folder(tmp_path, tiny_base, hub_task, adapter)
    change(tmp_path, **options)
    with pytest.raises(AdapterError) as caught:
        read_peft_adapter(tmp_path, tiny_base, hub_task)
    said = str(caught.value)
    assert named in said and str(tmp_path) in said and "is expected" in said
    assert len(said.splitlines()) == 1 and len(said) < 400 + len(str(tmp_path))


def test_a_long_pattern_over_many_modules_is_read(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    write_folder(tmp_path, tiny_base, hub_task, "lora:2")
    modules = (f"bert.encoder.layer.{layer}.attention.self.query" for layer in range(2, 40))
    change(tmp_path, rank_pattern={"|".join(modules): 4})
    spec, _ = read_peft_adapter(tmp_path, tiny_base, hub_task)
    assert spec.rank == 2


def test_a_number_that_is_not_finite_among_our_weights_is_an_adapter_error(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    write_folder(tmp_path, tiny_base, hub_task)
    state = initial_adapter(parse_adapter("lora:2"), tiny_base, 6, seed=3)
    next(iter(state.values()))[0] = float("nan")
    (tmp_path / "adapter_model.safetensors").write_bytes(encode_adapter(state))
    with pytest.raises(AdapterError, match="holds NaN or infinity; copy or save it again"):
        read_peft_folder(tmp_path)

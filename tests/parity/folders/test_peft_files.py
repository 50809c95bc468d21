"""Files of weights that PEFT saves: every float that it knows is read, and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from tests.parity.test_against_peft_folders import saved_by_peft
from tests.parity.test_against_transformers import TEXTS, full_model_rows

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
safetensors = pytest.importorskip("safetensors.torch")


def saved_as(dtype: str, base: Base, folder: Path) -> Any:
    """A LoRA whose tensors are of a type; the model has them as float32 widens them."""
    config = peft.LoraConfig(r=4, target_modules=["query", "value"])
    model = saved_by_peft(base, folder, config)
    path = folder / "adapter_model.safetensors"
    tensors = {n: t.to(getattr(torch, dtype)) for n, t in safetensors.load_file(path).items()}
    safetensors.save_file(tensors, path)
    peft.set_peft_model_state_dict(model, {name: one.float() for name, one in tensors.items()})
    return model


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_every_float_is_widened_to_float32(
    tiny_base: Base, hub_task: Task, tmp_path: Path, dtype: str
) -> None:
    model = saved_as(dtype, tiny_base, tmp_path)
    spec, state = read_peft_adapter(tmp_path, tiny_base, hub_task)
    engine = open_engine("torch", tiny_base, hub_task, spec, Training())
    engine.load_adapter(state)
    theirs = full_model_rows(model, tiny_base, hub_task, 0)
    np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "bool", "float8_e4m3fn"])
def test_what_is_not_a_float_is_named(
    tiny_base: Base, hub_task: Task, tmp_path: Path, dtype: str
) -> None:
    saved_as(dtype, tiny_base, tmp_path)
    with pytest.raises(AdapterError, match=r"tensor base_model.*lora_A.weight is .*; F32, F64"):
        read_peft_adapter(tmp_path, tiny_base, hub_task)


def test_a_float64_beyond_float32_is_named(tiny_base: Base, hub_task: Task, tmp_path: Path) -> None:
    saved_as("float64", tiny_base, tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    tensors = safetensors.load_file(path)
    next(iter(tensors.values()))[0, 0] = 1e300
    safetensors.save_file(tensors, path)
    with pytest.raises(AdapterError, match="holds NaN, infinity or more than float32 does"):
        read_peft_adapter(tmp_path, tiny_base, hub_task)


def test_a_pickle_is_never_opened(tiny_base: Base, hub_task: Task, tmp_path: Path) -> None:
    saved_as("float32", tiny_base, tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    (tmp_path / "adapter_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(
        AdapterError, match=r"adapter_model\.bin is a pickle.*save it again"
    ) as said:
        read_peft_adapter(tmp_path, tiny_base, hub_task)
    assert len(str(said.value).splitlines()) == 1

"""Adapters that PEFT itself made are read here, and give what they give there."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.parity.test_against_transformers import TEXTS, full_model_rows

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

LORAS = {
    "default alpha": {"r": 4, "target_modules": ["query", "value"]},
    "alpha 32": {"r": 4, "lora_alpha": 32, "target_modules": ["query", "key", "value"]},
    "rank-stabilized": {"r": 4, "use_rslora": True, "target_modules": ["intermediate.dense"]},
    "ranks and alphas by module": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["query", "value"],
        "rank_pattern": {"layer.1.attention.self.query": 2, "value": 3},
        "alpha_pattern": {"layer.0.*value": 32},
    },
    "ranks by module, rank-stabilized": {
        "r": 4,
        "use_rslora": True,
        "target_modules": ["query", "value"],
        "rank_pattern": {"^bert.encoder.layer.0.attention.self.query": 2},
    },
    "top layer": {"r": 2, "target_modules": ["query"], "layers_to_transform": [1]},
}


def saved_by_peft(base: Base, folder: Path, config: object) -> object:
    """A PEFT model with random adapter values, saved by PEFT."""
    plain = transformers.AutoModelForMaskedLM.from_pretrained(base.folder, dtype=torch.float32)
    model = peft.get_peft_model(plain, config).eval()
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def is_refused_with(
    base: Base, task: Task, folder: Path, options: dict[str, object], said: str
) -> None:
    """A sound LoRA whose configuration says something else as well."""
    saved_by_peft(base, folder, peft.LoraConfig(r=4, target_modules=["query"]))
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | options))
    with pytest.raises(AdapterError, match=said):
        read_peft_adapter(folder, base, task)


@pytest.mark.few(3)
@pytest.mark.parametrize("options", LORAS.values(), ids=LORAS.keys())
def test_a_lora_made_by_peft_gives_the_same_here(
    real_base: Base, hub_task: Task, tmp_path: Path, options: dict[str, object]
) -> None:
    model = saved_by_peft(real_base, tmp_path, peft.LoraConfig(**options))
    spec, state = read_peft_adapter(tmp_path, real_base, hub_task)
    engine = open_engine("torch", real_base, hub_task, spec, Training())
    engine.load_adapter(state)
    theirs = full_model_rows(model, real_base, hub_task, 0)
    np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)


def test_a_prompt_made_by_peft_gives_the_same_here(
    real_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    config = peft.PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=5)
    model = saved_by_peft(real_base, tmp_path, config)
    spec, state = read_peft_adapter(tmp_path, real_base, hub_task)
    engine = open_engine("torch", real_base, hub_task, spec, Training())
    engine.load_adapter(state)
    theirs = full_model_rows(model, real_base, hub_task, 5)
    np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "name",
    [
        "bias",
        "bias/top1",
        "lora:4/top1",
        "lora:2@q,up,down/top2",
        "lora:4/0=0/1.k=2",
        "lora:4/1.v=2:32",
    ],
)
def test_trained_adapters_go_to_peft_and_come_back(
    real_base: Base, hub_task: Task, tmp_path: Path, name: str
) -> None:
    from smidgen.edge_client.adapters.peft_folder import read_peft_folder

    engine = open_engine("torch", real_base, hub_task, parse_adapter(name), Training(lr=0.01))
    train(engine, TEXTS, Training(epochs=4), seed=1)
    origin = Exported(name, str(real_base.folder), real_base.base_id, "bert", hub_task)
    write_peft_folder(tmp_path, origin, encode_adapter(engine.adapter()))
    assert encode_adapter(read_peft_folder(tmp_path)[1]) == encode_adapter(engine.adapter())
    plain = transformers.AutoModelForMaskedLM.from_pretrained(real_base.folder, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(plain, str(tmp_path)).eval()
    theirs = full_model_rows(adapted, real_base, hub_task, 0)
    np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lora:4/top1", "lora:2@q,up,down/top2", "lora:4/top1+head"])
def test_an_exported_adapter_of_top_layers_is_read_as_one(
    tiny_base: Base, hub_task: Task, tmp_path: Path, name: str
) -> None:
    state = initial_adapter(parse_adapter(name), tiny_base, 6, seed=3)
    origin = Exported(name, str(tiny_base.folder), tiny_base.base_id, "bert", hub_task)
    write_peft_folder(tmp_path, origin, encode_adapter(state))
    spec, found = read_peft_adapter(tmp_path, tiny_base, hub_task)
    # As many top layers as there are is the whole adapter, by either name.
    assert str(spec) == str(parse_adapter(name.replace("/top2", "")))
    assert encode_adapter(found) == encode_adapter(state)


def test_a_kind_of_adapter_that_is_not_known_is_named(
    real_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    saved_by_peft(
        real_base, tmp_path, peft.IA3Config(target_modules=["key"], feedforward_modules=[])
    )
    with pytest.raises(AdapterError, match="IA3 is not supported"):
        read_peft_adapter(tmp_path, real_base, hub_task)


def test_an_adapter_for_another_base_is_named(
    real_base: Base, tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    saved_by_peft(real_base, tmp_path, peft.LoraConfig(r=4, target_modules=["query", "value"]))
    with pytest.raises(AdapterError, match="wants"):
        read_peft_adapter(tmp_path, tiny_base, hub_task)


def test_a_folder_that_is_no_adapter_is_told(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    with pytest.raises(AdapterError, match=r"adapter_config\.json"):
        read_peft_adapter(tmp_path, tiny_base, hub_task)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"rank_pattern": {"query": 0}},
            "rank_pattern is .* to a whole number",
        ),
        ({"rank_pattern": {"query": 2.5}}, "rank_pattern is"),
        ({"alpha_pattern": {"query": True}}, "alpha_pattern is .* to a number"),
        ({"rank_pattern": {"(": 2}}, "names as regular expressions is expected"),
    ],
)
def test_patterns_that_make_no_sense_are_named(
    real_base: Base, hub_task: Task, tmp_path: Path, options: dict[str, object], said: str
) -> None:
    is_refused_with(real_base, hub_task, tmp_path, options, said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"init_lora_weights": "pissa"}, "init_lora_weights = pissa changes the base too"),
        ({"init_lora_weights": "olora"}, "save it as plain LoRA"),
        ({"init_lora_weights": "pissa_niter_16"}, "path_initial_model_for_weight_conversion"),
        ({"use_dora": True}, "PEFT option use_dora is not supported"),
        ({"layer_replication": [[0, 1], [0, 2]]}, "option layer_replication is not supported"),
        ({"alora_invocation_tokens": [3]}, "option alora_invocation_tokens is not supported"),
        ({"trainable_token_indices": [3]}, "option trainable_token_indices is not supported"),
        ({"target_parameters": ["a"]}, "option target_parameters is not supported"),
        ({"made_up_in_2030": {"a": 1}}, "option made_up_in_2030 is not supported"),
        ({"bias": "all"}, "option bias is not supported"),
    ],
)
def test_what_is_another_function_than_lora_s_is_refused(
    real_base: Base, hub_task: Task, tmp_path: Path, options: dict[str, object], said: str
) -> None:
    is_refused_with(real_base, hub_task, tmp_path, options, said)


@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_half_of_a_module_s_lora_is_damage(
    real_base: Base, hub_task: Task, tmp_path: Path, part: str
) -> None:
    saved_by_peft(real_base, tmp_path, peft.LoraConfig(r=4, target_modules=["query", "value"]))
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    del tensors[next(name for name in tensors if part in name)]
    save_file(tensors, path)
    with pytest.raises(AdapterError, match=rf"tensor .*{part}\.weight is missing"):
        read_peft_adapter(tmp_path, real_base, hub_task)


def test_an_alpha_that_leaves_float32_is_refused(
    real_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    config = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["query"])
    saved_by_peft(real_base, tmp_path, config)
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name] = np.full_like(tensors[name], 3e38)
    save_file(tensors, path)
    with pytest.raises(AdapterError, match=r"lora_B.weight times .* leaves float32's range"):
        read_peft_adapter(tmp_path, real_base, hub_task)

"""A device's seat: PEFT's tensors in, the same ones trained out, within its budget."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.peft_folder import peft_state
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.flower.seat import Seat, SeatRecipe, SeatSettings, saved
from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Training
from tests.tiny import write_tiny_base

TASK = """
name = "hub"
labels = ["security", "weather"]
patterns = ["{text} . this is about [MASK] ."]
"""
TEXTS = "text,label\nfront door opened,security\nstorm at nine,weather\ncamera saw you,security\n"
ADAPTERS = ("lora:2@q,v", "prompt:2", "bias", "lora:2+head")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_base(tmp_path / "base")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "task.toml").write_text(TASK)
    for name in ("labelled.csv", "test.csv"):
        (tmp_path / "texts" / name).write_text(TEXTS)
    return tmp_path


def seat(folder: Path, adapter: str) -> Seat:
    recipe = SeatRecipe(adapter, str(folder / "base"), training=Training(lr=0.01, tokens=24))
    return Seat(
        SeatSettings(str(folder / "texts"), "16G", "onnx"), recipe
    )  # a worker of tests has grown


def first(folder: Path, adapter: str) -> AdapterState:
    base, spec = open_base(str(folder / "base")), parse_adapter(adapter)
    task = read_task(folder / "texts" / "task.toml")
    return peft_state(spec, base.architecture, first_adapter(base, spec, task, "", 0, 24))


def held(name: str) -> str:
    """A name as a model of PEFT's holds it."""
    if "classifier" in name:
        return name.replace("classifier", "classifier.modules_to_save.default")
    return name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")


@pytest.mark.few(2)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_tensor_comes_back_trained_under_its_name(folder: Path, adapter: str) -> None:
    came = first(folder, adapter)
    with closing(seat(folder, adapter)) as own:
        turn = own.train(came, 1, seed=7)
        score = own.evaluate(turn.adapter)
    assert {name: one.shape for name, one in turn.adapter.items()} == {
        name: one.shape for name, one in came.items()
    }
    assert turn.num_examples == score.num_examples == 3
    assert any(np.abs(turn.adapter[name] - came[name]).max() > 1e-3 for name in came)


@pytest.mark.parametrize("rename", [lambda name: name, held], ids=["saved", "held"])
def test_names_and_types_are_those_that_came_and_change_no_number(
    folder: Path, rename: Callable[[str], str]
) -> None:
    came = first(folder, "lora:2+head")
    other = {rename(name): one.astype(np.float64) for name, one in came.items()}
    with closing(seat(folder, "lora:2+head")) as own:
        plain, renamed = own.train(came, 3, seed=7), own.train(other, 3, seed=7)
    assert set(renamed.adapter) == set(other)
    for name, tensor in plain.adapter.items():
        assert renamed.adapter[rename(name)].dtype == np.float64
        np.testing.assert_array_equal(tensor, renamed.adapter[rename(name)].astype(np.float32))


def test_a_saved_name_stays() -> None:
    names = ["base_model.model.bert.q.lora_A.weight", "base_model.model.classifier.bias"]
    for name in (*names, "prompt_embeddings"):
        assert saved(name) == name
        assert saved(held(name)) == name


def test_other_tensors_are_refused_by_name(folder: Path) -> None:
    came = first(folder, "lora:4@q,v")
    with closing(seat(folder, "lora:2@q,v")) as own, pytest.raises(AdapterError) as refused:
        own.train(came, 1, seed=0)
    assert "lora_A.weight shape (2, 16) is expected, (4, 16) came" in str(refused.value)


@pytest.mark.parametrize("adapter", ["prompt:2+head", "lora:16@q,v+generator"])
def test_what_peft_has_no_form_for_is_refused(folder: Path, adapter: str) -> None:
    with pytest.raises(AdapterError, match="PEFT has no form for it"):
        seat(folder, adapter)


@pytest.mark.parametrize("form", ["ffa", "rolora", "core", "ridge"])
def test_factors_take_no_turns_in_flower_s_rounds(folder: Path, form: str) -> None:
    with pytest.raises(AdapterError, match="only smidgen's coordinator has rounds that differ"):
        seat(folder, f"lora:2+{form}")


def test_no_labelled_texts_are_heard_of_before_anything_is_opened(folder: Path) -> None:
    (folder / "texts" / "labelled.csv").write_text("text,label\n")
    with pytest.raises(WrongInput, match="labelled"):
        seat(folder, "lora:2@q,v")

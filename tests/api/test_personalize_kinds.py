"""An adapter of one's own for tasks that tag words or ask for masked ones."""

from pathlib import Path
from typing import Any

import pytest

import smidgen
from smidgen.edge_client.adapters.peft_folder import read_origin
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.errors import WrongInput
from tests.edge_client.commands.alone import client, train
from tests.edge_client.commands.kinds.texts import last_object, masked_data, tagging_data
from tests.edge_client.engine.engines import KINDS

RANKED = ("bt-lora", "adalora", "lora", "uniform", "random")
ON_FROM = ("tuned", "interpolated")


@pytest.fixture(scope="module")
def tagging(tmp_path_factory: pytest.TempPathFactory, tiny_base: Base) -> Path:
    """Tagged words, and beside them a shared adapter."""
    folder = tmp_path_factory.mktemp("own") / "data"
    done = train(
        tiny_base, tagging_data(folder), folder.parent / "shared", "--adapter", "lora:2+head"
    )
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory, tiny_base: Base) -> Path:
    """Texts to mask, and beside them a shared adapter."""
    folder = tmp_path_factory.mktemp("own") / "data"
    (masked_data(folder) / "unlabelled.txt").write_text("rain at nine\nsnow\nstorm\na door\nmail\n")
    done = train(tiny_base, folder, folder.parent / "shared", "--adapter", "lora:2")
    assert done.exit_code == 0, done.output
    return folder


def made(data: Path, out: Path, base: Base, method: str, **more: Any) -> smidgen.PersonalAdapter:
    known: dict[str, Any] = {"base": str(base.folder), "engine": "onnx", "rank_budget": 2}
    return smidgen.personalize(data, out, method=method, epochs=2, **known, **more)


@pytest.mark.few(3)
@pytest.mark.parametrize("method", [*RANKED, "head", "tuned"])
def test_every_method_gives_a_tagger(
    tmp_path: Path, tiny_base: Base, tagging: Path, method: str
) -> None:
    shared = {"shared": tagging.parent / "shared"}
    own = made(tagging, tmp_path / "own", tiny_base, method, **shared)
    assert own.adapter.endswith("head") and (own.measure, own.test_examples) == ("f1", 3)
    assert own.score is not None and own.score_shared is not None
    assert own.is_better == (own.score > own.score_shared)
    assert sum(own.ranks.values()) == (2 * len(own.ranks) if method in RANKED else 0)
    (told,) = smidgen.tag(["no rain"], tmp_path / "own", base=tiny_base.folder, engine="onnx")
    assert len(told.tags) == 2


@pytest.mark.few(3)
@pytest.mark.parametrize("method", [*RANKED, *ON_FROM])
def test_every_method_but_a_head_gives_a_language_model(
    tmp_path: Path, tiny_base: Base, masked: Path, method: str
) -> None:
    shared = {"shared": masked.parent / "shared"} if method in ON_FROM else {}
    own = made(masked, tmp_path / "own", tiny_base, method, **shared)
    assert own.measure == "perplexity" and own.score is not None
    assert own.score_shared is not None and own.is_better == (own.score < own.score_shared)
    assert (own.alpha is not None) == (method == "interpolated")
    assert read_origin(tmp_path / "own").task.kind == "mlm"


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_beside_ranks_is_trained_from_equal_bytes_to_equal_bytes(
    tmp_path: Path, tiny_base: Base, tagging: Path, kind: str
) -> None:
    known: dict[str, Any] = {"base": str(tiny_base.folder), "engine": kind, "method": "bt-lora"}
    bodies = []
    for name in ("one", "two"):
        smidgen.personalize(tagging, tmp_path / name, epochs=2, **known)
        bodies.append((tmp_path / name / "adapter_model.safetensors").read_bytes())
    assert bodies[0] == bodies[1]


def test_without_a_shared_adapter_a_tagger_has_nothing_to_be_compared_with(
    tmp_path: Path, tiny_base: Base, tagging: Path
) -> None:
    asked = ("personalize", tiny_base, "--data", tagging, "--out", tmp_path / "own")
    done = client(*asked, "--method", "head", "--epochs", 1)
    assert "F1 of entities" in done.stdout and "give --shared FOLDER to compare" in done.stdout
    found = last_object(client(*asked, "--method", "head", "--epochs", 1, "--json"))
    assert found["score"] is not None and found["is_better"] is found["score_shared"] is None


def test_what_cannot_work_is_told_before_anything_is_trained(
    tmp_path: Path, tiny_base: Base, tagging: Path, masked: Path
) -> None:
    tagger, model = {"shared": tagging.parent / "shared"}, {"shared": masked.parent / "shared"}
    for data, method, options, said in (
        (masked, "head", {}, "--method head: task 'notes' asks for masked words"),
        (tagging, "lora", {"above": True, **tagger}, "LoRA alone is expected below one's own"),
        (tagging, "tuned", model, "is for a task of kind mlm, this one is of kind tagging"),
        (masked, "fedp2eft", {}, "it goes by what a .generator run gave"),
    ):
        with pytest.raises(WrongInput, match=said):
            made(data, tmp_path / "own", tiny_base, method, **options)
        assert not (tmp_path / "own").exists()

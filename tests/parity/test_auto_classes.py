"""PEFT's own auto classes load what is exported, and give the logits that are computed here."""

import json
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.command_line import smidgen
from tests.conftest import shared
from tests.parity.test_against_transformers import TEXTS, full_model_rows

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.few

BASES = ("embedded", "minilm-l6-mlm", "bert-tiny-mlm")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """PEFT asks the hub for a tokenizer beside the adapter unless it is told not to."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(params=BASES)
def base(request: pytest.FixtureRequest) -> Base:
    is_ours = request.param == "embedded"
    return open_base(request.param if is_ours else str(shared("models", request.param)))


@pytest.fixture
def folder(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the base is found by its name, and nothing else."""
    name = base.peft_name.removeprefix("./")
    (tmp_path / name).symlink_to(base.folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "adapter"


def exported(base: Base, task: Task, name: str, folder: Path) -> Engine:
    """An engine with a trained adapter, which is written to a folder."""
    spec = parse_adapter(name)
    engine = open_engine("torch", base, task, spec, Training(lr=0.01))
    engine.load_adapter(initial_adapter(spec, base, len(task.labels), seed=1))
    train(engine, TEXTS, Training(epochs=4), seed=1)
    origin = Exported(name, base.peft_name, base.base_id, base.architecture, task)
    write_peft_folder(folder, origin, encode_adapter(engine.adapter()))
    return engine


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["lora:4", "lora:2@q,up,down/top2", "bias", "bias/top1"])
def test_a_cloze_adapter_is_loaded_by_its_folder_alone(
    base: Base, folder: Path, hub_task: Task, name: str
) -> None:
    engine = exported(base, hub_task, name, folder)
    model = peft.AutoPeftModel.from_pretrained(str(folder), dtype=torch.float32).eval()
    theirs = full_model_rows(model, base, hub_task, 0)
    np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["head", "lora:4+head"])
def test_a_head_is_loaded_by_its_folder_and_how_many_labels_there_are(
    base: Base, folder: Path, hub_task: Task, name: str
) -> None:
    engine = exported(base, hub_task, name, folder)
    model = peft.AutoPeftModelForSequenceClassification.from_pretrained(
        str(folder), num_labels=6, dtype=torch.float32
    ).eval()
    for row, text in enumerate(TEXTS):
        ids = torch.tensor([engine.encoder.prompts([text])[0].ids])
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        theirs = torch.log_softmax(logits, -1).numpy()
        np.testing.assert_allclose(engine.predict(TEXTS)[[row]], theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.few(1)
def test_a_soft_prompt_is_loaded_over_its_base_since_no_auto_class_has_a_head_for_it(
    base: Base, folder: Path, hub_task: Task
) -> None:
    engine = exported(base, hub_task, "prompt:5", folder)
    with pytest.raises(ValueError, match="Cannot use `AutoPeftModel` with a task type"):
        peft.AutoPeftModel.from_pretrained(str(folder))
    plain = transformers.AutoModelForMaskedLM.from_pretrained(base.folder, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(plain, str(folder)).eval()
    theirs = full_model_rows(model, base, hub_task, 5)
    np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lora:2", "bias", "prompt:3", "lora:2+head"])
def test_what_the_card_says_to_do_can_be_done(
    tiny_base: Base, hub_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its Python is run in the adapter's folder, with the base where the card wants it."""
    state = initial_adapter(parse_adapter(name), tiny_base, 6, seed=1)
    folder, base_name = tmp_path / "adapter", tiny_base.peft_name
    origin = Exported(name, base_name, tiny_base.base_id, "bert", hub_task)
    write_peft_folder(folder, origin, encode_adapter(state))
    (folder / tiny_base.folder.name).symlink_to(tiny_base.folder)
    monkeypatch.chdir(folder)
    card = (folder / "README.md").read_text()
    found: dict[str, object] = {}
    exec(card.split("```python\n")[1].split("```")[0], found)
    assert isinstance(found["model"], peft.PeftModel)


def test_peft_knows_every_option_that_is_written(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    for name in ("lora:2", "bias", "prompt:3", "head"):
        state = initial_adapter(parse_adapter(name), tiny_base, 6, seed=1)
        origin = Exported(name, "org/base", tiny_base.base_id, "bert", hub_task)
        write_peft_folder(tmp_path / name, origin, encode_adapter(state))
        config = peft.PeftConfig.from_pretrained(str(tmp_path / name))
        written = json.loads((tmp_path / name / "adapter_config.json").read_text())
        assert config.base_model_name_or_path == "org/base"
        assert set(written) <= set(config.to_dict())


def test_the_folder_that_is_told_is_loaded() -> None:
    folder = smidgen("client", "base", "embedded", "--path").stdout.strip()
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    assert model.config.hidden_size == open_base("embedded").hidden

"""Exported adapters that tag words or guess masked ones give in PEFT what they give here."""

from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.peft_folder import read_peft_folder
from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS
from tests.parity.folders.kinds import DRUGS, MASKED, NOTES, TAGGED, exported, rows_of, trained

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.few

TAGGERS = ("head", "lora:4+head", "lora:2@q,up,down/top1+head", "bias+head", "prompt:5+head")
RTOL, ATOL = 1e-4, 1e-5  # float32 sums in another order


def plain_tagger(base: Base) -> object:
    known = {"num_labels": len(DRUGS.tags), "dtype": torch.float32}
    return transformers.AutoModelForTokenClassification.from_pretrained(base.folder, **known)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TAGGERS)
def test_a_tagger_gives_the_same_tags_in_peft(
    real_base: Base, tmp_path: Path, kind: str, name: str
) -> None:
    engine = trained(kind, real_base, DRUGS, name)
    exported(engine, real_base, DRUGS, name, tmp_path)
    model = peft.PeftModel.from_pretrained(plain_tagger(real_base), str(tmp_path)).eval()
    soft = engine.encoder.soft
    for prompt, ours in zip(engine.encoder.prompts(TAGGED), engine.tag(TAGGED), strict=True):
        theirs = rows_of(model, prompt.ids, [place + soft for place in prompt.places])
        np.testing.assert_allclose(ours, theirs, RTOL, ATOL)


@pytest.mark.parametrize("name", TAGGERS)
def test_a_tagger_goes_to_peft_and_comes_back(real_base: Base, tmp_path: Path, name: str) -> None:
    engine = trained("torch", real_base, DRUGS, name)
    exported(engine, real_base, DRUGS, name, tmp_path)
    body = encode_adapter(engine.adapter())
    assert encode_adapter(read_peft_folder(tmp_path, real_base)[1]) == body


@pytest.mark.parametrize("name", ["lora:4", "bias", "prompt:5"])
def test_a_language_model_guesses_the_same_words_in_peft(
    real_base: Base, tmp_path: Path, name: str
) -> None:
    engine = trained("torch", real_base, NOTES, name)
    exported(engine, real_base, NOTES, name, tmp_path)
    plain = transformers.AutoModelForMaskedLM.from_pretrained(real_base.folder, dtype=torch.float32)
    model, soft = peft.PeftModel.from_pretrained(plain, str(tmp_path)).eval(), engine.encoder.soft
    losses = []
    for prompt in engine.encoder.prompts(MASKED):
        rows = rows_of(model, prompt.ids, [place + soft for place in prompt.places])
        losses += [-row[answer] for row, answer in zip(rows, prompt.answers, strict=True)]
    np.testing.assert_allclose(engine.judge(MASKED)[0], losses, RTOL, ATOL)


@pytest.mark.parametrize("soft", [0, 4])
def test_a_tagger_made_by_peft_gives_the_same_here(
    real_base: Base, tmp_path: Path, soft: int
) -> None:
    lora = peft.LoraConfig(task_type="TOKEN_CLS", r=4, target_modules=["query", "value"])
    prompt = peft.PromptTuningConfig(task_type="TOKEN_CLS", num_virtual_tokens=soft or 1)
    model = peft.get_peft_model(plain_tagger(real_base), prompt if soft else lora).eval()
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    spec, state = read_peft_adapter(tmp_path, real_base, DRUGS)
    engine = open_engine("torch", real_base, DRUGS, spec, Training())
    engine.load_adapter(state)
    for asked, ours in zip(engine.encoder.prompts(TAGGED), engine.tag(TAGGED), strict=True):
        theirs = rows_of(model, asked.ids, [place + soft for place in asked.places])
        np.testing.assert_allclose(ours, theirs, RTOL, ATOL)


@pytest.mark.parametrize("name", ["lora:4+head", "prompt:3+head"])
def test_what_the_card_of_a_tagger_says_can_be_done(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its Python is run in the adapter's folder, with the base where the card wants it."""
    exported(trained("onnx", tiny_base, DRUGS, name), tiny_base, DRUGS, name, tmp_path)
    (tmp_path / tiny_base.folder.name).symlink_to(tiny_base.folder)
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec((tmp_path / "README.md").read_text().split("```python\n")[1].split("```")[0], found)
    model = found["model"]
    assert isinstance(model, peft.PeftModelForTokenClassification)
    assert list(model.config.id2label.values()) == list(DRUGS.tags)


def test_a_tagger_is_loaded_by_its_folder_and_its_tags_alone(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    engine, folder = trained("onnx", tiny_base, DRUGS, "lora:4+head"), tmp_path / "adapter"
    exported(engine, tiny_base, DRUGS, "lora:4+head", folder)
    (tmp_path / tiny_base.folder.name).symlink_to(tiny_base.folder)
    monkeypatch.chdir(tmp_path)
    auto = peft.AutoPeftModelForTokenClassification
    model = auto.from_pretrained(str(folder), id2label=dict(enumerate(DRUGS.tags))).eval()
    (prompt,) = engine.encoder.prompts(TAGGED[:1])
    theirs = rows_of(model, prompt.ids, prompt.places)
    np.testing.assert_allclose(engine.tag(TAGGED[:1])[0], theirs, RTOL, ATOL)

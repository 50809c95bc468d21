"""Bases without a language-model head: ELECTRA's discriminators, and encoders saved alone."""

from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import first_adapter, fitting, initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.api.doctor import doctor
from smidgen.edge_client.api.pack import pack
from smidgen.edge_client.api.plan import plan
from smidgen.edge_client.bases.base import HEADLESS, Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS
from tests.families import write_family
from tests.parity.folders.kinds import DRUGS, TAGGED, rows_of
from tests.parity.test_against_transformers import TEXTS

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.few

KIND = {"discriminator": "AutoModelForPreTraining", "encoder": "AutoModel"}


@pytest.fixture(params=KIND)
def base(request: pytest.FixtureRequest, tiny_base: Base, tmp_path: Path) -> Base:
    """An ELECTRA as transformers saves its discriminator, or the encoder alone."""
    place = tmp_path / "model"
    generator = write_family("electra", tiny_base, place)
    kind = getattr(transformers, KIND[request.param])
    kind.from_pretrained(generator.folder, dtype=torch.float32).save_pretrained(place)
    return open_base(str(place))


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_discriminator_trains_with_a_head_as_it_is_and_as_a_pack(
    base: Base, hub_task: Task, tmp_path: Path, kind: str, bits: int
) -> None:
    spec = parse_adapter("lora:2+head")
    pack_model(str(base.folder), bits, tmp_path / "pack")
    for opened in (base, open_base(str(tmp_path / "pack"))):
        assert not opened.has_head
        engine = open_engine(kind, opened, hub_task, spec, Training(lr=0.02))
        engine.load_adapter(initial_adapter(spec, opened, 6, seed=1))
        delta = train(engine, TEXTS, Training(epochs=2, batch=2), seed=1).delta
        assert all(tensor.any() for tensor in delta.values())
        engine.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["SequenceClassification", "TokenClassification"])
def test_its_trained_head_predicts_the_same_in_plain_peft(
    base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str
) -> None:
    is_tagging, spec = name.startswith("Token"), parse_adapter("lora:2+head")
    task, texts = (DRUGS, TAGGED) if is_tagging else (hub_task, TEXTS)
    engine = open_engine(kind, base, task, spec, Training(lr=0.02))
    train(engine, texts, Training(epochs=4), seed=1)
    origin = Exported("lora:2+head", str(base.folder), base.base_id, "electra", task)
    write_peft_folder(tmp_path / "adapter", origin, encode_adapter(engine.adapter()))
    auto = getattr(transformers, f"AutoModelFor{name}")
    plain = auto.from_pretrained(
        base.folder, num_labels=kind_of(task).head(task).rows, dtype=torch.float32
    )
    adapted = peft.PeftModel.from_pretrained(plain, str(tmp_path / "adapter")).eval()
    ours = engine.tag(texts) if is_tagging else engine.predict(texts)
    for prompt, row in zip(engine.encoder.prompts(texts), ours, strict=True):
        if is_tagging:
            theirs = rows_of(adapted, prompt.ids, prompt.places)
        else:
            with torch.no_grad():
                theirs = adapted(input_ids=torch.tensor([prompt.ids])).logits[0].log_softmax(-1)
        np.testing.assert_allclose(row, theirs, 1e-4, 1e-5)


WHY = (
    r"lora:2@q,v: base .* cannot answer by words, .* no language-model head \(an ELECTRA "
    r"discriminator is trained to spot replaced words, .*\); take "
)


@pytest.mark.parametrize("kind", ["labels", "mlm"])
def test_a_cloze_on_it_is_refused_wherever_it_is_asked(
    base: Base, hub_task: Task, kind: str
) -> None:
    task = hub_task if kind == "labels" else Task("words", kind="mlm")
    spec, rest = parse_adapter("lora:2"), r"(lora:2@q,v\+head, or )?another base$"
    with pytest.raises(AdapterError, match=WHY + rest):
        open_engine("onnx", base, task, spec, Training())
    with pytest.raises(AdapterError, match=WHY + rest):
        first_adapter(base, spec, task, "", 0, 64)
    with pytest.raises(AdapterError, match=WHY + rest):
        fitting(base.folder, spec, base, task, {})
    with pytest.raises(AdapterError, match=WHY + rest):
        plan(base.folder, adapter="lora:2", task=task)


@pytest.mark.slow
def test_packing_and_the_doctor_say_so(base: Base, tmp_path: Path) -> None:
    packed = pack(base.folder, 8, tmp_path / "pack")
    assert HEADLESS in packed.warnings
    findings = doctor(bases=[base.folder], engine="onnx", state=tmp_path).findings
    (found,) = (one for one in findings if one.check == "base")
    assert found.state == "ok" and found.found.endswith(HEADLESS)

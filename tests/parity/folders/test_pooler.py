"""PEFT's plain classifiers of BERT and ALBERT read the pooler of the base, which packs keep."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.layout import pooler_of
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.wire.training import Training
from tests.parity.test_against_transformers import TEXTS

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.few

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64}
TARGETS = {"bert": ["query", "pooler.dense"], "albert": ["query", "pooler"]}


def checkpoint(family: str, tiny_base: Base, folder: Path, head: str = "PreTraining") -> Path:
    """A random model of numbers that bfloat16 holds, with the tiny base's tokenizer."""
    sizes = SIZES | {"vocab_size": Tokens(tiny_base.folder).size, "num_hidden_layers": 2}
    config = transformers.AutoConfig.for_model(family, pad_token_id=0, **sizes)
    torch.manual_seed(2)
    model = getattr(transformers, f"AutoModelFor{head}").from_config(config)
    for parameter in model.parameters():
        parameter.data = (4 * parameter.data).bfloat16().float()
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((tiny_base.folder / file).read_bytes())
    return folder


def classifier(folder: Path, adapter: Path | None = None, **lora: Any) -> Any:
    """A PEFT classifier of six labels: a new one with random values, or a saved one."""
    auto = transformers.AutoModelForSequenceClassification
    plain = auto.from_pretrained(folder, num_labels=6, dtype=torch.float32)
    if adapter:
        return peft.PeftModel.from_pretrained(plain, adapter).eval()
    model = peft.get_peft_model(plain, peft.LoraConfig(task_type="SEQ_CLS", r=2, **lora))
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("family", TARGETS)
def test_a_plain_classifier_of_peft_gives_the_same_here(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str, is_packed: bool
) -> None:
    folder = checkpoint(family, tiny_base, tmp_path / "model")
    classifier(folder, target_modules=TARGETS[family]).save_pretrained(tmp_path / "adapter")
    if is_packed:
        pack_model(str(folder), 16, tmp_path / "pack")
    base = open_base(str(tmp_path / "pack" if is_packed else folder))
    spec, state = read_peft_adapter(tmp_path / "adapter", base, hub_task)
    engine = open_engine("torch", base, hub_task, spec, Training())
    engine.load_adapter(state)
    model = classifier(folder, tmp_path / "adapter")
    for row, prompt in zip(engine.predict(TEXTS), engine.encoder.prompts(TEXTS), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt.ids])).logits[0]
        np.testing.assert_allclose(row, torch.log_softmax(logits, -1).numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("family", TARGETS)
def test_a_pack_keeps_the_pooler_and_equal_input_gives_equal_bytes(
    tiny_base: Base, tmp_path: Path, family: str, bits: int
) -> None:
    folder, name = checkpoint(family, tiny_base, tmp_path / "model"), pooler_of(family)
    first = pack_model(str(folder), bits, tmp_path / "first")
    second = pack_model(str(folder), bits, tmp_path / "second")
    assert first.manifest.pack_id == second.manifest.pack_id
    base, whole = open_base(str(tmp_path / "first")), open_base(str(folder))
    with base.open_weights() as packed, whole.open_weights() as weights:
        ours, theirs = (one.rows(f"{name}.weight", range(64)) for one in (packed, weights))
        np.testing.assert_array_equal(packed.vector(f"{name}.bias"), weights.vector(f"{name}.bias"))
    np.testing.assert_allclose(ours, theirs, atol={4: 0.1, 8: 0.002, 16: 0}[bits], rtol=0)


@pytest.mark.parametrize("family", TARGETS)
def test_a_base_without_a_pooler_is_named_with_what_to_do(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str
) -> None:
    folder = checkpoint(family, tiny_base, tmp_path / "model", "MaskedLM")
    classifier(folder, target_modules=["query"]).save_pretrained(tmp_path / "adapter")
    pack_model(str(folder), 16, tmp_path / "pack")
    said = rf'holds {pooler_of(family)}.*at random.*modules_to_save=\["pooler", "classifier"\]'
    with pytest.raises(AdapterError, match=said) as caught:
        read_peft_adapter(tmp_path / "adapter", open_base(str(tmp_path / "pack")), hub_task)
    assert len(str(caught.value).splitlines()) == 1


def test_a_classifier_of_labels_is_not_read_as_one_of_tags(tiny_base: Base, tmp_path: Path) -> None:
    """The tensors of both are alike where there are as many tags as labels."""
    folder = checkpoint("bert", tiny_base, tmp_path / "model")
    classifier(folder, target_modules=["query"]).save_pretrained(tmp_path / "adapter")
    tagging = Task("tags", ("A", "B"), kind="tagging")  # five tags
    with pytest.raises(AdapterError, match="task_type is SEQ_CLS, and task 'tags' of kind tagging"):
        read_peft_adapter(tmp_path / "adapter", open_base(str(folder)), tagging)

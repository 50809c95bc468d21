"""Several labels of a text against transformers' multi-label classification, both ways and back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import encode_adapter
from tests.edge_client.engine.engines import engine_of

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
head = pytest.importorskip("smidgen.edge_client.engine.torch_backend.head")
onnx_head = pytest.importorskip("smidgen.edge_client.engine.onnx_backend.head")

pytestmark = pytest.mark.few

LABELS = ("security", "weather", "family")
TASK = Task(
    "hub", LABELS, ("{text} . [MASK]",), {label: label for label in LABELS}, kind="multilabel"
)
TEXTS = [
    Example("the front door opened in the storm", label="security|weather"),
    Example("dinner with grandma", label="family"),
    Example("take the pills", label=""),
]


@pytest.mark.parametrize("engine", ["torch", "onnx"])
@pytest.mark.parametrize("adapter", ["lora:4+head", "lora:2@q,k,v,o,up,down+head"])
def test_loss_gradients_and_probabilities_are_those_of_transformers(
    tiny_base: Base, tmp_path: Path, engine: str, adapter: str
) -> None:
    ours = engine_of(engine, tiny_base, TASK, adapter)
    generator = np.random.default_rng(5)
    state = {
        name: one + generator.normal(0, 0.1, one.shape).astype(np.float32)
        for name, one in ours.adapter().items()
    }
    ours.load_adapter(state)
    known = tiny_base.peft_name, tiny_base.base_id, tiny_base.architecture
    write_peft_folder(tmp_path / "a", Exported(adapter, *known, TASK), encode_adapter(state))
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(
        tiny_base.folder,
        num_labels=len(LABELS),
        problem_type="multi_label_classification",
        dtype=torch.float32,
    )
    model: Any = peft.PeftModel.from_pretrained(plain, tmp_path / "a", is_trainable=True).eval()
    batch = ours.encoder.batch(ours.encoder.prompts(TEXTS))
    asked = {"input_ids": batch.ids, "attention_mask": batch.attention}
    told = model(
        **{name: torch.from_numpy(one) for name, one in asked.items()},
        labels=torch.from_numpy(batch.labels).float(),
    )
    told.loss.backward()
    loss, gradients = ours.gradients(batch)
    assert loss == pytest.approx(float(told.loss.detach()), rel=1e-5)
    theirs = {
        name.replace(".default", "").replace("modules_to_save.", ""): one.grad.numpy()
        for name, one in model.named_parameters()
        if one.grad is not None
    }
    assert gradients.keys() <= theirs.keys() and any(one.any() for one in gradients.values())
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, theirs[name], 1e-4, 1e-6, err_msg=name)
    rows = torch.nn.functional.logsigmoid(told.logits).detach().numpy()
    np.testing.assert_allclose(ours.predict(TEXTS), rows, 1e-4, 1e-5)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_both_engines_have_the_loss_and_the_gradient_of_bce_with_logits(is_weighted: bool) -> None:
    generator = np.random.default_rng(3)
    logits = generator.normal(0, 4, (5, 7)).astype(np.float32)
    gold = generator.integers(0, 2, (5, 7))
    weights = generator.uniform(0.1, 1, 5).astype(np.float32) if is_weighted else None
    x = torch.from_numpy(logits).double().requires_grad_()
    each = torch.nn.BCEWithLogitsLoss(reduction="none")(x, torch.from_numpy(gold).double())
    by = torch.ones(5) if weights is None else torch.from_numpy(weights)
    expected = (each.mean(dim=1) * by).mean()
    if weights is None:
        whole = torch.nn.BCEWithLogitsLoss()(x, torch.from_numpy(gold).double())
        assert float(whole.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    expected.backward()
    loss, gradient = onnx_head.binary_cross_entropy(logits, gold, weights)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    np.testing.assert_allclose(gradient, x.grad.numpy(), 1e-4, 1e-7)
    losses, is_right = head.judged(torch.from_numpy(logits), torch.from_numpy(gold), "sigmoid")
    np.testing.assert_allclose(losses.numpy(), each.mean(dim=1).detach().numpy(), 1e-5)
    again, right = onnx_head.sigmoid_judged(logits, gold)
    np.testing.assert_allclose(again, losses.numpy(), 1e-5)
    assert right.tolist() == is_right.tolist()

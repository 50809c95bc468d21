"""Classifiers that PEFT saves give the same here, by the names that it gives them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from tests.parity.folders.kinds import DRUGS, TAGGED, rows_of
from tests.parity.test_against_transformers import TEXTS, other_family

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

TARGETS = {
    "roberta": ["query", "output.dense"],
    "camembert": ["value", "intermediate.dense"],
    "electra": ["query", "output.dense"],
    "mpnet": ["q", "output.dense"],
    "distilbert": ["q_lin", "lin1"],
    "albert": ["query", "ffn_output"],
}
HEADS = {"SEQ_CLS": "SequenceClassification", "TOKEN_CLS": "TokenClassification"}


def plain_model(base: Base, kind: str, rows: int) -> Any:
    torch.manual_seed(7)
    auto = getattr(transformers, f"AutoModelFor{HEADS[kind]}")
    return auto.from_pretrained(base.folder, num_labels=rows, dtype=torch.float32)


ASKED: list[tuple[str, str, Any]] = [
    (family, kind, TARGETS[family]) for family in TARGETS for kind in HEADS
]
ASKED.remove(("albert", "SEQ_CLS", TARGETS["albert"]))  # reads the base's pooler: test_pooler.py
ASKED.append(("roberta", "SEQ_CLS", "all-linear"))  # PEFT itself refuses it for the others


@pytest.mark.few(6)
@pytest.mark.parametrize(("family", "kind", "targets"), ASKED)
def test_a_classifier_of_another_family_gives_the_same_here(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str, kind: str, targets: Any
) -> None:
    base = other_family(family, tiny_base, tmp_path / "base")
    task = hub_task if kind == "SEQ_CLS" else DRUGS
    config = peft.LoraConfig(task_type=kind, r=2, target_modules=targets)
    model = peft.get_peft_model(plain_model(base, kind, kind_of(task).head(task).rows), config)
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "adapter")
    spec, state = read_peft_adapter(tmp_path / "adapter", base, task)
    engine = open_engine("torch", base, task, spec, Training())
    engine.load_adapter(state)
    again = peft.PeftModel.from_pretrained(
        plain_model(base, kind, kind_of(task).head(task).rows), tmp_path / "adapter"
    ).eval()
    texts = TEXTS if kind == "SEQ_CLS" else TAGGED
    ours = engine.predict(texts) if kind == "SEQ_CLS" else engine.tag(texts)
    for prompt, row in zip(engine.encoder.prompts(texts), ours, strict=True):
        if kind == "SEQ_CLS":
            with torch.no_grad():
                logits = again(input_ids=torch.tensor([prompt.ids])).logits[0]
            theirs = torch.log_softmax(logits, -1).numpy()
        else:
            theirs = rows_of(again, prompt.ids, prompt.places)
        np.testing.assert_allclose(row, theirs, 1e-4, 1e-5)

"""How an adapter does, of each kind of task."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, engine_of
from tests.edge_client.engine.kinds.tasks import CASES, TAGGED, TAGGING

each_kind = pytest.mark.parametrize("kind", KINDS)
NOTES = [
    Example("the committee said on tuesday that the new hospital would open in two years ."),
    Example("patients with chronic pain were treated with low doses of the drug ."),
    Example("rain is expected", "in the north of the country"),
    Example("goal"),
]


@pytest.mark.few
@pytest.mark.parametrize("masking", [Masking(), Masking(0.3, whole_words=True)])
@each_kind
def test_the_perplexity_of_an_untrained_adapter_is_transformers_own(
    real_base: Base, kind: str, masking: Masking
) -> None:
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    task = Task("notes", kind="mlm", masking=masking)
    engine = engine_of(kind, real_base, task, "lora:4")
    model: Any = transformers.AutoModelForMaskedLM.from_pretrained(real_base.folder).double()
    losses, right = [], []
    for prompt in engine.encoder.prompts(NOTES):
        with torch.no_grad():
            rows = model.eval()(torch.tensor([prompt.ids])).logits[0, prompt.places]
        answers = torch.tensor(prompt.answers)
        losses += torch.nn.functional.cross_entropy(rows, answers, reduction="none").tolist()
        right += (rows.argmax(dim=1) == answers).tolist()
    found = evaluate(engine, NOTES)
    assert found.num_examples == len(losses) and found.entities is None
    assert np.exp(found.loss) == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    assert found.accuracy == pytest.approx(np.mean(right))


@each_kind
def test_the_same_words_are_asked_for_in_each_evaluation(tiny_base: Base, kind: str) -> None:
    engine = engine_of(kind, tiny_base, *CASES["mlm lora:4"])
    assert evaluate(engine, TAGGED) == evaluate(engine, TAGGED)


@pytest.mark.few(1)
@each_kind
def test_a_tagger_that_has_learnt_its_texts_finds_their_entities(
    tiny_base: Base, kind: str
) -> None:
    training = Training(lr=0.02, tokens=48, batch=5, epochs=100)
    name = "lora:2@q,k,v,o,up,down+head"
    engine = engine_of(kind, tiny_base, TAGGING, name, training=training)
    before = evaluate(engine, TAGGED)
    train(engine, TAGGED, training, seed=1)
    after = evaluate(engine, TAGGED)
    assert after.num_examples == before.num_examples == 24
    assert after.loss < before.loss and after.accuracy == 1.0
    assert after.entities is not None
    assert after.entities.strict == after.entities.there == after.entities.found == (3, 3)


@each_kind
def test_entities_that_are_not_read_are_missed(tiny_base: Base, kind: str) -> None:
    engine = engine_of(kind, tiny_base, TAGGING, "head")
    short = replace(engine.encoder, limit=5)  # three words
    engine.encoder = short
    found = evaluate(engine, TAGGED)
    assert found.num_examples == sum(min(3, len(one.words)) for one in TAGGED)
    assert found.entities is not None and found.entities.there == (3, 3)


@each_kind
@pytest.mark.parametrize("case", ["mlm lora:4", "tagging head"])
def test_a_loss_that_is_no_number_is_told(tiny_base: Base, kind: str, case: str) -> None:
    engine = engine_of(kind, tiny_base, *CASES[case])
    broken = {name: np.full_like(tensor, np.nan) for name, tensor in engine.adapter().items()}
    engine.load_adapter(broken)
    with pytest.raises(TrainingError, match="the adapter has diverged"):
        evaluate(engine, TAGGED)

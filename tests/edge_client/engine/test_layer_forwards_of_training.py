"""What engines count, in which experiments are compared, against a formula."""

import pytest

from edge_client.bases.base import Base
from edge_client.engine.trainer import train
from edge_client.texts.tasks import Task
from edge_client.wire.messages import Training
from tests.edge_client.engine.engines import KINDS, TEXTS, engine_of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", ["lora:4", "prompt:4", "head", "lora:2+head"])
def test_an_engine_counts_what_the_formula_says(
    tiny_base: Base, hub_task: Task, kind: str, adapter: str
) -> None:
    training = Training(epochs=3, batch=4)
    engine = engine_of(kind, tiny_base, hub_task, adapter)
    train(engine, TEXTS, training, seed=1)
    passes = 1 if adapter == "head" else 3  # forward; and back through all layers
    assert engine.layer_forwards == passes * tiny_base.layers * training.epochs * len(TEXTS)

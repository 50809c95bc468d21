"""Counted layer-forwards against the formula that the planner uses."""

from dataclasses import replace
from itertools import pairwise

import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.planning.plan import Workload
from smidgen.edge_client.planning.step_cost import layer_forwards
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, SPECS, TEXTS, batch_of, engine_of

pytestmark = pytest.mark.parametrize("kind", KINDS)


CHANGES: list[dict[str, object]] = [{}, {"micro_batch": 4}, {"recompute": (0, 1)}, {"depth": 1}]
# A soft prompt lies below all layers, so there is no depth to change.
CASES = [
    (name, change)
    for name in SPECS
    for change in CHANGES
    if not ("depth" in change and parse_adapter(name).prompt_tokens)
]


@pytest.mark.few
@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_step_counts_what_the_planners_formula_says(
    tiny_base: Base, hub_task: Task, kind: str, name: str, change: dict[str, object]
) -> None:
    engine, spec = engine_of(kind, tiny_base, hub_task, name), parse_adapter(name)
    engine.use(replace(engine.plan, **change))  # type: ignore[arg-type]
    engine.train_step(batch_of(engine))
    work = Workload(tiny_base.shape, tiny_base.bits, spec, len(TEXTS), 48)
    assert engine.layer_forwards == layer_forwards(work, engine.plan)


def test_reading_counts_each_layer_once_and_features_those_they_walk(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, counts = engine_of(kind, tiny_base, hub_task, "lora:4"), [0]
    assert engine.layers == tiny_base.layers == 2
    for read in (
        lambda: engine.predict(TEXTS),
        lambda: engine.features(TEXTS, 0),
        lambda: engine.features(TEXTS, 1),
        lambda: engine.features(TEXTS, 2),
    ):
        read()
        counts.append(engine.layer_forwards)
    walked = [(after - before) / len(TEXTS) for before, after in pairwise(counts)]
    assert walked == [2, 0, 1, 2]


@pytest.mark.few
@pytest.mark.parametrize("adapter", ["lora:4", "prompt:4", "head", "lora:2+head"])
def test_an_engine_counts_what_the_formula_says(
    tiny_base: Base, hub_task: Task, kind: str, adapter: str
) -> None:
    training = Training(epochs=3, batch=4)
    engine = engine_of(kind, tiny_base, hub_task, adapter)
    train(engine, TEXTS, training, seed=1)
    passes = 1 if adapter == "head" else 3  # forward; and back through all layers
    assert engine.layer_forwards == passes * tiny_base.layers * training.epochs * len(TEXTS)

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.budgeted import open_within, workload
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.planning.allocator import resident_bytes
from smidgen.edge_client.planning.budget import Budget, Guard, MemoryRanOut
from smidgen.edge_client.planning.plan import BudgetError, Plan
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.training import Training
from tests.conftest import shared
from tests.edge_client.engine.engines import KINDS, TEXTS
from tests.edge_client.engine.test_watch import Recorder

pytestmark = pytest.mark.parametrize("kind", KINDS)

TRAINING = Training(lr=0.01, tokens=48, batch=4, epochs=2)


class Scarce:
    """A real backend on which allocations fail for plans above a number of rows at once."""

    def __init__(self, engine: Engine, rows: int, error: Callable[[], Exception]) -> None:
        self._backend, self._rows, self._error = engine._backend, rows, error
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def step(self, batch: Batch, plan: Plan) -> float:
        if plan.micro_batch > self._rows:
            self.failures += 1
            raise self._error()
        return self._backend.step(batch, plan)


def budgeted(kind: str, base: Base, task: Task, state: Path | None = None) -> Engine:
    return open_within(kind, base, task, parse_adapter("lora:4"), TRAINING, 2 << 30, state)


def budget_of(engine: Engine) -> Budget:
    assert engine.budget is not None
    return engine.budget


@pytest.mark.few
@pytest.mark.parametrize(
    "error",
    [
        MemoryError,
        lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_failed_allocation_is_a_smaller_plan_and_the_same_training(
    tiny_base: Base, hub_task: Task, kind: str, error: Callable[[], Exception]
) -> None:
    plain = open_engine(kind, tiny_base, hub_task, parse_adapter("lora:4"), TRAINING)
    expected = train(plain, TEXTS, TRAINING, seed=1).delta
    engine = budgeted(kind, tiny_base, hub_task)
    engine.load_adapter(plain_start(plain, expected))
    scarce = Scarce(engine, rows=1, error=error)
    engine._backend = scarce
    delta = train(engine, TEXTS, TRAINING, seed=1).delta
    assert scarce.failures > 0 and engine.plan.micro_batch == 1
    for name, tensor in expected.items():
        np.testing.assert_allclose(delta[name], tensor, atol=2e-5)


def test_cache_watch_and_counts_are_the_engines_own(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    spec = parse_adapter("lora:4/top1")
    engine = open_within(kind, tiny_base, hub_task, spec, TRAINING, 2 << 30)
    engine.remember(ActivationCache(tmp_path, 1 << 20, "base"))
    first = engine.read(TEXTS)
    assert engine.layer_forwards == 2 * len(TEXTS) and engine.plan.depth == 1
    assert (engine.read(TEXTS, Recorder()) == first).all()
    assert engine.layer_forwards == 3 * len(TEXTS)


def plain_start(engine: Any, delta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: tensor - delta[name] for name, tensor in engine.adapter().items()}


def test_a_large_vocabulary_is_let_go_before_a_step_and_read_anew_behind_it(
    monkeypatch: pytest.MonkeyPatch, tiny_base: Base, hub_task: Task, kind: str
) -> None:
    answers = []
    monkeypatch.setattr("smidgen.edge_client.planning.plan.LET_GO_BYTES", 0)
    for is_let_go in (False, True):
        engine = budgeted(kind, tiny_base, hub_task)
        assert engine.option.work.keeps_vocabulary
        if is_let_go:
            every = budget_of(engine)._found
            engine._take(next(one for one in every if one.work.is_vocabulary_let_go))
        train(engine, TEXTS, TRAINING, seed=1)
        answers.append(engine.predict(TEXTS))
        assert engine.encoder.tokens.let_go(lambda: None)
    assert np.array_equal(answers[0], answers[1])


def test_other_errors_are_not_taken_for_want_of_memory(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = budgeted(kind, tiny_base, hub_task)
    wrong = Scarce(engine, 0, lambda: RuntimeError("shapes do not match"))
    engine._backend = wrong
    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(engine, TEXTS, TRAINING, seed=1)


def test_memory_that_no_plan_finds_is_told(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine = budgeted(kind, tiny_base, hub_task)
    engine._backend = Scarce(engine, 0, MemoryError)
    with pytest.raises(MemoryRanOut, match=r"smallest plan \(\d+M predicted\); free some"):
        train(engine, TEXTS, TRAINING, seed=1)


@pytest.mark.few(1)
def test_a_peak_above_the_budget_takes_the_next_smaller_plan(
    tiny_base: Base, hub_task: Task, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    engine = budgeted(kind, tiny_base, hub_task)
    first = engine.option.predicted_peak_bytes
    budget_of(engine).guard = Guard(1 << 20)  # this process is above a megabyte whatever it does
    with caplog.at_level(logging.WARNING):
        train(engine, TEXTS, Training(lr=0.01, batch=4, epochs=12), seed=1)
    assert engine.option.predicted_peak_bytes < first
    assert "going on with" in caplog.text and "no smaller plan is left" in caplog.text


def test_a_rounds_peak_is_remembered_for_the_next_plan(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    engine = budgeted(kind, tiny_base, hub_task, tmp_path)
    train(engine, TEXTS, TRAINING, seed=1)
    engine.end_round()
    remembered = json.loads((tmp_path / "corrections.json").read_text())
    assert str(tiny_base.base_id) in json.dumps(remembered)
    measured = next(iter(remembered["peaks"].values()))[0]
    again = budgeted(kind, tiny_base, hub_task, tmp_path)
    moved = again.option.predicted_peak_bytes - again.option.memory.total
    assert moved == measured["measured_bytes"] - measured["estimated_bytes"] != 0


class Holding(Scarce):
    """Fails as a real step does: with memory in its own frame."""

    def step(self, batch: Batch, plan: Plan) -> float:
        block = np.ones((60 << 20) * (plan.micro_batch > self._rows), np.uint8)
        loss = super().step(batch, plan)
        assert not block.size
        return loss


@pytest.mark.few(1)
def test_what_a_failed_step_held_is_free_before_the_next_plan_is_watched(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    engine = budgeted(kind, tiny_base, hub_task, tmp_path)
    batch = engine.encoder.batch(engine.encoder.prompts(TEXTS[:4]))
    engine.train_step(batch)
    engine._backend = Holding(engine, rows=1, error=MemoryError)
    before = resident_bytes()
    engine.train_step(batch)
    peak = budget_of(engine).guard.peak_bytes()
    assert engine.plan.micro_batch == 1
    assert peak is None or peak < before + (40 << 20)
    assert not (tmp_path / "corrections.json").exists()  # a plan that failed was not measured


def test_a_budget_below_the_smallest_plan_names_it(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    with pytest.raises(BudgetError, match=r"below the smallest plan for this model \(\d+M\)"):
        open_within(kind, tiny_base, hub_task, parse_adapter("lora:4"), TRAINING, 30 << 20)


def test_a_planner_knows_how_lora_is_written(tiny_base: Base, hub_task: Task, kind: str) -> None:
    spec = parse_adapter("lora:4+core")
    assert workload(kind, tiny_base, hub_task, spec, TRAINING).spec == spec


STARVED = """
import resource, sys
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.budgeted import open_within
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.wire.training import Training

folder, kind, rows, spare_mib = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
words = ("mail", "power")
task = Task("hub", words, ("{text} . [MASK] .",), dict(zip(words, words)))
training = Training(lr=0.01, tokens=256, batch=rows, epochs=1)
texts = [Example("parcel " * 250, label=words[row % 2]) for row in range(rows)]
base, spec = open_base(folder), parse_adapter("lora:4")
engine = open_within(kind, base, task, spec, training, 8 << 30)
first = engine.plan
engine.train_step(engine.encoder.batch(engine.encoder.prompts(texts[:1])))
engine.use(first)
held = int(open("/proc/self/statm").read().split()[5]) * 4096
resource.setrlimit(resource.RLIMIT_DATA, (held + (spare_mib << 20),) * 2)
loss = train(engine, texts, training, seed=1).loss
last = engine.plan
print(first.micro_batch, len(first.recompute), last.micro_batch, len(last.recompute), loss)
"""
# What a step of so many texts is given; a whole one wants five times as much or more.
STARVING = {"torch": (8, 40), "onnx": (8, 40)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts so on Linux alone")
def test_a_process_whose_memory_really_ends_goes_on_smaller(kind: str) -> None:
    folder = shared("models", "minilm-l6-mlm")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STARVED, str(folder), kind, *map(str, STARVING[kind])],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows, kept, smaller_rows, smaller_kept, loss = done.stdout.split()
    assert (smaller_rows, smaller_kept) != (rows, kept) and float(loss) < 10
    assert "going on with" in done.stderr

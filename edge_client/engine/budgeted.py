"""Opening an engine within a memory budget: planned before it is opened, watched while it trains.

engine = open_within("auto", base, task, spec, training, parse_budget("512M"), state_folder)
"""

from collections.abc import Collection
from pathlib import Path

from edge_client.adapters.spec import AdapterSpec
from edge_client.bases.base import Base
from edge_client.engine.engine import Engine
from edge_client.engine.opening import (
    ENGINES,
    engine_name,
    installed_engine,
    load_engine,
    open_engine,
    runtime_bytes,
)
from edge_client.planning.allocator import trim
from edge_client.planning.budget import Budget
from edge_client.planning.corrections import Corrections
from edge_client.planning.guard import Guard
from edge_client.planning.plan import Workload
from edge_client.planning.planner import choose, options
from edge_client.planning.resources import read_facts
from edge_client.planning.sizes import auto_budget
from edge_client.texts.tasks import Task
from edge_client.wire.messages import Training

PLENTY = 2.0  # times what the smallest plan takes


def open_within(
    kind: str,
    base: Base,
    task: Task,
    spec: AdapterSpec,
    training: Training,
    budget_bytes: int | None,
    state: Path | None = None,
    dtypes: Collection[str] | None = None,
) -> Engine:
    """Plan for this device as it is now, and open an engine by that plan.

    Args:
        kind: `torch`, `onnx` or `auto`.
        base: The frozen base.
        task: Labels and patterns.
        spec: The adapter.
        training: Batch, longest input, learning rate.
        budget_bytes: Resident bytes this process may reach; None: 60 % of what is available now.
        state: Folder in which measured peaks are remembered.
        dtypes: What may be computed in; None: whatever is fast here.

    Raises:
        BudgetError: No plan fits.
        EngineError: The engine's libraries are not installed.
        TaskError: A label word is unknown to this base's tokenizer, or a pattern too long.
    """
    load_engine(kind)  # so that what its libraries take is measured in this process
    trim()
    facts = read_facts(runtime=runtime_bytes(engine_name(kind)))
    allowed = auto_budget(facts.available_bytes) if budget_bytes is None else budget_bytes
    corrections = Corrections(state / "corrections.json") if state else None
    work = _workload(kind, base, spec, training, len(task.labels))
    key = base.base_id, work.engine, str(spec)
    correct = [corrections.corrector(*key)] if corrections else []
    every = options(work, facts.runtime_bytes, facts.nominal, *correct)
    found = [option for option in every if dtypes is None or option.plan.dtype in dtypes]
    budget = Budget(found, choose(found, allowed), Guard(allowed), corrections, base.base_id)
    return open_engine(kind, base, task, spec, training, budget.option.plan, budget)


def check_budget(
    kind: str,
    base: Base,
    spec: AdapterSpec,
    training: Training,
    num_labels: int,
    budget_bytes: int | None,
) -> None:
    """Check, before there is work, that some plan fits; the engine is not loaded.

    What the engine's libraries take comes from a table while there is plenty. Where it is tight the
    libraries are loaded and it is measured, as it will be when there is work.

    Raises:
        AdapterError: The adapter does not fit the base.
        BudgetError: No plan fits.
        EngineError: The engine's libraries are not installed.
    """
    name = installed_engine(kind)
    work = _workload(name, base, spec, training, num_labels)
    facts = read_facts(runtime=ENGINES[name].runtime_bytes)
    allowed = auto_budget(facts.available_bytes) if budget_bytes is None else budget_bytes
    found = options(work, facts.runtime_bytes, facts.nominal)
    if allowed < PLENTY * min(option.predicted_peak_bytes for option in found):
        load_engine(name)
        trim()
        found = options(work, runtime_bytes(name), facts.nominal)
    choose(found, allowed)


def _workload(
    kind: str, base: Base, spec: AdapterSpec, training: Training, num_labels: int
) -> Workload:
    name = engine_name(kind)
    return Workload(base.shape, base.bits, spec, training.batch, training.tokens, num_labels, name)

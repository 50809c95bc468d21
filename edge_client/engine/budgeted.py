"""Opens an engine within a memory budget: planned before it is opened, watched while it trains.

engine = open_within("auto", base, task, spec, training, parse_budget("512M"), state_folder)
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from smidgen.edge_client.adapters.banks import computed
from smidgen.edge_client.adapters.spec import AdapterSpec
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.tokenizer import tokenizer_kind
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import (
    ENGINES,
    check_device,
    engine_name,
    find_card,
    installed_engine,
    load_engine,
    open_engine,
    open_guard,
    runtime_bytes,
)
from smidgen.edge_client.planning.allocator import trim
from smidgen.edge_client.planning.budget import Budget, Corrections
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.plan import Workload, auto_budget
from smidgen.edge_client.planning.planner import Option, choose, options
from smidgen.edge_client.planning.resources import Resources, read_facts
from smidgen.edge_client.planning.step_cost import Rates
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training

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
    device: str = CPU,
    *,
    is_squeezed: bool = False,
    is_whole: bool = False,
    masked: int = 0,
    held_bytes: int = 0,
) -> Engine:
    """Plan for this device as it is now, and open an engine by that plan.

    Args:
        kind: `torch`, `onnx` or `auto`.
        base: The frozen base.
        task: Labels and patterns.
        spec: The adapter.
        training: Batch, longest input, the optimizer and its settings.
        budget_bytes: Resident bytes this process may reach, or of a card's memory what may be
            reserved; None: 60 % of what is available now.
        state: Folder in which measured peaks are remembered.
        dtypes: What may be computed in; None: whatever is fast here.
        device: What it computes on: `cpu` or `cuda`.
        is_squeezed: Whether memory is short here: no more than `auto` would take now is used of
            the budget, or the smallest plan.
        is_whole: Whether nothing but a plan that trains all layers will do, as where layers are
            compared; always so of the LoRA that a net is for.
        masked: Tokens of a text at which all words are asked for, where the task's own share of
            them is not what is asked; 0: it is.
        held_bytes: What update steps hold, see `Workload`.

    Raises:
        BudgetError: No plan fits.
        EngineError: The engine's libraries are not installed, or there is no such device.
        TaskError: A label word is unknown to this base's tokenizer, or a pattern too long.
    """
    name, facts = engine_name(kind, device), facts_in_process(kind, device, base.bits)
    allowed = auto_budget(facts.budgeted_bytes) if budget_bytes is None else budget_bytes
    corrections = Corrections(state / "corrections.json") if state else None
    work = workload(name, base, task, spec, training, facts.device)
    work = replace(work, masked=masked or work.masked, held_bytes=held_bytes)
    key = base.base_id, work.computer, work.what
    correct = [corrections.corrector(*key)] if corrections else []
    every = options(work, facts.runtime_bytes, facts.nominal, *correct)
    every = _deepest(every) if is_whole or spec.net else every
    found = [option for option in every if dtypes is None or option.plan.dtype in dtypes]
    if is_squeezed:
        smallest = min((option.predicted_peak_bytes for option in found), default=allowed)
        allowed = min(allowed, max(auto_budget(facts.budgeted_bytes), smallest))
    guard = open_guard(facts.accelerator, allowed)
    option = choose(found, allowed, budget_bytes is None)
    budget = Budget(found, option, guard, corrections, base.base_id)
    return open_engine(kind, base, task, spec, training, budget.option.plan, budget, device)


def ready_engine(kind: str, device: str) -> str:
    """The engine that is meant, for a device that is there; told before any other work.

    On the processor nothing is loaded, and a name is checked later, where it is used.

    Raises:
        EngineError: The device is not known, not there, or the engine does not compute on it.
    """
    check_device(device, kind)
    if device == CPU:
        return kind
    load_engine(kind, device)
    find_card(device, bits=8)  # a base's own bits are tried when it is opened
    return engine_name(kind, device)


def facts_in_process(kind: str, device: str, bits: int) -> Resources:
    """What this device has; the engine is loaded, so that what it takes is measured here.

    Args:
        kind: `torch`, `onnx` or `auto`.
        device: `cpu` or `cuda`.
        bits: Of the base's weights.

    Raises:
        EngineError: The engine's libraries are not installed, or there is no such device.
    """
    load_engine(kind, device)
    card = find_card(device, bits)
    trim()
    return read_facts(runtime=runtime_bytes(engine_name(kind, device)), accelerator=card)


def check_budget(
    kind: str,
    base: Base,
    spec: AdapterSpec,
    training: Training,
    task: Task,
    budget_bytes: int | None,
    device: str = CPU,
    *,
    is_whole: bool = False,
    held_bytes: int = 0,
) -> Option:
    """Check, before there is work, that some plan fits; on the processor without the engine.

    What the engine's libraries take comes from a table while there is plenty. Where it is tight the
    libraries are loaded and it is measured, as it will be when there is work.

    Returns:
        The plan that would be chosen now.

    Raises:
        AdapterError: The adapter does not fit the base.
        BudgetError: No plan fits.
        EngineError: The engine's libraries are not installed, or there is no such device.
    """
    name = installed_engine(kind, device)
    if device == CPU:
        facts = read_facts(runtime=ENGINES[name].runtime_bytes)
    else:
        facts = facts_in_process(kind, device, base.bits)
    work = workload(name, base, task, spec, training, facts.device)
    work = replace(work, held_bytes=held_bytes)
    allowed = auto_budget(facts.budgeted_bytes) if budget_bytes is None else budget_bytes
    is_whole = is_whole or bool(spec.net)
    found = _asked(work, facts.runtime_bytes, facts.nominal, is_whole)
    if device == CPU and allowed < PLENTY * min(option.predicted_peak_bytes for option in found):
        load_engine(name)
        trim()
        found = _asked(work, runtime_bytes(name), facts.nominal, is_whole)
    return choose(found, allowed, budget_bytes is None)


def _asked(work: Workload, runtime: int, nominal: Rates, is_whole: bool) -> list[Option]:
    found = list(options(work, runtime, nominal))
    return _deepest(found) if is_whole else found


def _deepest(found: Sequence[Option]) -> list[Option]:
    """Those that train as many layers as any does."""
    most = max(option.plan.depth for option in found)
    return [option for option in found if option.plan.depth == most]


def workload(
    engine: str, base: Base, task: Task, spec: AdapterSpec, training: Training, device: str = CPU
) -> Workload:
    """What is to be trained for a task, as planners know it.

    Args:
        engine: `torch` or `onnx`.
        base: The frozen base.
        task: What is asked.
        spec: The adapter.
        training: Batch, longest input, the optimizer.
        device: `cpu`, `cuda` or `unified`, see `Workload`.
    """
    head = kind_of(task).head(task)
    work = Workload(
        shape=base.shape,
        bits=base.bits,
        spec=replace(computed(spec, base.shape), form=spec.form),
        batch=training.batch,
        tokens=training.tokens,
        num_labels=head.rows,
        engine=engine,
        device=device,
        moments=training.moments,
        shifts=int(training.scaffold),
        is_of_words=head.is_of_words,
        tokenizer=tokenizer_kind(base.folder),
    )
    return replace(work, masked=kind_of(task).places(task, work.longest))

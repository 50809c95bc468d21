"""Planning without loading: what each way to train would take here, and which would be chosen.

Nothing is read but the base's header; every figure is estimated.
"""

import socket
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from smidgen.edge_client.adapters.initial import check_asked
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.api.labeller import Asked, Place, as_task, place, training_of
from smidgen.edge_client.bases.base import EMBEDDED, BaseError, BaseName, open_base
from smidgen.edge_client.engine.budgeted import facts_in_process, workload
from smidgen.edge_client.engine.opening import engine_name, measured_card_flops, runtime_bytes
from smidgen.edge_client.errors import demand
from smidgen.edge_client.outputs import OutputError, home_folder
from smidgen.edge_client.planning.budget import Corrections
from smidgen.edge_client.planning.cuda_memory import CPU, CUDA, Accelerator, host_bytes, seconds
from smidgen.edge_client.planning.plan import AUTO, Plan, Workload, auto_budget, parse_budget
from smidgen.edge_client.planning.planner import Correct, Option, as_estimated, choose, options
from smidgen.edge_client.planning.resources import Resources, measured_flops, read_facts
from smidgen.edge_client.planning.step_cost import Rates, layer_forwards
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.privacy import TextNoise
from smidgen.edge_client.wire.training import Training

STATES = Path(".local") / "state" / "smidgen"  # below the user's home
ADAPTER = "lora:8"
TWO_LABELS = Task("any", ("a", "b"), ("{text} [MASK]",), {"a": "a", "b": "b"})


@dataclass(frozen=True)
class Planned:
    """One way to train, and what a step of it would take; all of it estimated.

    Attributes:
        plan: How a step is computed.
        predicted_peak_bytes: Most memory of the process.
        predicted_step_s: Seconds of an optimizer step.
        layer_forwards: Layer-forwards of a step.
        fits: Whether the budget allows it.
        option: What the planner knows of it.
    """

    plan: Plan
    predicted_peak_bytes: int
    predicted_step_s: float
    layer_forwards: int
    fits: bool
    option: Option = field(repr=False)


@dataclass(frozen=True)
class Plans:
    """Every way to train within a budget, and the one that would be chosen.

    Attributes:
        chosen: What `train` and `run_client` would do.
        budget_bytes: Memory they may take.
        available_bytes: Memory there is now, of the card if it has its own.
        cgroup_limit_bytes: The limit of this process's control group; None: none.
        options: All ways, the preferred one first.
        accelerator: The CUDA device whose memory is meant; None: the processor's.
        process_bytes: What this process takes of the machine's memory beside a card of its own,
            estimated; None: it is in the plans' peaks.
    """

    chosen: Planned
    budget_bytes: int
    available_bytes: int
    cgroup_limit_bytes: int | None
    options: tuple[Planned, ...] = field(repr=False)
    accelerator: Accelerator | None = None
    process_bytes: int | None = None


def plan(
    base: BaseName = EMBEDDED,
    *,
    adapter: str = ADAPTER,
    task: Asked | None = None,
    batch: int = Training.batch,
    tokens: int = Training.tokens,
    memory_budget: str = AUTO,
    engine: str = AUTO,
    device: str = CPU,
    bits: int | None = None,
    private_texts: bool = False,
    state: Place | None = None,
) -> Plans:
    """Estimate memory and time of each way to train, and say which one is chosen.

        smidgen.plan("embedded", memory_budget="512M").chosen

    Args:
        base: Base model: folder, GGUF file, hub name or `embedded`.
        adapter: Such as `lora:8`, `prompt:8`, `bias`, `head`.
        task: The task, as for `train`; default: one of two labels for each text.
        batch: Texts per step.
        tokens: Longest input in tokens.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available, with `cuda` on a
            discrete card of its memory.
        engine: `torch`, `onnx`, or `auto`: torch if it is installed.
        device: `cpu`, or `cuda` with the torch engine and a CUDA device in this machine.
        bits: Plan as if the base were packed with 4, 8 or 16 bits.
        private_texts: Plan for a run with differential privacy of texts.
        state: State folder whose measured peaks correct the estimates; default: the usual one.

    Raises:
        WrongInput: No such base, adapter, task or engine, an adapter that cannot answer the task,
            or a budget below the smallest plan.
    """
    asked, name = parse_budget(memory_budget), engine_name(engine, device)
    training = training_of(batch=batch, tokens=tokens)
    asked_of, base_id = _work(str(base), adapter, task, training, bits, name)
    facts = _facts(name, device, asked_of.bits)
    work = replace(asked_of, device=facts.device)
    work = replace(work, held_bytes=TextNoise.held_bytes if private_texts else 0)
    correct: Correct = as_estimated
    with suppress(OutputError):  # without a home, nothing was measured by default
        corrections = Corrections(state_folder(state) / "corrections.json")
        correct = corrections.corrector(base_id, work.computer, work.what)
    flops = measured_flops() if facts.accelerator is None else measured_card_flops()
    return plans_of(work, facts, asked, flops, correct)


def _facts(engine: str, device: str, bits: int) -> Resources:
    if device == CPU:
        return read_facts(runtime=runtime_bytes(engine))
    return facts_in_process(engine, device, bits)


def plans_of(
    work: Workload,
    facts: Resources,
    budget_bytes: int | None,
    flops_per_s: float,
    correct: Correct = as_estimated,
) -> Plans:
    """Every way to do some work on a device, whose facts are given.

    Args:
        work: What is trained.
        facts: What the device has.
        budget_bytes: What may be taken; None: 60 % of what is available.
        flops_per_s: Rate of its float32 products.
        correct: What measured peaks change of the estimates.

    Raises:
        BudgetError: No plan fits.
    """
    budget = auto_budget(facts.budgeted_bytes) if budget_bytes is None else budget_bytes
    found = options(work, facts.runtime_bytes, facts.nominal, correct)
    chosen, rates = choose(found, budget, budget_bytes is None), facts.nominal.scaled(flops_per_s)
    found = [option for option in found if option.work == chosen.work]
    is_own = work.device == CUDA  # the card's memory is not the process's
    return Plans(
        chosen=_planned(chosen, budget, rates),
        budget_bytes=budget,
        available_bytes=facts.budgeted_bytes,
        cgroup_limit_bytes=facts.cgroup_limit_bytes,
        options=tuple(_planned(option, budget, rates) for option in found),
        accelerator=facts.accelerator,
        process_bytes=facts.runtime_bytes + host_bytes(work) if is_own else None,
    )


def state_folder(given: Place | None, name: str = "") -> Path:
    """The state folder that is named, or the usual one of a device of this name, or of the host.

    Raises:
        OutputError: None is named, and the user has no home.
    """
    if given is not None:
        return place(given)
    home = home_folder("give --state FOLDER, or set HOME")
    return home / STATES / (name or socket.gethostname())


def _work(
    base: str,
    adapter: str,
    task: Asked | None,
    training: Training,
    bits: int | None,
    engine: str,
) -> tuple[Workload, str]:
    demand(bits in (None, 4, 8, 16), f"--bits {bits} is not one of 4, 8 and 16", BaseError)
    spec, asked = parse_adapter(adapter), TWO_LABELS if task is None else as_task(task)
    opened = open_base(base)
    if bits is not None and opened.is_gguf:
        raise BaseError(f"--bits {bits}: base {base} is a GGUF file, used in the bits it has")
    check_asked(spec, asked, opened)
    work = workload(engine, opened, asked, spec, training)
    return replace(work, bits=bits or opened.bits), opened.base_id


def _planned(option: Option, budget: int, rates: Rates) -> Planned:
    peak = option.predicted_peak_bytes
    return Planned(
        plan=option.plan,
        predicted_peak_bytes=peak,
        predicted_step_s=seconds(option.work, option.plan, rates),
        layer_forwards=layer_forwards(option.work, option.plan),
        fits=peak <= budget,
        option=option,
    )

"""Planning without loading: what each way to train would take here, and which would be chosen.

Nothing is read but the base's header; every figure is estimated.
"""

import socket
from dataclasses import dataclass, field
from pathlib import Path

from edge_client.adapters.spec import parse_adapter
from edge_client.api.given import Place, place_or_none, training_of
from edge_client.bases.base import EMBEDDED, BaseError, open_base
from edge_client.engine.opening import engine_name, runtime_bytes
from edge_client.planning.corrections import Corrections
from edge_client.planning.plan import Plan, Workload
from edge_client.planning.planner import Option, choose, options
from edge_client.planning.resources import measured_flops, read_facts
from edge_client.planning.sizes import AUTO, auto_budget, parse_budget
from edge_client.planning.step_cost import Rates, layer_forwards, step_seconds
from edge_client.wire.messages import Training

STATES = Path(".local") / "state" / "smidgen"  # below the user's home
ADAPTER = "lora:8"


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
        available_bytes: Memory there is now.
        cgroup_limit_bytes: The limit of this process's control group; None: none.
        options: All ways, the preferred one first.
    """

    chosen: Planned
    budget_bytes: int
    available_bytes: int
    cgroup_limit_bytes: int | None
    options: tuple[Planned, ...] = field(repr=False)


def plan(
    base: Place = EMBEDDED,
    *,
    adapter: str = ADAPTER,
    batch: int = Training.batch,
    tokens: int = Training.tokens,
    memory_budget: str = AUTO,
    engine: str = AUTO,
    bits: int | None = None,
    state: Place | None = None,
) -> Plans:
    """Say what each way to train would take in memory and time, and which one is chosen.

        smidgen.plan("embedded", memory_budget="512M").chosen

    Args:
        base: Folder, hub name or `embedded`.
        adapter: Such as `lora:8`, `prompt:8`, `bias`, `head`.
        batch: Texts in one step.
        tokens: Longest input.
        memory_budget: Such as `512M`; `auto`: 60 % of what is available now.
        engine: `auto`, `torch` or `onnx`.
        bits: As if the base were packed with 4, 8 or 16 bits.
        state: State folder, whose measured peaks correct the estimates; the usual one if None.

    Raises:
        WrongInput: No such base, adapter or engine, or a budget below the smallest plan.
    """
    asked = parse_budget(memory_budget)
    work, base_id = _work(str(base), adapter, batch, tokens, bits, engine_name(engine))
    facts = read_facts(runtime=runtime_bytes(work.engine))
    budget = auto_budget(facts.available_bytes) if asked is None else asked
    corrections = Corrections(state_folder(state) / "corrections.json")
    correct = corrections.corrector(base_id, work.engine, str(work.spec))
    found = options(work, facts.runtime_bytes, facts.nominal, correct)
    chosen, rates = choose(found, budget), facts.nominal.scaled(measured_flops())
    return Plans(
        chosen=_planned(chosen, budget, rates),
        budget_bytes=budget,
        available_bytes=facts.available_bytes,
        cgroup_limit_bytes=facts.cgroup_limit_bytes,
        options=tuple(_planned(option, budget, rates) for option in found),
    )


def state_folder(given: Place | None, name: str = "") -> Path:
    """The state folder that is named, or the usual one of a device of this name, or of the host."""
    return place_or_none(given) or Path.home() / STATES / (name or socket.gethostname())


def _work(
    base: str, adapter: str, batch: int, tokens: int, bits: int | None, engine: str
) -> tuple[Workload, str]:
    if bits not in (None, 4, 8, 16):
        raise BaseError(f"--bits {bits} is not one of 4, 8 and 16")
    training_of(Training.epochs, batch, Training.lr, tokens)
    opened = open_base(base)
    spec, width = parse_adapter(adapter), bits or opened.bits
    return Workload(opened.shape, width, spec, batch, tokens, engine=engine), opened.base_id


def _planned(option: Option, budget: int, rates: Rates) -> Planned:
    peak = option.predicted_peak_bytes
    return Planned(
        plan=option.plan,
        predicted_peak_bytes=peak,
        predicted_step_s=step_seconds(option.work, option.plan, rates),
        layer_forwards=layer_forwards(option.work, option.plan),
        fits=peak <= budget,
        option=option,
    )

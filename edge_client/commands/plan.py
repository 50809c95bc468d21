"""`smidgen client plan`: what each way to train would take on this device, and which is chosen.

Nothing is loaded but the base's header; every figure is estimated.
"""

import json
import math
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import EMBEDDED, BaseError, open_base
from edge_client.commands.console import (
    BaseOption,
    BudgetOption,
    EngineOption,
    JsonOption,
    training_of,
)
from edge_client.commands.run import STATES
from edge_client.engine.opening import engine_name, runtime_bytes
from edge_client.planning.corrections import Corrections
from edge_client.planning.plan import Workload
from edge_client.planning.planner import Option, choose, options, undominated
from edge_client.planning.resources import Resources, measured_flops, read_facts
from edge_client.planning.sizes import AUTO, auto_budget, parse_budget, size_text
from edge_client.planning.step_cost import Rates, layer_forwards, step_seconds
from edge_client.planning.torch_memory import parts
from edge_client.tables import Column, Table, seconds, show, size, sizes
from edge_client.wire.messages import Training


def plan(
    base: BaseOption = EMBEDDED,
    adapter: Annotated[str, typer.Option(help="lora:8, prompt:8, bias, head ...")] = "lora:8",
    batch: Annotated[int, typer.Option(help="Texts in one step.")] = Training.batch,
    tokens: Annotated[int, typer.Option(help="Longest input in tokens.")] = Training.tokens,
    memory_budget: BudgetOption = AUTO,
    engine: EngineOption = AUTO,
    bits: Annotated[
        int | None, typer.Option(help="As if the base were packed with 4, 8 or 16 bits.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="State folder; ~/.local/state/smidgen/HOST by default.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show what each way to train would take in memory and time, and which one is chosen."""
    asked = parse_budget(memory_budget)
    work, base_id = _work(base, adapter, batch, tokens, bits, engine_name(engine))
    facts = read_facts(runtime=runtime_bytes(work.engine))
    budget = auto_budget(facts.available_bytes) if asked is None else asked
    corrections = Corrections(_state_folder(state) / "corrections.json")
    correct = corrections.corrector(base_id, work.engine, str(work.spec))
    found = options(work, facts.runtime_bytes, facts.nominal, correct)
    chosen = choose(found, budget)
    rates = facts.nominal.scaled(measured_flops())
    if json_output:
        print(json.dumps(_answer(found, chosen, budget, facts, rates)))
        return
    show(_table(found, chosen, budget, rates))


def _work(
    base: str, adapter: str, batch: int, tokens: int, bits: int | None, engine: str
) -> tuple[Workload, str]:
    if bits not in (None, 4, 8, 16):
        raise BaseError(f"--bits {bits} is not one of 4, 8 and 16")
    training_of(Training.epochs, batch, Training.lr, tokens)
    opened = open_base(base)
    spec, width = parse_adapter(adapter), bits or opened.bits
    return Workload(opened.shape, width, spec, batch, tokens, engine=engine), opened.base_id


def _state_folder(state: Path | None) -> Path:
    return state or Path.home() / STATES / socket.gethostname()


def why(found: Sequence[Option], chosen: Option, budget: int) -> str:
    """One sentence for people: why this plan."""
    first = found[0]
    size = size_text(budget, math.floor)
    if chosen == first:
        return f"Chosen: the preferred plan of {len(found)} as it is; it fits {size}."
    needed = size_text(first.predicted_peak_bytes)
    layers = chosen.work.shape.layers
    if chosen.plan.depth < first.plan.depth:
        return (
            f"Chosen: adapters on the top {chosen.plan.depth} of {layers} layers only, since no "
            f"plan that trains all of them fits {size}."
        )
    return (
        f"Chosen: the fastest of {len(found)} plans that fits {size}; without a limit the "
        f"preferred one would take {needed}."
    )


def _answer(
    found: Sequence[Option], chosen: Option, budget: int, facts: Resources, rates: Rates
) -> Mapping[str, Any]:
    return {
        "budget_bytes": budget,
        "available_bytes": facts.available_bytes,
        "cgroup_limit_bytes": facts.cgroup_limit_bytes,
        "chosen": _row(chosen, budget, rates) | {"parts": dict(parts(chosen.memory))},
        "options": [_row(option, budget, rates) for option in found],
    }


def _row(option: Option, budget: int, rates: Rates) -> dict[str, Any]:
    return asdict(option.plan) | {
        "predicted_peak_bytes": option.predicted_peak_bytes,
        "predicted_step_s": round(step_seconds(option.work, option.plan, rates), 4),
        "layer_forwards": layer_forwards(option.work, option.plan),
        "fits": option.predicted_peak_bytes <= budget,
    }


def _table(found: Sequence[Option], chosen: Option, budget: int, rates: Rates) -> Table:
    """Plans that no other beats in both time and memory, none shallower than the chosen one."""
    shown = [row for row in undominated(found) if row.plan.depth >= chosen.plan.depth]
    peaks = sizes([option.predicted_peak_bytes for option in shown])
    rows = [
        [
            "*" if option == chosen else "",
            option.plan.dtype,
            f"{option.plan.micro_batch} of {option.work.batch}",
            f"{len(option.plan.recompute)} of {option.plan.depth}",
            f"{option.plan.depth} of {option.work.shape.layers}",
            peak,
            seconds(step_seconds(option.work, option.plan, rates)),
            "yes" if option.predicted_peak_bytes <= budget else "no",
        ]
        for option, peak in zip(shown, peaks, strict=True)
    ]
    names = ("", "dtype", "micro-batch", "recomputed", "depth", "peak", "step", "fits")
    columns = [Column(name, "word" if name == "dtype" else "number") for name in names]
    title = f"what a step would take in {size(budget)} (estimated)"
    return Table(columns, rows, title, [why(found, chosen, budget)])

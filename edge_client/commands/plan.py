"""`smidgen client plan`: what each way to train would take on this device, and which is chosen.

Nothing is loaded but the base's header; every figure is estimated.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from edge_client.api.plan import Planned, Plans
from edge_client.api.plan import plan as make_plans
from edge_client.commands.console import JsonOption
from edge_client.options import options_of
from edge_client.planning.planner import undominated
from edge_client.planning.sizes import size_text
from edge_client.planning.torch_memory import parts
from edge_client.tables import Column, Table, seconds, show, size, sizes


@options_of(make_plans)
def plan(call: Callable[[], Plans], json_output: JsonOption = False) -> None:
    plans = call()
    if json_output:
        print(json.dumps(_answer(plans)))
        return
    show(_table(plans))


def why(plans: Plans) -> str:
    """One sentence for people: why this plan."""
    first, chosen = plans.options[0], plans.chosen
    size = size_text(plans.budget_bytes, math.floor)
    if chosen == first:
        return f"Chosen: the preferred plan of {len(plans.options)} as it is; it fits {size}."
    needed = size_text(first.predicted_peak_bytes)
    layers = chosen.option.work.shape.layers
    if chosen.plan.depth < first.plan.depth:
        return (
            f"Chosen: adapters on the top {chosen.plan.depth} of {layers} layers only, since no "
            f"plan that trains all of them fits {size}."
        )
    return (
        f"Chosen: the fastest of {len(plans.options)} plans that fits {size}; without a limit the "
        f"preferred one would take {needed}."
    )


def _answer(plans: Plans) -> Mapping[str, Any]:
    memory = plans.chosen.option.memory
    return {
        "budget_bytes": plans.budget_bytes,
        "available_bytes": plans.available_bytes,
        "cgroup_limit_bytes": plans.cgroup_limit_bytes,
        "accelerator": None if plans.accelerator is None else asdict(plans.accelerator),
        "process_bytes": plans.process_bytes,
        "chosen": _row(plans.chosen) | {"parts": dict(parts(memory))},
        "options": [_row(planned) for planned in plans.options],
    }


def _row(planned: Planned) -> dict[str, Any]:
    return asdict(planned.plan) | {
        "predicted_peak_bytes": planned.predicted_peak_bytes,
        "predicted_step_s": round(planned.predicted_step_s, 4),
        "layer_forwards": planned.layer_forwards,
        "fits": planned.fits,
    }


def _table(plans: Plans) -> Table:
    """Plans that no other beats in both time and memory, none shallower than the chosen one."""
    chosen, best = plans.chosen, undominated([planned.option for planned in plans.options])
    shown = [
        planned
        for planned in plans.options
        if planned.option in best and planned.plan.depth >= chosen.plan.depth
    ]
    peaks = sizes([planned.predicted_peak_bytes for planned in shown])
    rows = [
        [
            "*" if planned == chosen else "",
            planned.plan.dtype,
            f"{planned.plan.micro_batch} of {planned.option.work.batch}",
            f"{len(planned.plan.recompute)} of {planned.plan.depth}",
            f"{planned.plan.depth} of {planned.option.work.shape.layers}",
            peak,
            seconds(planned.predicted_step_s),
            "yes" if planned.fits else "no",
        ]
        for planned, peak in zip(shown, peaks, strict=True)
    ]
    names = ["", "dtype", "micro-batch", "recomputed", "depth", "peak", "step", "fits"]
    if plans.accelerator is not None:
        names.append("weights")
        for row, planned in zip(rows, shown, strict=True):
            row.append("copied" if planned.plan.is_streamed else "kept")
    elif any(planned.plan.is_sliced for planned in shown):
        names.append("matrices")
        for row, planned in zip(rows, shown, strict=True):
            row.append("sliced" if planned.plan.is_sliced else "whole")
    if any(planned.plan.is_spilled for planned in shown):
        names.append("inputs")
        for row, planned in zip(rows, shown, strict=True):
            row.append("in a file" if planned.plan.is_spilled else "kept")
    words = ("dtype", "weights", "matrices", "inputs")
    columns = [Column(name, "word" if name in words else "number") for name in names]
    where = f" of {plans.accelerator.name}" if plans.accelerator else ""
    title = f"what a step would take in {size(plans.budget_bytes)}{where} (estimated)"
    return Table(columns, rows, title, [why(plans), *_beside(plans)])


def _beside(plans: Plans) -> list[str]:
    """What a card's figures leave out."""
    if plans.process_bytes is None:
        return []
    return [
        f"The process takes about {size(plans.process_bytes)} of the machine's memory beside it; "
        "the card's CUDA context is in neither figure."
    ]

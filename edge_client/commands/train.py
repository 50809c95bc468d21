"""`smidgen client train`, `personalize`, `plan`: an adapter on this device's texts, and its cost.

Nothing is loaded but the base's header; every figure is estimated.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console

from smidgen.edge_client.api.personalize import PersonalAdapter, personalize
from smidgen.edge_client.api.plan import Planned, Plans
from smidgen.edge_client.api.plan import plan as make_plans
from smidgen.edge_client.api.train import TrainedAdapter, train
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.options import options_of
from smidgen.edge_client.planning.plan import size_text
from smidgen.edge_client.planning.planner import undominated
from smidgen.edge_client.planning.torch_memory import parts
from smidgen.edge_client.tables import Column, Table, seconds, show, size, sizes
from smidgen.edge_client.tasks.kind import measure_called


@options_of(train, without=("tell",))
def train_alone(call: Callable[..., TrainedAdapter], json_output: JsonOption = False) -> None:
    done = call(tell=partial(print, file=sys.stderr, flush=True))
    print(json.dumps(_answer(done)) if json_output else _table(done))


def _answer(done: TrainedAdapter) -> Mapping[str, object]:
    facts = asdict(done)
    return {"out": str(facts.pop("folder"))} | facts


def _table(done: TrainedAdapter) -> str:
    before, after = done.score_before, done.score_after
    measure = measure_called(done.measure)
    facts = {
        "trained on": f"{done.num_examples} texts, loss {done.loss:.3f} in the last pass",
        measure.name: "not known: no test texts (a test.* beside the others)",
        "peak memory": _memory(done),
        "written to": str(done.folder),
        "next": f"smidgen client {_next(done)}",
    }
    if before is not None and after is not None:
        figures = [measure.in_words(one) for one in (before, after)]
        texts = f"on {done.test_examples} test texts"
        facts[measure.name] = f"{figures[0]} before, {figures[1]} after, {texts}"
    return "\n".join(f"{name:<14} {value}" for name, value in facts.items())


def _next(done: TrainedAdapter) -> str:
    if not done.example:  # it writes texts
        return f"generate --adapter {done.folder} 'a text'"
    return f"predict --adapter {done.folder} {quote(done.example)}"


def _memory(done: TrainedAdapter) -> str:
    """The peak beside its prediction: of this process, or of the card with the process's after."""
    card = done.device_peak
    if card is None:
        return _peak(done.predicted_peak_bytes, done.peak_rss_bytes)
    allocated, process = size(card.allocated_bytes), size(done.peak_rss_bytes)
    if card.is_unified:
        both = _peak(done.predicted_peak_bytes, card.reserved_bytes + done.peak_rss_bytes)
        return f"{both} ({process} of it this process's own, {allocated} in the card's tensors)"
    reserved = _peak(done.predicted_peak_bytes, card.reserved_bytes)
    return f"on the card {reserved} ({allocated} in tensors); this process {process} measured"


def _peak(predicted_bytes: int, measured_bytes: int) -> str:
    told = f"{size(measured_bytes)} measured, {size(predicted_bytes)} predicted"
    if measured_bytes <= predicted_bytes:
        return told
    above = 100 * (measured_bytes / predicted_bytes - 1)
    return f"{told}: {above:.0f} % above the prediction; leave room for it in --memory-budget"


HEAD = "none of its own: a classification head"


@options_of(personalize, generator={"metavar": "FOLDER"}, shared={"metavar": "FOLDER"})
def personalize_command(
    call: Callable[..., PersonalAdapter], shared: Path | None, json_output: JsonOption = False
) -> None:
    done = call()
    if json_output:
        print(json.dumps({"out": str(done.folder)} | _plain(done)))
        return
    if done.ranks:
        show(_ranks(done.ranks), file=Console().file)
    print(_facts(done, shared))


def _plain(done: PersonalAdapter) -> dict[str, object]:
    facts = asdict(done)
    del facts["folder"]
    return facts


def _ranks(ranks: Mapping[str, int]) -> Table:
    names = [name.split(".") for name in ranks]
    layers, linears = dict.fromkeys(one[0] for one in names), dict.fromkeys(one[1] for one in names)
    columns = [Column("layer", "text"), *(Column(one) for one in linears)]
    rows = [[layer, *(str(ranks.get(f"{layer}.{one}", "")) for one in linears)] for layer in layers]
    return Table(columns, rows, "its own ranks; 0: none there")


def _facts(done: PersonalAdapter, shared: Path | None) -> str:
    whose = "the shared adapter" if shared else "the base alone"
    measure = measure_called(done.measure)
    kept, modules = sum(done.ranks.values()), sum(map(bool, done.ranks.values()))
    how = f"{kept} in {modules} of {len(done.ranks)} modules, by {done.method}"
    if not done.ranks:
        how = HEAD if done.method == "head" else f"those of the shared adapter, {done.method}"
    facts = {
        "ranks": how if done.alpha is None else f"{how}; alpha {done.alpha:g} of 1",
        "trained on": f"{done.num_examples} texts, loss {done.loss:.3f} in the last pass",
        measure.name: "not known: no test texts (a test.* beside the others)",
        "peak memory": f"{size(done.peak_rss_bytes)} measured, {size(done.predicted_peak_bytes)} "
        "predicted",
        "written to": str(done.folder),
        "next": f"smidgen client predict --adapter {done.folder} 'a text'",
    }
    if done.score is not None:
        own, texts = measure.in_words(done.score), f"on {done.test_examples} test texts"
        facts[measure.name] = f"{own}, {texts}; give --shared FOLDER to compare with it"
    if done.score is not None and done.score_shared is not None:
        other = measure.in_words(done.score_shared)
        facts[measure.name] = f"{own}, {whose} {other}, {texts}"
        better = f"this one, not {whose}" if done.is_better else f"{whose}: keep to it"
        said = "right more often" if done.measure == "accuracy" else "better"
        facts[said] = better if done.score != done.score_shared else "neither"
    return "\n".join(f"{name:<16} {value}" for name, value in facts.items())


@options_of(make_plans)
def plan(call: Callable[[], Plans], json_output: JsonOption = False) -> None:
    plans = call()
    if json_output:
        print(json.dumps(_plan_answer(plans)))
        return
    show(_plans_table(plans))


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


def _plan_answer(plans: Plans) -> Mapping[str, Any]:
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


def _plans_table(plans: Plans) -> Table:
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
    return Table(
        columns,
        rows,
        f"what a step would take in {size(plans.budget_bytes)}{where} (estimated)",
        [why(plans), *_beside(plans)],
    )


def _beside(plans: Plans) -> list[str]:
    """What a card's figures leave out."""
    if plans.process_bytes is None:
        return []
    return [
        f"The process takes about {size(plans.process_bytes)} of the machine's memory beside it; "
        "the card's CUDA context is in neither figure."
    ]

"""`smidgen profile estimate`: seconds of a step on a board that is not here, with every input."""

import json
import math
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from edge_client.adapters.spec import parse_adapter
from edge_client.bases.architectures import Shape
from edge_client.bases.base import EMBEDDED, open_base
from edge_client.bases.layout import checked_shape
from edge_client.bases.random_models import CONFIGS, hub_config
from edge_client.bases.tokenizer import tokenizer_kind
from edge_client.engine.opening import runtime_bytes
from edge_client.errors import demand
from edge_client.planning.plan import Workload
from edge_client.planning.planner import Option, choose, options, plan_in_words
from edge_client.planning.sizes import AUTO, auto_budget, parse_budget
from edge_client.planning.step_cost import nominal_rates
from edge_client.tables import Column, Table, seconds, show, tell
from profiling.commands.options import AdapterOption, JsonOption, TokensOption, working
from profiling.estimates.boards import BOARDS, Board, measure
from profiling.estimates.roofline import (
    FORMULA,
    Estimate,
    Input,
    estimate,
    reached,
    step_work,
)
from profiling.instruments.bases import BITS, BenchmarkError, demand_between

MOST_BATCH, MOST_TOKENS, MOST_S = 4096, 8192, 86400.0


def estimate_step(
    base: Annotated[
        str, typer.Option(help="A shape such as roberta-large; or a pack, folder or hub name.")
    ],
    board: Annotated[str, typer.Option(help=f"One of {', '.join(BOARDS)}.")],
    engine: Annotated[str, typer.Option(help="Engine that would compute, torch or onnx.")] = "onnx",
    bits: Annotated[
        int | None, typer.Option(help="Bits of the base's weights: 4, 8 or 16; by default its own.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts in a step, 1 or more.")] = 4,
    tokens: TokensOption = 256,
    adapter: AdapterOption = "lora:8@q,v",
    memory_budget: Annotated[
        str,
        typer.Option(
            help="What the plan may take on the board, such as 512M; auto: 60 % of its memory."
        ),
    ] = AUTO,
    step_s: Annotated[
        float | None,
        typer.Option(
            help="Seconds of the same step measured here, as `profile train` prints them: says "
            "what share of the roof a step reaches. By default a lower bound is given."
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Estimate the seconds of a training step on a board that is not here; measures no step."""
    there = _board(board)
    demand(engine in ("torch", "onnx"), f"--engine {engine}: torch or onnx", BenchmarkError)
    demand(bits in (None, *BITS), f"--bits {bits} is not one of 4, 8 and 16", BenchmarkError)
    demand_between({"batch": (1, batch, MOST_BATCH), "tokens": (8, tokens, MOST_TOKENS)})
    if step_s is not None:
        is_time = math.isfinite(step_s) and 0 < step_s <= MOST_S
        demand(is_time, f"--step-s {step_s}: seconds above 0 are expected", BenchmarkError)
    shape, own, kind = _shape(base)
    spec = parse_adapter(adapter)
    longest = shape.positions - spec.prompt_tokens
    demand(tokens <= longest, f"--tokens {tokens}: base {base} takes {longest}", BenchmarkError)
    work = Workload(shape, bits or own, spec, batch, tokens, engine=engine, tokenizer=kind)
    option = _planned(work, there, memory_budget)
    step, share = step_work(work, option.plan), None
    inputs: tuple[Input, ...] = ()
    if step_s is not None:
        with working("measuring this machine's product rate and memory"):
            here = measure()
        share = reached(step, step_s, here)
        if share > 1:
            share = None
            note = "the step is faster than this machine's rates are now: others are at work"
            told = f"smidgen profile: {note}; it is left out. Measure both on a quiet machine"
            tell((told,), file=sys.stderr)
        inputs = (
            Input("product rate here", f"{here.flops_per_s / 1e9:.1f} G/s", "measured", "numpy"),
            Input("memory rate here", f"{here.bytes_per_s / 1e9:.1f} GB/s", "measured", "numpy"),
            Input("step here", seconds(step_s), "measured", "--step-s; by the same plan"),
        )
    found = estimate(step, there, share)
    every = (*inputs, *found.inputs)
    if json_output:
        print(json.dumps(_as_json(base, option, found, every)))
        return
    columns = [Column("input", "text"), Column("value", "text"), Column("kind", "word")]
    rows = [[one.name, one.value, one.kind, one.source] for one in every]
    title = f"A step of {base} ({engine}, {batch} x {tokens} tokens) on a {there.name}: ESTIMATED"
    show(Table([*columns, Column("from", "text")], rows, title))
    is_roof = " on the roof itself, and a real step takes longer" if found.is_bound else ""
    tell(
        (
            f"plan: {plan_in_words(option)}",
            f"formula: {FORMULA}",
            f"estimated: {seconds(found.step_s)} per step{is_roof}; the roof is made of "
            f"{found.limit}. Heat, swapping and other programs are not in it.",
            *(f"source: {source}" for source in there.sources),
        )
    )


def _board(name: str) -> Board:
    known = ", ".join(BOARDS)
    demand(name in BOARDS, f"--board {name!r} is not known; one of {known}", BenchmarkError)
    return BOARDS[name]


def _shape(base: str) -> tuple[Shape, int, str]:
    if base in CONFIGS and base != EMBEDDED:
        return checked_shape(hub_config(base)), BITS[0], "WordLevel"
    opened = open_base(base)
    return opened.shape, opened.bits, tokenizer_kind(opened.folder)


def _planned(work: Workload, board: Board, memory_budget: str) -> Option:
    """The plan that a device like this board would choose; float32, as such processors compute."""
    asked = parse_budget(memory_budget)
    budget = auto_budget(board.memory_bytes) if asked is None else asked
    nominal = nominal_rates(board.flags, (), board.cores)
    return choose(options(work, runtime_bytes(work.engine), nominal), budget)


def _as_json(
    base: str, option: Option, found: Estimate, inputs: tuple[Input, ...]
) -> dict[str, Any]:
    return {
        "source": "estimated",
        "base": base,
        "board": found.board.name,
        "step_s": found.step_s,
        "is_lower_bound": found.is_bound,
        "limit": found.limit,
        "formula": FORMULA,
        "plan": asdict(option.plan),
        "inputs": [asdict(one) for one in inputs],
        "sources": list(found.board.sources),
    }

"""`smidgen profile models` and `estimate`: which model fits which board, and how fast."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.bases.layout import checked_shape
from smidgen.edge_client.bases.random_models import CONFIGS, hub_config
from smidgen.edge_client.bases.tokenizer import tokenizer_kind
from smidgen.edge_client.engine.opening import runtime_bytes
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.outputs import check_out_file
from smidgen.edge_client.planning.plan import AUTO, Workload, auto_budget, parse_budget, parse_size
from smidgen.edge_client.planning.planner import Option, choose, options, plan_in_words
from smidgen.edge_client.planning.step_cost import nominal_rates
from smidgen.edge_client.tables import Column, Table, seconds, show, span, tell
from smidgen.profiling.benchmarks.report import machine_notes
from smidgen.profiling.commands.options import (
    AdapterOption,
    IsaOption,
    JsonOption,
    ThreadsOption,
    TokensOption,
    working,
)
from smidgen.profiling.estimates import (
    BOARDS,
    FORMULA,
    Board,
    Estimate,
    Input,
    estimate,
    measure,
    reached,
    step_work,
)
from smidgen.profiling.instruments.child import terminable
from smidgen.profiling.instruments.environment import (
    BITS,
    BenchmarkError,
    demand_between,
    this_machine,
)
from smidgen.profiling.models.cell import BUDGETS, METHODS, Cell, from_record
from smidgen.profiling.models.measure import (
    BASES,
    Asked,
    draw,
    pick_bases,
    pick_cells,
    settings_of,
    size_of_work,
)
from smidgen.profiling.models.page import (
    check_jinja,
    models_tables,
    told_left_out,
    twice_table,
    verdict,
    write_pages,
)
from smidgen.profiling.models.run import FILE, Follow, of_one_machine, read_kept, run, to_do


def models(
    base: Annotated[
        list[str] | None,
        typer.Option(help="Add a base: a pack, folder or hub name; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Measure only this base; repeatable: {', '.join(BASES)}, or a --base."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"Measure only this method; repeatable: {', '.join(METHODS)}."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Memory budget of smidgen's engines; repeatable. Default: {', '.join(BUDGETS)}."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts per step, 1 or more.")] = Cell.batch,
    tokens: TokensOption = Cell.tokens,
    adapter: AdapterOption = Cell.adapter,
    isa: IsaOption = "",
    steps: Annotated[
        int, typer.Option(help="Steps to measure; slow cells take fewer, at least three.")
    ] = Asked.steps,
    warmup: Annotated[int, typer.Option(help="Steps before measuring, 0 or more.")] = Asked.warmup,
    threads: ThreadsOption = None,
    sample: Annotated[
        int | None, typer.Option(help="Measure only this many cells, drawn by --seed.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for --sample.")] = 0,
    again: Annotated[
        bool, typer.Option("--again", help="Measure each cell twice and show both side by side.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help=f"Folder for {FILE} and the pages; the same command resumes."),
    ] = None,
    page_only: Annotated[
        bool,
        typer.Option("--page-only", help="Measure nothing; write the pages of what is in --out."),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Measure which model fits which board: memory and time of training and labelling. Takes hours.

    With --out it writes models.html (opens offline), .md, .csv and .json beside the records.
    """
    path = None if out is None else out / FILE
    if path is not None:
        check_out_file("--out", path)
        check_jinja()
    if page_only:
        if out is None:
            raise WrongInput("--page-only needs --out, a folder that was measured into")
        _write_pages(out)
        return
    asked = Asked(steps=steps, warmup=warmup, threads=threads)
    like = Cell("", "", isa=isa, batch=batch, tokens=tokens, adapter=adapter)
    settings_of(
        replace(like, method="torch"), asked
    )  # values out of range are refused before hours of work
    demand_between({"seed": (0, seed, 2**63 - 1)})
    for text in budget or ():
        parse_size("--budget", text)
    with terminable():
        bases = pick_bases(base or [], only or [])
        cells = draw(pick_cells(like, bases, method or [], budget or []), sample, seed)
        if note := read_kept(path).note:
            print(f"smidgen profile: {note}", file=sys.stderr)
        times, machine = 2 if again else 1, asdict(this_machine())
        with _bar(cells, to_do(cells, asked, path, times)) as (follow, finished):
            measured = []
            for found in run(cells, asked, path, follow, times):
                measured.append(found)
                finished(len(measured))
    _print(measured, machine, json_output)
    if out is not None:
        _write_pages(out)


def _write_pages(out: Path) -> None:
    """Pages of what a folder holds of the machine that was measured last.

    Raises:
        RecordError: It holds no cell.
    """
    every = read_kept(out / FILE).records
    demand(bool(every), f"{out / FILE} holds no cell yet; the same command without --page-only")
    records = of_one_machine(every)
    cells = [from_record(record) for record in records]
    left_out = len(every) - len(records)
    written = write_pages(cells, [record.conditions for record in records], out, left_out)
    if left_out:
        print(f"smidgen profile: {told_left_out(left_out)}", file=sys.stderr)
    print("written  " + " ".join(str(path) for path in written), file=sys.stderr)


def _print(measured: Sequence[Sequence[Cell]], machine: Mapping[str, Any], is_json: bool) -> None:
    """Tables, or JSON; `machine` as it was before."""
    is_twice = any(len(found) > 1 for found in measured)
    if is_json:
        result: dict[str, Any] = {"cells": [asdict(found[-1]) for found in measured]}
        if is_twice:
            result["twice"] = [
                {"cells": [asdict(cell) for cell in found], "verdict": verdict(*found)}
                for found in measured
            ]
        print(json.dumps(result))
        return
    show(*models_tables([found[-1] for found in measured]))
    if is_twice:
        print()
        show(twice_table(measured))
    tell(machine_notes(machine, [machine["load_1m"]]))


@contextmanager
def _bar(
    cells: Sequence[Cell], to_do: Sequence[int]
) -> Iterator[tuple[Follow, Callable[[int], None]]]:
    """A bar on stderr: how many cells are done, what is done now, and about how long is left."""
    columns = (
        BarColumn(16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}"),
    )
    began = time.monotonic()
    weights = {base: size_of_work(base) for base in {cell.base for cell in cells}}
    work = [times * weights[cell.base] for cell, times in zip(cells, to_do, strict=True)]
    done_before = sum(not count for count in to_do)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(cells), completed=done_before, left="")

        def follow(place: int, text: str) -> None:
            progress.update(task, description=f"{cells[place].name}: {text}")

        def finished(count: int) -> None:
            done, left = sum(work[:count]), sum(work[count:])
            spent_s = time.monotonic() - began
            about = f"about {span(spent_s / done * left)} left" if done and left else ""
            later = sum(not times for times in to_do[count:])
            progress.update(task, completed=count + later, left=about)

        yield follow, finished


def estimate_step(
    base: Annotated[
        str, typer.Option(help="A shape such as roberta-large; or a pack, folder or hub name.")
    ],
    board: Annotated[str, typer.Option(help=f"One of {', '.join(BOARDS)}.")],
    engine: Annotated[str, typer.Option(help="Engine on the board, torch or onnx.")] = "onnx",
    bits: Annotated[
        int | None, typer.Option(help="Bits of the base's weights: 4, 8 or 16. Default: as it is.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts per step, 1 or more.")] = 4,
    tokens: TokensOption = 256,
    adapter: AdapterOption = "lora:8@q,v",
    memory_budget: Annotated[
        str,
        typer.Option(
            help="Memory that the plan may take on the board, such as 512M; auto: 60 % of it."
        ),
    ] = AUTO,
    step_s: Annotated[
        float | None,
        typer.Option(
            help="Seconds of the same step on this machine, from `profile train`: gives the share "
            "of the roofline that a step reaches. Default: print the lower bound."
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Estimate the time of a training step on a board that you do not have; runs no step."""
    there = _board(board)
    demand(engine in ("torch", "onnx"), f"--engine {engine}: torch or onnx", BenchmarkError)
    demand(bits in (None, *BITS), f"--bits {bits} is not one of 4, 8 and 16", BenchmarkError)
    demand_between({"batch": (1, batch, 4096), "tokens": (8, tokens, 8192)})
    if step_s is not None:
        is_time = math.isfinite(step_s) and 0 < step_s <= 86_400.0
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

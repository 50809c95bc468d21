"""`smidgen profile models`: which model fits which board, and what training it there takes."""

import json
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

from edge_client.errors import WrongInput, demand
from edge_client.outputs import check_out_file
from edge_client.planning.sizes import parse_size
from edge_client.tables import show, span, tell
from profiling.benchmarks.report import machine_notes
from profiling.commands.options import (
    AdapterOption,
    IsaOption,
    JsonOption,
    ThreadsOption,
    TokensOption,
)
from profiling.instruments.bases import demand_between
from profiling.instruments.child import terminable
from profiling.instruments.machine import this_machine
from profiling.models.cell import BUDGETS, METHODS, Cell, from_record
from profiling.models.measure import (
    BASES,
    Asked,
    draw,
    pick_bases,
    pick_cells,
    settings_of,
    size_of_work,
)
from profiling.models.page import check_jinja, told_left_out, write_pages
from profiling.models.report import models_tables, twice_table, verdict
from profiling.models.run import FILE, Follow, of_one_machine, read_kept, run, to_do


def models(
    base: Annotated[
        list[str] | None,
        typer.Option(help="One more row: a pack, folder or hub name; may be repeated."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"This row alone; may be repeated: {', '.join(BASES)}, or a --base."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"This way to train alone; may be repeated: {', '.join(METHODS)}."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Memory budget of our engines; may be repeated; by default {', '.join(BUDGETS)}."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts in a step, 1 or more.")] = Cell.batch,
    tokens: TokensOption = Cell.tokens,
    adapter: AdapterOption = Cell.adapter,
    isa: IsaOption = "",
    steps: Annotated[
        int, typer.Option(help="Steps to measure; fewer, but three, where they take long.")
    ] = Asked.steps,
    warmup: Annotated[
        int, typer.Option(help="Steps to take before measuring, 0 or more.")
    ] = Asked.warmup,
    threads: ThreadsOption = None,
    sample: Annotated[
        int | None, typer.Option(help="Measure only so many cells, drawn by --seed.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which cells --sample draws.")] = 0,
    again: Annotated[
        bool, typer.Option("--again", help="Measure each cell twice and show both side by side.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help=f"Folder of {FILE}; the same command goes on where it was stopped."),
    ] = None,
    page_only: Annotated[
        bool,
        typer.Option("--page-only", help="Measure nothing; write the pages of what --out holds."),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Measure which model fits which board, and what training and labelling take; takes long.

    With --out it writes models.html (which opens offline), .md, .csv and .json beside the records.
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

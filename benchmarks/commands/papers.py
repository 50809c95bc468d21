"""`python -m benchmarks papers`: every table and figure of the papers, and an index of results."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks.commands.paper import QuickOption
from benchmarks.papers.index.entry import (
    Entry,
    EntryState,
    Given,
    Say,
    chosen,
    looked,
    play_all,
    printed,
)
from benchmarks.papers.index.kept import NOTHING, read_kept, write_kept
from benchmarks.papers.index.page import page
from benchmarks.papers.pieces import SEEDS, names_of
from benchmarks.papers.tables.languages import EMBEDDED_MIXTURE, distance, parse_mixture
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.commands.console import DeviceOption, JsonOption
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.files import write_atomically
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.simulation.api import OUT
from smidgen.simulation.commands.experiments import (
    BaseOption,
    DataOption,
    JobsOption,
    OutOption,
    SeedsOption,
    resumable,
)
from smidgen.simulation.experiments.runner import Place
from smidgen.simulation.report.report import Order

ONLY = "Only this entry, or all whose names begin so (aug-fedprompt/table2); repeat."
PRETRAINING = "Languages the multilingual base read, en=0.6,fr=0.4; by default the embedded's."
INDEX = (
    "Where the index is written; by default OUT/index.md, and with --only nowhere. Beside it, as "
    ".zip, lie the results it is made of, which are not run again."
)
SHOW = "Run nothing: write and print the index of what is there."


def papers_command(
    only: Annotated[list[str] | None, typer.Option(help=ONLY)] = None,
    is_shown: Annotated[bool, typer.Option("--show", help=SHOW)] = False,
    index: Annotated[Path | None, typer.Option(help=INDEX)] = None,
    base: BaseOption = EMBEDDED,
    multilingual_base: Annotated[
        str, typer.Option(help="Base of texts in several languages.")
    ] = EMBEDDED,
    more_base: Annotated[
        list[str] | None, typer.Option(help="A further base where bases are compared; repeat.")
    ] = None,
    pretraining: Annotated[str, typer.Option(help=PRETRAINING)] = "",
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: SeedsOption = SEEDS,
    jobs: JobsOption = 1,
    device: DeviceOption = CPU,
    quick: QuickOption = False,
    json_output: JsonOption = False,
) -> None:
    """Every table and figure of the papers beside ours, resumable, with an index of results."""
    every = printed()
    entries, console = chosen(every, only or ()), Console(stderr=json_output)
    place = Place(data, out / "experiments", device=device)
    order = Order(range(1 if quick else seeds), place, jobs, out, json_output)

    bases = tuple(dict.fromkeys([EMBEDDED, *(more_base or ()), base]))
    names_of(bases)  # which figure 5's rows go by
    mixture = parse_mixture(pretraining) if pretraining else EMBEDDED_MIXTURE
    distance(next(iter(mixture)), mixture)  # all vectors are there, before hours of work
    # of some entries alone: not over the index of all
    path, start = index or (None if only else out / "index.md"), time.monotonic()
    is_page = path is None or path.suffix == ".md"
    demand(is_page, f"--index {path}: a name that ends in .md is expected")
    beside = path.with_suffix(".zip") if path else None
    known = read_kept(beside) if beside else NOTHING
    given = Given(base, multilingual_base, bases, mixture, quick, order, known)
    with resumable(out):
        console.print("reading what is there", highlight=False)
        states = looked(entries, given)
        is_left, whole = not all(state.is_whole for state in states), _whole(states)

        def kept(state: EntryState) -> None:
            _write(path, states, page(every, states, given), given)
            console.print(f"{state.entry.name}: {_state_of(state)}", markup=False)

        _write(path, states, page(every, states, given), given)
        if not is_shown:
            with _bar(console, states) as say:
                play_all(states, given, say, kept)
    if path is None or (is_shown and not json_output):
        print(page(every, states, given), file=console.file)
    if path is not None:
        print(f"written  {path}", file=console.file)
    if json_output:
        print(json.dumps(_plain(states, path, time.monotonic() - start)))
    if is_left and not is_shown and _whole(states) <= whole:
        told = path or "the index above"
        raise Failed(f"nothing could be run of what was left; {told} says why of each")


def _whole(states: Sequence[EntryState]) -> int:
    return sum(slot.is_whole for state in states for slot in state.cells)


def _write(path: Path | None, states: Sequence[EntryState], text: str, given: Given) -> None:
    """Write an index, and beside it what there is of entries with what was kept before."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    slots = [slot for state in states for slot in state.cells]
    pairs = [pair for slot in slots for pair in zip(slot.stages, slot.results, strict=False)]
    there = [(on, result) for on, result in pairs if result is not None]
    kept = given.kept.with_results(there, given.order.place)
    write_kept(path.with_suffix(".zip"), kept, text)


@contextmanager
def _bar(console: Console, states: Sequence[EntryState]) -> Iterator[Say]:
    """How far all of it is, by rounds that are left; below it the entry at hand."""
    left = {one.entry.name: sum(on.experiment.rounds for on in one.left.values()) for one in states}
    with Progress(
        TextColumn("{task.description:<46.46}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as bar:
        whole, line = bar.add_task("all", total=sum(left.values())), bar.add_task("starting")

        def say(entry: Entry, done: int, total: int) -> None:
            place = [*left].index(entry.name)
            before = sum([*left.values()][:place])
            bar.update(whole, completed=before + max(0, left[entry.name] - total + done))
            said = f"{place + 1}/{len(left)} {entry.name}"
            bar.update(line, description=said, completed=done, total=total)

        yield say


def _state_of(state: EntryState) -> str:
    whole = sum(slot.is_whole for slot in state.cells)
    troubles = dict.fromkeys([state.trouble, *(slot.trouble for slot in state.cells)])
    told = "; ".join(one for one in troubles if one)
    return f"{whole} of {len(state.cells)} cells" + (f"; {told}" if told else "")


def _plain(states: Sequence[EntryState], path: Path | None, seconds: float) -> dict[str, object]:
    entries = [
        {
            "name": state.entry.name,
            "cells": len(state.cells),
            "whole": sum(slot.is_whole for slot in state.cells),
            "trouble": state.trouble or next((h.trouble for h in state.cells if h.trouble), ""),
        }
        for state in states
    ]
    return {"index": str(path) if path else None, "seconds": round(seconds, 1), "entries": entries}

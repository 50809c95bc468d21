"""Measures cells of the models table: all or a sample, one at a time.

    cell = measure(Cell("roberta-base", "torch", "512M"), Asked())

A cell is a process that trains, one that only labels, and runs under boards' memory limits. What is
not available here, or does not fit, is a result too: it is the cell's outcome.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.configurations import shape_of
from smidgen.edge_client.bases.random_models import CONFIGS, hub_config
from smidgen.edge_client.errors import demand
from smidgen.edge_client.planning.plan import AUTO
from smidgen.edge_client.tables import size
from smidgen.profiling.benchmarks.training import Benchmark, Refused, Settings, lack, peaks
from smidgen.profiling.benchmarks.training_run import spread
from smidgen.profiling.instruments.child import DONE, KILLED_BY_CAP, STOOD_STILL, Child, Line
from smidgen.profiling.instruments.environment import BenchmarkError
from smidgen.profiling.instruments.stepping import Work
from smidgen.profiling.models.cell import (
    BUDGETS,
    LABELLING,
    METHODS,
    PEERS,
    Cell,
    Proof,
    can_prove,
    few_cores,
    placed,
)

BASES = (
    *("albert-base", "distilbert", "bert-base", "bert-large"),
    *("roberta-base", "roberta-large", "xlm-roberta-base"),
    *("smollm2-135m", "qwen2.5-0.5b", "llama-3.2-1b"),
)


def is_random(base: str) -> bool:
    return base in CONFIGS and not Path(base).is_dir()


def pick_bases(more: Sequence[str], only: Sequence[str]) -> list[str]:
    """The rows: the usual ones and one's own, or those of them that are picked.

    Raises:
        BenchmarkError: One that is picked is no row.
        BaseError: One of one's own is not there.
    """
    rows = list(dict.fromkeys([*BASES, *more]))
    for base in only:
        known = ", ".join(rows)
        demand(base in rows, f"--only {base} is not a row; one of {known}", BenchmarkError)
    picked = [base for base in rows if base in only] if only else rows
    for base in picked:  # each is there, before hours of work
        if not is_random(base):
            open_base(base)
    return picked


def pick_cells(
    like: Cell, bases: Sequence[str], methods: Sequence[str], budgets: Sequence[str]
) -> list[Cell]:
    """Every cell that is wanted, not measured yet, one base after the other.

    Args:
        like: Gives batch, tokens, adapter and instruction set.
        bases: The rows.
        methods: Some of `METHODS`; empty: all.
        budgets: Of our engines; empty: the usual ones.

    Raises:
        BenchmarkError: A method that is not known.
    """
    for method in methods:
        known = ", ".join(METHODS)
        demand(method in METHODS, f"--method {method} is not one of {known}", BenchmarkError)
    chosen = [method for method in METHODS if method in methods] if methods else METHODS
    found = []
    for base in bases:
        for method in chosen:
            of_budget = ("",) if method in PEERS else dict.fromkeys(budgets or BUDGETS)
            adapter = "all weights" if method == "full" else like.adapter
            for budget in of_budget:
                cell = replace(like, base=base, method=method, budget=budget, adapter=adapter)
                found.append(cell)
    return found


def draw(cells: Sequence[Cell], sample: int | None, seed: int) -> list[Cell]:
    """Some of the cells in their order, drawn by the seed; all without a number.

    Raises:
        BenchmarkError: More than there are, or none.
    """
    if sample is None:
        return list(cells)
    if not 1 <= sample <= len(cells):
        raise BenchmarkError(f"--sample {sample}: 1 to {len(cells)} cells are there to draw from")
    chosen = random.Random(seed).sample(range(len(cells)), sample)
    return [cells[index] for index in sorted(chosen)]


def size_of_work(base: str) -> float:
    """How much a step on a base computes beside other bases: layers times width squared."""
    shape = shape_of(hub_config(base)) if is_random(base) else open_base(base).shape
    return float(shape.layers * shape.hidden**2)


UNSTABLE = 0.15  # interquartile range over median
PROOF_STEPS = 2  # the second holds the optimizer's state from its beginning
LOADING_S, SLOWER = 120.0, 10.0  # of a run on a board
LABELLED_BATCHES = 4
Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """How cells are measured.

    Attributes:
        steps: Steps that count.
        warmup: Steps before them.
        patience_s: Seconds of steps after which no more are begun, once there are three.
        threads: Threads of every process; None for what its libraries take.
        seed: Seed of texts and random weights.
    """

    steps: int = 5
    warmup: int = 1
    patience_s: float = 40.0
    threads: int | None = None
    seed: int = 0


def settings_of(cell: Cell, asked: Asked) -> Settings:
    """A cell as the training benchmark is asked for it.

    Raises:
        BenchmarkError: A value is out of range.
    """
    is_peer = cell.method in PEERS
    return Settings(
        base=cell.base,
        is_random=is_random(cell.base),
        engine="torch" if is_peer else cell.method,
        batch=cell.batch,
        tokens=cell.tokens,
        adapter="lora:8" if cell.method == "full" else cell.adapter,
        memory_budget=cell.budget or AUTO,
        isa=cell.isa,
        **asdict(asked),
    )


def measure(cell: Cell, asked: Asked, say: Say = lambda text: None) -> Cell:
    """Measure a cell; whatever comes of it is in the cell that is returned.

    Args:
        cell: What is wanted.
        asked: How it is measured.
        say: Told what is done just now.
    """
    cell = replace(cell, asked=asdict(asked))
    missing = _missing(cell)
    if missing:
        return replace(cell, outcome=f"not available here: {missing}")
    try:
        say("looking for the base")
        benchmark = Benchmark(settings_of(cell, asked))
        cell = replace(cell, parameters=count_parameters(benchmark.base))
        if cell.method in PEERS:
            say("making its checkpoint")
            benchmark.prepare(cell.method)
        return _measured(cell, benchmark, say)
    except Refused as refusal:
        return _refused(cell, refusal)
    except BenchmarkError as error:
        return replace(cell, outcome=str(error))


def _measured(cell: Cell, benchmark: Benchmark, say: Say) -> Cell:
    cell = _trained(cell, _launch(benchmark, cell, "train", say))
    labelling = _shorter(benchmark, LABELLED_BATCHES, warmup=1)
    cell = _labelled(cell, _launch(labelling, cell, "label", say))
    return _placed(cell, benchmark, say) if cell.is_done else cell


def prove(cell: Cell, asked: Asked, say: Say = lambda text: None) -> Cell:
    """A cell that was measured where no hard group could be had, with its runs on boards.

    Args:
        cell: Measured to its end.
        asked: How it was.
        say: Told what is done just now.
    """
    try:
        say("looking for the base")
        benchmark = Benchmark(settings_of(cell, asked))
        if cell.method in PEERS:
            say("making its checkpoint")
            benchmark.prepare(cell.method)
        return _placed(cell, benchmark, say)
    except BenchmarkError:
        return cell  # it stays as it was measured


def _placed(cell: Cell, benchmark: Benchmark, say: Say) -> Cell:
    short = _shorter(benchmark, PROOF_STEPS, warmup=0)

    def attempt(board_bytes: int) -> Proof:
        say(f"a run on a board of {size(board_bytes)}")
        return _on_board(short, cell, board_bytes)

    return placed(cell, attempt if can_prove() else None)


def _shorter(benchmark: Benchmark, steps: int, warmup: int) -> Benchmark:
    return Benchmark(replace(benchmark.settings, steps=steps, warmup=warmup), benchmark)


def _launch(benchmark: Benchmark, cell: Cell, work: Work, say: Say) -> Child:
    verb = {"train": "step", "label": "batch to label"}[work]

    def listen(line: Line) -> None:
        if line["event"] == "step":
            say(f"{verb} {line['index'] + 1} took {line['elapsed_s']:.1f} s")

    say({"train": "starting to train", "label": "starting to label"}[work])
    return benchmark.launch(cell.method, work, listen=listen)


def _trained(cell: Cell, child: Child) -> Cell:
    done, found = child.done, peaks(child)
    steps_s = counted(child)
    around = spread(steps_s)
    energies = [line["energy_j"] for line in _steps(child) if line["energy_j"] is not None]
    trained = done.get("trained_parameters")
    plan: dict[str, Any] | None = done.get("plan")
    return replace(
        cell,
        outcome=child.outcome,
        dtype=plan["dtype"] if plan else done.get("dtype"),
        trained_parameters=trained,
        round_bytes=None if trained is None else 4 * trained,
        peak_rss_bytes=found["peak_rss_bytes"] or None,
        peak_anon_bytes=found["peak_anon_bytes"] or None,
        steps_s=steps_s,
        step_j=tuple(energies) if energies and len(energies) == len(steps_s) else None,
        plan=plan,
        is_unstable=bool(around and around["iqr"] > UNSTABLE * around["median"]),
    )


def _labelled(cell: Cell, child: Child) -> Cell:
    is_missed = cell.is_done and child.outcome != DONE
    return replace(
        cell,
        outcome=f"{LABELLING}{child.outcome}" if is_missed else cell.outcome,
        texts_per_s=tuple(cell.batch / elapsed_s for elapsed_s in counted(child)),
        label_peak_rss_bytes=peaks(child)["peak_rss_bytes"] or None,
    )


def _steps(child: Child) -> list[Line]:
    return [line for line in child.lines if line["event"] == "step" and not line["is_warmup"]]


def counted(child: Child) -> tuple[float, ...]:
    return tuple(line["elapsed_s"] for line in _steps(child))


def _on_board(benchmark: Benchmark, cell: Cell, board_bytes: int) -> Proof:
    dropped = benchmark.drop_caches(cell.method)
    try:
        with few_cores():
            child = benchmark.launch(cell.method, "train", board_bytes, within_s=patience_s(cell))
    except BenchmarkError as error:
        is_budget = isinstance(error, Refused) and error.needed_bytes is not None
        return Proof(board_bytes, is_done=False, outcome=str(error), is_broken=not is_budget)
    return proof_of(child, board_bytes, dropped)


def patience_s(cell: Cell) -> float:
    """Seconds that a run on a board may take: ten times its steps without a limit, and two minutes.

    Where memory is short by little, the kernel drops the program's own pages and reads them again,
    for hours: that is not a board on which one trains.
    """
    return LOADING_S + SLOWER * PROOF_STEPS * max(cell.steps_s, default=0.0)


def proof_of(child: Child, board_bytes: int, dropped: str) -> Proof:
    """What a run says about a board: it came to its end, or its memory killed it, or nothing.

    Args:
        child: The run.
        board_bytes: The limit that was asked for.
        dropped: What was done to the page cache before.
    """
    cap, outcome = child.cap, child.outcome
    is_hard = cap.limit_bytes == board_bytes
    return Proof(
        board_bytes,
        is_done=is_hard and outcome == DONE,
        outcome=outcome if is_hard else f"without a hard limit: {outcome}",
        peak_bytes=cap.peak_bytes,
        cap=f"{cap.note}; {dropped}",
        limit_bytes=cap.limit_bytes,
        is_broken=not is_hard or outcome not in (DONE, KILLED_BY_CAP, STOOD_STILL),
    )


def _missing(cell: Cell) -> str:
    if cell.isa and cell.method == "onnx":
        return f"ONNX Runtime has no switch that holds it to {cell.isa}"
    spec = parse_adapter(cell.adapter) if cell.method in ("peft", "nf4") else None
    if spec is not None and (not spec.rank or spec.head or spec.ranks):
        return f"others are measured with LoRA alone, not with {cell.adapter}"
    return lack(cell.method)


def _refused(cell: Cell, refusal: Refused) -> Cell:
    if refusal.needed_bytes is None:
        return replace(cell, outcome=str(refusal))
    outcome = f"does not fit: needs {size(refusal.needed_bytes)} at least"
    return replace(cell, outcome=outcome, needed_bytes=refusal.needed_bytes)


def count_parameters(base: Base) -> int:
    with base.open_weights() as weights:
        return sum(prod(weights.shape(name)) for name in weights.names)

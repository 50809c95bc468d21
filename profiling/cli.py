"""`smidgen profile`: tables and charts of what was measured, and benchmarks that measure."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from edge_client.bases.base import open_base
from edge_client.bases.random_models import CONFIGS
from edge_client.engine.opening import ENGINE_HELP
from edge_client.errors import demand
from edge_client.outputs import OutputError, check_out_file
from edge_client.planning.sizes import AUTO, parse_size
from edge_client.tables import show, tell
from profiling.benchmarks.exactness import Question, compare
from profiling.benchmarks.grid import BATCHES, GRID_BITS, SHAPES, Case, grid, run_grid
from profiling.benchmarks.report import (
    exactness_table,
    grid_table,
    last_part,
    machine_notes,
    named,
    ratio_notes,
    train_notes,
    train_table,
)
from profiling.benchmarks.training import PEERS, Benchmark, Settings, peers_here
from profiling.benchmarks.training_run import ratios
from profiling.instruments.bases import BenchmarkError
from profiling.instruments.child import Line, terminable
from profiling.instruments.machine import this_machine
from profiling.rounds import cost_by_round, read_figures
from profiling.rounds_picture import draw_rounds, file_title
from profiling.rounds_report import rounds_table

app = typer.Typer(
    help="Tables and charts of what was measured, and benchmarks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

BudgetOption = Annotated[
    str,
    typer.Option(
        "--memory-budget",
        help="Memory that our plan may take, such as 512M or 1.5G (steps of 1024); auto: 60 % of "
        "what is available.",
    ),
]
AdapterOption = Annotated[
    str, typer.Option("--adapter", help="What is trained: lora:8, lora:8@q,v, prompt:8 or bias.")
]
TokensOption = Annotated[int, typer.Option("--tokens", help="Length of each text in tokens.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", help="Threads of every process, 1 or more; by default one per core."),
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seed of texts and random weights; equal seeds, equal texts.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")
]
PICTURES = (".png", ".svg", ".pdf")


@app.callback()
def profile() -> None:
    """Tables and charts of what was measured, and benchmarks."""


@app.command()
def rounds(
    figures: Annotated[
        Path, typer.Argument(help="File that `smidgen coordinator figures --out FILE` wrote.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Chart to write: a .png, .svg or .pdf file.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show what each round of a run gave and cost."""
    if out is not None:
        check_out_file("--out", out, PICTURES)
        demand(out.parent.is_dir(), f"--out {out}: there is no folder {out.parent}", OutputError)
    costs = cost_by_round(read_figures(figures))
    if out is not None:
        draw_rounds(costs, out, file_title(figures, costs))
    if json_output:
        print(json.dumps({"rounds": [asdict(cost) for cost in costs]}))
    else:
        show(rounds_table(costs))
        if out is not None:
            print(f"written  {out}")


@app.command("train")
def train_steps(
    base: Annotated[
        str, typer.Option(help="Pack, folder, hub name, `embedded`; with --random a shape's name.")
    ],
    is_random: Annotated[
        bool, typer.Option("--random", help="Random weights of a shape such as roberta-large.")
    ] = False,
    bits: Annotated[
        int | None,
        typer.Option(
            help="Bits of the base's weights: 4, 8 or 16; by default its own, or 4 with --random."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "torch",
    batch: Annotated[int, typer.Option(help="Texts in a step, 1 or more.")] = Settings.batch,
    tokens: TokensOption = Settings.tokens,
    adapter: AdapterOption = Settings.adapter,
    memory_budget: BudgetOption = AUTO,
    cgroup: Annotated[
        str | None,
        typer.Option(
            help="Hard cap around our process, by a memory cgroup, such as 512M; needs root. By "
            "default none."
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Steps to measure, 1 or more; the median is shown.")
    ] = Settings.steps,
    warmup: Annotated[
        int, typer.Option(help="Steps to take before measuring, 0 or more.")
    ] = Settings.warmup,
    peers: Annotated[
        bool, typer.Option("--peers", help="Run every peer that is installed too, without a cap.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Run this peer too; may be repeated: {', '.join(PEERS)}."),
    ] = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write train.json in; by default nothing is.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Train a few steps in a fresh process: seconds, peak memory, and what was predicted."""
    if out is not None:
        check_out_file("--out", out / "train.json")
    with terminable():
        settings = Settings(
            base=base,
            is_random=is_random,
            bits=bits,
            engine=engine,
            batch=batch,
            tokens=tokens,
            adapter=adapter,
            memory_budget=memory_budget,
            cap_bytes=None if cgroup is None else parse_size("--cgroup", cgroup),
            steps=steps,
            warmup=warmup,
            threads=threads,
            seed=seed,
        )
        names = _peer_names(peers, peer or [], settings)
        with _status("looking for the base") as say:
            benchmark = Benchmark(settings)
            for name in names:
                say(f"{name}: making its checkpoint")
                benchmark.prepare(name)
            runs = [benchmark.ours(_follow(say, named(settings.engine)))]
            for name in names:
                runs.append(benchmark.peer(name, _follow(say, name)))
        found = ratios(runs[0], runs[1:])
        rows = [run.to_json() for run in runs]
        result = {"runs": rows, "ratios": found} if names else rows[0]
        _write(out, "train.json", json.dumps(result, indent=2))
    if json_output:
        print(json.dumps(result))
    else:
        show(train_table(runs))
        tell((*ratio_notes(runs[0].engine, found), *train_notes(runs)))
    if not runs[0].is_done:
        raise typer.Exit(1)


@app.command("grid")
def predicted_peaks(
    out: Annotated[
        Path, typer.Option(help="Folder of grid.jsonl; the same command goes on where it ended.")
    ],
    base: Annotated[
        list[str] | None,
        typer.Option(help=f"A shape or a folder; may be repeated. By default {', '.join(SHAPES)}."),
    ] = None,
    bits: Annotated[
        list[int] | None,
        typer.Option(help="Bits of the weights: 4, 8 or 16; may be repeated. By default all."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Texts in a step; may be repeated. By default 1, 4 and 8."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(help="Run only so many cases, drawn by --seed; by default all of the grid."),
    ] = None,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = Settings.engine,
    tokens: TokensOption = Settings.tokens,
    adapter: AdapterOption = Settings.adapter,
    memory_budget: BudgetOption = AUTO,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
) -> None:
    """Compare predicted and measured peaks over shapes, bits and batches; takes long."""
    check_out_file("--out", out / "grid.jsonl")
    with terminable(), _status("looking for the first base") as say:
        common = Settings(
            base="",
            engine=engine,
            tokens=tokens,
            adapter=adapter,
            memory_budget=memory_budget,
            threads=threads,
            seed=seed,
        )
        for name in base or ():
            if name not in CONFIGS:
                open_base(name)  # every base is there, before hours of work
        for width in bits or ():
            demand(width in GRID_BITS, f"--bits {width} is not one of 4, 8 and 16")
        cases = grid(common, base or SHAPES, bits or GRID_BITS, batch or BATCHES, sample)
        out.mkdir(parents=True, exist_ok=True)

        def listen(number: int, case: Settings) -> None:
            name = f"{last_part(case.base)}, {case.bits} bits, {case.batch} texts"
            say(f"case {number + 1} of {len(cases)}: {name}")

        done = list(run_grid(cases, out / "grid.jsonl", listen))
    if json_output:
        print(json.dumps(_grid_result(done)))
    else:
        show(grid_table(done))
        print(f"within 15 %: {_grid_result(done)['close']} of {len(done)}")
    if any(case.error is None for case in done):
        raise typer.Exit(1)


@app.command("gradients")
def exact_gradients(
    base: Annotated[
        str, typer.Option(help="Pack, folder, hub name, `embedded`; with --random a shape's name.")
    ],
    is_random: Annotated[
        bool, typer.Option("--random", help="Random weights of a shape such as roberta-large.")
    ] = False,
    bits: Annotated[
        int | None,
        typer.Option(help="Bits of the base's weights: 4, 8 or 16; by default its own."),
    ] = None,
    engine: Annotated[str, typer.Option(help="Ours that is compared: torch or onnx.")] = (
        Question.engine
    ),
    adapter: AdapterOption = Question.adapter,
    batch: Annotated[int, typer.Option(help="Texts in a step, 1 or more.")] = Question.batch,
    tokens: TokensOption = Question.tokens,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
) -> None:
    """Compare every plan's gradients with plain PyTorch + PEFT; exit code 1 if one is not exact."""
    with terminable():
        question = Question(base, is_random, bits, adapter, batch, tokens, seed, engine)
        with _status("looking for the base") as say:

            def listen(line: Line) -> None:
                if line["event"] == "plan":
                    say(f"a plan with {len(line['plan']['recompute'])} recomputed layers is done")

            say("the reference, in float64")
            found = compare(question, listen)
    if json_output:
        print(json.dumps(found.to_json()))
    else:
        show(exactness_table(found.plans))
        plain = f"plain PyTorch + PEFT in float32 is itself {found.plain_error:.1e} off"
        tell((plain, *machine_notes(asdict(this_machine()), ())))
    if not found.is_exact:
        raise typer.Exit(1)


def _grid_result(cases: list[Case]) -> Mapping[str, Any]:
    errors = [abs(case.error) for case in cases if case.error is not None]
    return {
        "cases": [asdict(case) | {"error": case.error} for case in cases],
        "close": sum(case.is_close for case in cases),
        "worst_error": max(errors, default=None),
    }


def _peer_names(every: bool, chosen: list[str], settings: Settings) -> list[str]:
    for name in chosen:
        if name not in PEERS:
            raise BenchmarkError(f"--peer {name} is not known; one of {', '.join(PEERS)}")
    here, notes = peers_here() if every else ([], [])
    names = list(dict.fromkeys([*here, *chosen]))
    spec = settings.spec
    if names and (not spec.rank or spec.head):
        raise BenchmarkError(f"peers train LoRA alone; --adapter {settings.adapter} is another")
    for note in notes:
        print(f"smidgen profile: {note}", file=sys.stderr)
    return names


@contextmanager
def _status(first: str) -> Iterator[Callable[[str], None]]:
    with Console(stderr=True).status(first) as status:
        yield status.update


def _follow(say: Callable[[str], None], name: str) -> Callable[[Line], None]:
    """Say how far a child is."""

    def listen(line: Line) -> None:
        if line["event"] == "step":
            say(f"{name}: step {line['index'] + 1} took {line['elapsed_s']:.1f} s")

    say(f"{name}: starting")
    return listen


def _write(out: Path | None, name: str, text: str) -> None:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text + "\n", encoding="utf-8")

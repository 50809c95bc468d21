"""`smidgen profile train`, `gradients`, `grid`: steps in fresh processes, beside peers."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.bases.random_models import CONFIGS
from smidgen.edge_client.engine.budgeted import ready_engine
from smidgen.edge_client.engine.opening import ENGINE_HELP, engine_name
from smidgen.edge_client.errors import demand
from smidgen.edge_client.options import options_of
from smidgen.edge_client.outputs import check_out_file
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.plan import AUTO, parse_size
from smidgen.edge_client.tables import show, tell
from smidgen.profiling.benchmarks.exactness import Question, compare
from smidgen.profiling.benchmarks.report import (
    BATCHES,
    GRID_BITS,
    SHAPES,
    exactness_table,
    grid,
    grid_table,
    is_close,
    machine_notes,
    named,
    ratio_notes,
    run_grid,
    train_notes,
    train_table,
)
from smidgen.profiling.benchmarks.training import (
    NO_WORDS,
    PEERS,
    Benchmark,
    Settings,
    lack,
    peers_here,
)
from smidgen.profiling.benchmarks.training_run import TRAIN_FILE, TrainingRun, ratios, to_record
from smidgen.profiling.commands.options import (
    AdapterOption,
    BudgetOption,
    DeviceOption,
    JsonOption,
    SeedOption,
    ThreadsOption,
    TokensOption,
    added_to,
    working,
)
from smidgen.profiling.instruments.child import Line, terminable
from smidgen.profiling.instruments.environment import ISAS, BenchmarkError, this_machine
from smidgen.profiling.peers.ort import ORT_TRAINING
from smidgen.profiling.records.record import append, last_part, new_session

CGROUP = (
    "Hard memory limit for smidgen's process, by a cgroup, such as 512M; needs root. Default: none."
)


@options_of(
    Settings,
    without=("cap_bytes", "patience_s"),
    is_random={"flag": "--random"},
    is_tagging={"flag": "--tagging"},
    engine={"default": AUTO},
    isa={"help": f"Limit torch to an older instruction set: {', '.join(ISAS)}."},
)
def train_steps(
    call: Callable[..., Settings],
    engine: str,
    device: str,
    cgroup: Annotated[str | None, typer.Option(help=CGROUP)] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also run every installed peer, without a limit.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Also run this peer; repeatable: {', '.join(PEERS)}."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"Folder; a record per process is appended to its {TRAIN_FILE}."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Train a few steps in a fresh process: time, peak memory, and the predicted peak."""
    path = added_to(out, TRAIN_FILE)
    with terminable():
        settings = call(
            engine=engine_name(engine, device) if engine == AUTO else engine,
            cap_bytes=None if cgroup is None else parse_size("--cgroup", cgroup),
        )
        names = _peer_names(peers, peer or [], settings)
        with working("looking for the base") as say:
            benchmark = Benchmark(settings)
            for name in names:
                say(f"{name}: making its checkpoint")
                benchmark.prepare(name)
            session, runs = new_session(), list[TrainingRun]()
            for name in ("", *names):
                listen = _follow(say, name or named(settings.engine))
                runs.append(benchmark.peer(name, listen) if name else benchmark.ours(listen))
                if path is not None:  # at once: whatever ends the next ones, this one is kept
                    append(path, [to_record(runs[-1], session)])
        found = ratios(runs[0], runs[1:])
        rows = [run.to_json() for run in runs]
        result = {"runs": rows, "ratios": found} if names else rows[0]
    if json_output:
        print(json.dumps(result))
    else:
        show(train_table(runs))
        tell((*benchmark.notes, *ratio_notes(runs[0].engine, found), *train_notes(runs)))
    if not runs[0].is_done:
        raise typer.Exit(1)


def _peer_names(every: bool, chosen: list[str], settings: Settings) -> list[str]:
    for name in chosen:
        if name not in PEERS:
            raise BenchmarkError(f"--peer {name} is not known; one of {', '.join(PEERS)}")
        if why := NO_WORDS if settings.masked and name == ORT_TRAINING else lack(name):
            raise BenchmarkError(f"--peer {name}: {why}")
    here, notes = peers_here(asks_for_words=settings.masked > 0) if every else ([], [])
    names = list(dict.fromkeys([*here, *chosen]))
    spec = settings.spec
    if names and (not spec.rank or spec.head or spec.ranks):
        raise BenchmarkError(f"peers train LoRA alone; --adapter {settings.adapter} is another")
    if names and settings.device != CPU:
        raise BenchmarkError(
            f"--device {settings.device}: peers compute on the processor; leave --device or the "
            "peers away"
        )
    for note in notes:
        print(f"smidgen profile: {note}", file=sys.stderr)
    return names


def _follow(say: Callable[[str], None], name: str) -> Callable[[Line], None]:

    def listen(line: Line) -> None:
        if line["event"] == "step":
            say(f"{name}: step {line['index'] + 1} took {line['elapsed_s']:.1f} s")

    say(f"{name}: starting")
    return listen


@options_of(Question, is_random={"flag": "--random"})
def exact_gradients(call: Callable[[], Question], json_output: JsonOption = False) -> None:
    """Compare every plan's gradients with plain PyTorch + PEFT. Exit code 1 if one is not exact."""
    with terminable():
        question = call()
        with working("looking for the base") as say:

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


def predicted_peaks(
    out: Annotated[Path, typer.Option(help="Folder for grid.jsonl; the same command resumes.")],
    base: Annotated[
        list[str] | None,
        typer.Option(help=f"A shape or a folder; repeatable. Default: {', '.join(SHAPES)}."),
    ] = None,
    bits: Annotated[
        list[int] | None,
        typer.Option(help="Bits of the weights: 4, 8 or 16; repeatable. Default: all."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Texts per step; repeatable. Default: 1, 4 and 8."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(help="Run only this many cases, drawn by --seed. Default: the whole grid."),
    ] = None,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = AUTO,
    device: DeviceOption = CPU,
    tokens: TokensOption = Settings.tokens,
    adapter: AdapterOption = Settings.adapter,
    memory_budget: BudgetOption = AUTO,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
) -> None:
    """Compare predicted and measured peak memory over shapes, bits and batches. Takes hours."""
    check_out_file("--out", out / "grid.jsonl")
    with terminable(), working("looking for the first base") as say:
        common = Settings(
            base="",
            engine=engine_name(engine, device) if engine == AUTO else engine,
            device=device,
            tokens=tokens,
            adapter=adapter,
            memory_budget=memory_budget,
            threads=threads,
            seed=seed,
        )
        ready_engine(engine, device)
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
    if any(case.prediction_error is None for case in done):
        raise typer.Exit(1)


def _grid_result(cases: list[TrainingRun]) -> Mapping[str, Any]:
    errors = [abs(case.prediction_error) for case in cases if case.prediction_error is not None]
    return {
        "cases": [case.to_json() for case in cases],
        "close": sum(map(is_close, cases)),
        "worst_error": max(errors, default=None),
    }

"""`smidgen profile train`: a few steps in a fresh process, and its peers beside it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from edge_client.engine.opening import ENGINE_HELP, engine_name
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO, parse_size
from edge_client.tables import show, tell
from profiling.benchmarks.report import named, ratio_notes, train_notes, train_table
from profiling.benchmarks.training import PEERS, Benchmark, Settings, lack, peers_here
from profiling.benchmarks.training_run import TRAIN_FILE, TrainingRun, ratios, to_record
from profiling.commands.options import (
    AdapterOption,
    BudgetOption,
    DeviceOption,
    IsaOption,
    JsonOption,
    SeedOption,
    ThreadsOption,
    TokensOption,
    added_to,
    working,
)
from profiling.instruments.bases import BenchmarkError
from profiling.instruments.child import Line, terminable
from profiling.records.record import append, new_session


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
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = AUTO,
    device: DeviceOption = CPU,
    batch: Annotated[int, typer.Option(help="Texts in a step, 1 or more.")] = Settings.batch,
    tokens: TokensOption = Settings.tokens,
    adapter: AdapterOption = Settings.adapter,
    masked: Annotated[
        int,
        typer.Option(
            help="Tokens of each text at which all words of the vocabulary are asked for, as in "
            "masked-language modelling; 0: each is asked for a label."
        ),
    ] = Settings.masked,
    is_tagging: Annotated[
        bool,
        typer.Option(
            "--tagging",
            help="Ask for one of nine tags at each token of a text, by an adapter with +head.",
        ),
    ] = Settings.is_tagging,
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
    isa: IsaOption = "",
    out: Annotated[
        Path | None,
        typer.Option(help=f"Folder of {TRAIN_FILE}, to which a record of each process is added."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Train a few steps in a fresh process: seconds, peak memory, and what was predicted."""
    path = added_to(out, TRAIN_FILE)
    with terminable():
        settings = Settings(
            base=base,
            is_random=is_random,
            bits=bits,
            engine=engine_name(engine, device) if engine == AUTO else engine,
            device=device,
            batch=batch,
            tokens=tokens,
            adapter=adapter,
            masked=masked,
            is_tagging=is_tagging,
            memory_budget=memory_budget,
            cap_bytes=None if cgroup is None else parse_size("--cgroup", cgroup),
            steps=steps,
            warmup=warmup,
            threads=threads,
            seed=seed,
            isa=isa,
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
        tell((*ratio_notes(runs[0].engine, found), *train_notes(runs)))
    if not runs[0].is_done:
        raise typer.Exit(1)


def _peer_names(every: bool, chosen: list[str], settings: Settings) -> list[str]:
    for name in chosen:
        if name not in PEERS:
            raise BenchmarkError(f"--peer {name} is not known; one of {', '.join(PEERS)}")
        if why := lack(name):
            raise BenchmarkError(f"--peer {name}: {why}")
    here, notes = peers_here() if every else ([], [])
    names = list(dict.fromkeys([*here, *chosen]))
    spec = settings.spec
    if names and (not spec.rank or spec.head or spec.ranks):
        raise BenchmarkError(f"peers train LoRA alone; --adapter {settings.adapter} is another")
    if names and (settings.masked or settings.is_tagging):
        raise BenchmarkError("peers ask for labels; leave --masked, --tagging or the peers away")
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

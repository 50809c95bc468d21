"""`smidgen profile grid`: predicted and measured peaks over shapes, bits and batches."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.bases.base import open_base
from edge_client.bases.random_models import CONFIGS
from edge_client.engine.budgeted import ready_engine
from edge_client.engine.opening import ENGINE_HELP, engine_name
from edge_client.errors import demand
from edge_client.outputs import check_out_file
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.tables import show
from profiling.benchmarks.grid import BATCHES, GRID_BITS, SHAPES, grid, is_close, run_grid
from profiling.benchmarks.report import grid_table
from profiling.benchmarks.training import Settings
from profiling.benchmarks.training_run import TrainingRun
from profiling.commands.options import (
    AdapterOption,
    BudgetOption,
    DeviceOption,
    JsonOption,
    SeedOption,
    ThreadsOption,
    TokensOption,
    working,
)
from profiling.instruments.child import terminable
from profiling.records.record import last_part


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
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = AUTO,
    device: DeviceOption = CPU,
    tokens: TokensOption = Settings.tokens,
    adapter: AdapterOption = Settings.adapter,
    memory_budget: BudgetOption = AUTO,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
) -> None:
    """Compare predicted and measured peaks over shapes, bits and batches; takes long."""
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

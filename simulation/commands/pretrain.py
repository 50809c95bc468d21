"""`smidgen simulate pretrain`: train the embedded base, or a multilingual one, from open texts."""

from pathlib import Path
from typing import Annotated

import typer


def pretrain(
    data: Annotated[Path, typer.Option(help="Folder of data sets.")],
    out: Annotated[Path, typer.Option(help="Folder of the base; OUT.work holds checkpoints.")],
    teacher: Annotated[Path | None, typer.Option(help="Folder of a BERT to learn from.")] = None,
    languages: Annotated[
        str | None,
        typer.Option(help="A multilingual base instead: all, or names as in amh,en,yor."),
    ] = None,
    federated: Annotated[
        bool, typer.Option("--federated", help="A silo a language; needs --languages.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, or rounds.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Training time, instead of --steps.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Root seed.")] = 0,
    threads: Annotated[int, typer.Option(help="Processor threads.")] = 2,
    json_output: Annotated[
        bool, typer.Option("--json", help="Last line of stdout: one JSON object.")
    ] = False,
) -> None:
    """Train a base; goes on from OUT.work when it was interrupted."""
    from simulation.pretraining.run import pretrain as make  # torch and transformers: seconds

    make(data, out, teacher, languages, federated, steps, minutes, seed, threads, json_output)

"""`python -m benchmarks leakage`: what adapters and updates tell of the texts behind them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.comparisons.leakage import Attacked, Leakage, attack
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.tables import Column, Table, show
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.datasets.catalogue import read_dataset

NAMES = tuple(one.name for one in fields(Leakage))
HEADS = (
    *("accuracy", "by loss", "by fall", "by shadows", "sure", "canaries", "exposure"),
    *("of 1", "of 8", "words"),
)
NOTES = (
    "by loss, fall, shadows; canaries: area under the curve of texts trained on beside others, 50 "
    "is chance; sure: members found by shadows at 1 % of false alarms; exposure: in bits, 1.3 by "
    "chance; of 1, of 8, words: texts found by an update of so many, or words of one text, among "
    "ten times as many candidates, 10 is chance",
)


def leakage(
    dataset: Annotated[str, typer.Option(help="As experiments name it.")] = "ag_news",
    data: Annotated[Path | None, typer.Option(help="Folder of data sets.")] = None,
    base: Annotated[str, typer.Option(help="Base; of `full` a Hugging Face folder.")] = EMBEDDED,
    adapter: Annotated[
        list[str] | None, typer.Option(help="Adapter, or `full`; repeatable. Default: lora:8.")
    ] = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=100.0, help="Of each text, 0 for none; repeatable."),
    ] = None,
    clip: Annotated[float, typer.Option(help="Of each text's gradient.")] = 1.0,
    texts: Annotated[int, typer.Option(min=20, max=100_000, help="Texts trained on.")] = 200,
    epochs: Annotated[int, typer.Option(min=1, max=1000, help="Passes over them.")] = 10,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Texts in a step.")] = 16,
    lr: Annotated[float, typer.Option(help="Learning rate of AdamW.")] = 0.005,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Number of seeds.")] = 3,
    json_output: JsonOption = False,
) -> None:
    """Attack adapters and updates: which texts were trained on?"""
    found = read_dataset(dataset, data)
    training = Training(epochs=epochs, batch=batch, lr=lr, tokens=64)
    cells: list[tuple[str, float, list[Leakage]]] = []
    with Console(stderr=True).status("") as status:
        for name in adapter or ["lora:8"]:
            for budget in epsilon or [0.0]:
                asked = Attacked(name, training, texts, budget, clip)
                status.update(f"{name}, epsilon {budget:g}")
                runs = [attack(replace(asked, seed=seed), base, found) for seed in range(seeds)]
                cells.append((name, budget, runs))
    if json_output:
        plain = [
            {"adapter": name, "epsilon": budget or None, "seeds": [asdict(one) for one in runs]}
            for name, budget, runs in cells
        ]
        print(json.dumps({"dataset": dataset, "cells": plain}))
        return
    rows = [[name, f"{budget:g}" if budget else "-", *_cells(runs)] for name, budget, runs in cells]
    columns = [Column("adapter", "text"), Column("epsilon"), *map(Column, HEADS)]
    show(Table(columns, rows, f"{dataset}, {texts} texts, {epochs} passes", NOTES))


def _cells(runs: Sequence[Leakage]) -> Iterator[str]:
    """Mean and sample standard deviation over seeds, in % but for bits."""
    for name in NAMES:
        scale = 1.0 if name == "exposure" else 100.0
        values = [scale * getattr(one, name) for one in runs]
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        yield f"{mean(values):.1f}{spread}"

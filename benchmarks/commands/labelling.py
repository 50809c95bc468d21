"""`python -m benchmarks labelling`: texts labelled in a processor second, beside transformers."""

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.comparisons.labelling import PEER, Labelled, Labelling, measured
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tables import Column, Table, show, size
from smidgen.profiling.peers.torch_checkpoint import prepare
from smidgen.simulation.datasets.catalogue import read_dataset

HEADS = ("texts/s", "least to most", "beside transformers", "peak", "beside", "other answers")
NOTES = ("by processor time, one thread, alternating; answers: labels unlike transformers'",)


def labelling(
    base: Annotated[str, typer.Option(help="Base.")] = EMBEDDED,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="onnx, torch or torch-float32; repeatable. Default: onnx, torch."),
    ] = None,
    texts: Annotated[int, typer.Option(min=16, max=100_000, help="Texts read.")] = 1000,
    together: Annotated[
        int | None, typer.Option(min=1, help="Texts asked for at once, as 8 in a round.")
    ] = None,
    times: Annotated[int, typer.Option(min=1, max=100, help="Runs of each.")] = 3,
    dataset: Annotated[str, typer.Option(help="As experiments name it.")] = "ag_news",
    data: Annotated[Path | None, typer.Option(help="Folder of data sets.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Label texts: how many in a processor second, in how much memory, beside transformers?"""
    is_known = {*(engine or ())} <= {"onnx", "torch", "torch-float32"}
    demand(is_known, "--engine: onnx, torch or torch-float32 is expected")
    read_dataset(dataset, data)  # an error comes before the work
    found: dict[str, list[Labelled]] = {}
    with tempfile.TemporaryDirectory() as folder, Console(stderr=True).status("") as status:
        checkpoint = Path(folder) / "checkpoint"
        prepare(base, checkpoint, "float32")
        asked = Labelling(PEER, base, str(checkpoint), texts, together or texts)
        asked = replace(asked, dataset=dataset, data=None if data is None else str(data))
        for time in range(times):
            for who in (PEER, *(engine or ["onnx", "torch"])):
                status.update(f"{who}, run {time + 1}")
                found.setdefault(who, []).append(measured(replace(asked, who=who)))
    if json_output:
        print(json.dumps({who: [asdict(run) for run in runs] for who, runs in found.items()}))
        return
    rows = [[who, *_row(runs, found[PEER])] for who, runs in found.items()]
    title = f"{base}, {len(found[PEER][0].answers)} texts of {dataset}"
    show(Table([Column("who"), *map(Column, HEADS)], rows, title, NOTES))


def _row(runs: list[Labelled], peer: list[Labelled]) -> list[str]:
    rates = [len(run.answers) / run.processor_s for run in runs]
    ratio = [b.processor_s / a.processor_s for a, b in zip(runs, peer, strict=True)]
    peak, theirs = (max(run.peak_rss_bytes for run in some) for some in (runs, peer))
    others = sum(a != b for a, b in zip(runs[0].answers, peer[0].answers, strict=True))
    return [
        f"{median(rates):.1f}",
        f"{min(rates):.1f} to {max(rates):.1f}",
        f"{median(ratio):.2f} x",
        size(peak),
        f"{peak / theirs:.2f} x",
        str(others),
    ]

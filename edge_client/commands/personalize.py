"""`smidgen client personalize`: an adapter of this device's own, of the ranks that it needs."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edge_client.api.personalize import PersonalAdapter, personalize
from edge_client.bases.base import EMBEDDED
from edge_client.commands.console import (
    BaseOption,
    BudgetOption,
    DataOption,
    DelimiterOption,
    DeviceOption,
    EncodingOption,
    EngineOption,
    JsonOption,
    LabelColumnOption,
    TaskOption,
    TextColumnOption,
)
from edge_client.personal.way import Way
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.tables import Column, Table, show, size
from edge_client.tasks.kind import measure_called
from edge_client.wire.training import Training

GENERATOR = "Folder of the net that a +generator or +rates run gave."
METHOD = (
    "How ranks are chosen: fedp2eft (by a generator; the default with one), bt-lora (the default "
    "without), adalora, lora, uniform, random; fedl2p, plain ones at learned rates; "
    "head, a classification head in their place; "
    "or tuned, the --shared adapter trained on, and interpolated, some of the way back from there."
)
BUDGET = (
    "R: as many ranks as R times the modules there are, wherever they are needed; if not said, "
    "half the bank's, or fewer where --memory-budget wants it."
)
HEAD = "none of its own: a classification head"
SHARED = "Folder of the shared adapter to compare with; by default the base alone."
ABOVE = "Train it above --shared, which stays as it is; the folder written holds both."


def personalize_command(
    data: DataOption,
    out: Annotated[Path, typer.Option(help="PEFT adapter folder to write.")],
    task: TaskOption = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    device: DeviceOption = CPU,
    memory_budget: BudgetOption = AUTO,
    generator: Annotated[Path | None, typer.Option(metavar="FOLDER", help=GENERATOR)] = None,
    method: Annotated[str, typer.Option(help=METHOD)] = "",
    rank_budget: Annotated[int | None, typer.Option(help=BUDGET)] = None,
    shared: Annotated[Path | None, typer.Option(metavar="FOLDER", help=SHARED)] = None,
    above: Annotated[bool, typer.Option("--above", help=ABOVE)] = False,
    epochs: Annotated[int, typer.Option(help="Passes over the texts.")] = Way.epochs,
    batch: Annotated[int, typer.Option(help="Texts per optimizer step.")] = Way.batch,
    lr: Annotated[float, typer.Option(help="AdamW's learning rate.")] = Way.lr,
    tokens: Annotated[int, typer.Option(help="Longest input in tokens.")] = Training.tokens,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Root seed.")] = 0,
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    json_output: JsonOption = False,
) -> None:
    """Make an adapter of this device's own, and compare it with the shared one on its test texts.

    Nothing leaves the device, and the shared adapter stays as it is.
    """
    done = personalize(
        data,
        out,
        task=task,
        base=base,
        engine=engine,
        device=device,
        memory_budget=memory_budget,
        generator=generator,
        method=method,
        rank_budget=rank_budget,
        shared=shared,
        above=above,
        epochs=epochs,
        batch=batch,
        lr=lr,
        tokens=tokens,
        seed=seed,
        text_column=text_column,
        label_column=label_column,
        delimiter=delimiter,
        encoding=encoding,
    )
    if json_output:
        print(json.dumps({"out": str(done.folder)} | _plain(done)))
        return
    if done.ranks:
        show(_ranks(done.ranks), file=Console().file)
    print(_facts(done, shared))


def _plain(done: PersonalAdapter) -> dict[str, object]:
    facts = asdict(done)
    del facts["folder"]
    return facts


def _ranks(ranks: Mapping[str, int]) -> Table:
    """Who got which rank: a row for each layer, a column for each linear."""
    names = [name.split(".") for name in ranks]
    layers, linears = dict.fromkeys(one[0] for one in names), dict.fromkeys(one[1] for one in names)
    columns = [Column("layer", "text"), *(Column(one) for one in linears)]
    rows = [[layer, *(str(ranks.get(f"{layer}.{one}", "")) for one in linears)] for layer in layers]
    return Table(columns, rows, "its own ranks; 0: none there")


def _facts(done: PersonalAdapter, shared: Path | None) -> str:
    whose = "the shared adapter" if shared else "the base alone"
    measure = measure_called(done.measure)
    kept, modules = sum(done.ranks.values()), sum(map(bool, done.ranks.values()))
    how = f"{kept} in {modules} of {len(done.ranks)} modules, by {done.method}"
    if not done.ranks:
        how = HEAD if done.method == "head" else f"those of the shared adapter, {done.method}"
    facts = {
        "ranks": how if done.alpha is None else f"{how}; alpha {done.alpha:g} of 1",
        "trained on": f"{done.num_examples} texts, loss {done.loss:.3f} in the last pass",
        measure.name: "not known: no test texts (a test.* beside the others)",
        "peak memory": f"{size(done.peak_rss_bytes)} measured, {size(done.predicted_peak_bytes)} "
        "predicted",
        "written to": str(done.folder),
        "next": f"smidgen client predict --adapter {done.folder} 'a text'",
    }
    if done.score is not None:
        own, texts = measure.in_words(done.score), f"on {done.test_examples} test texts"
        facts[measure.name] = f"{own}, {texts}; give --shared FOLDER to compare with it"
    if done.score is not None and done.score_shared is not None:
        other = measure.in_words(done.score_shared)
        facts[measure.name] = f"{own}, {whose} {other}, {texts}"
        better = f"this one, not {whose}" if done.is_better else f"{whose}: keep to it"
        said = "right more often" if done.measure == "accuracy" else "better"
        facts[said] = better if done.score != done.score_shared else "neither"
    return "\n".join(f"{name:<16} {value}" for name, value in facts.items())

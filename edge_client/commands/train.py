"""`smidgen client train`: train an adapter on this device's texts, all by itself."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from edge_client.api.train import MOST_ROUNDS, ROUNDS, TrainedAdapter, train
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
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.tables import size
from edge_client.tasks.kind import measure_called
from edge_client.wire.training import Training

WHICH = "lora:8, prompt:8, bias, head ...; by default lora:8, of tagging lora:8+head."
PROXIMAL = "mu of FedProx: pulls a round back to the weights that it began with; 0: not."


def train_alone(
    data: DataOption,
    out: Annotated[Path, typer.Option(help="PEFT adapter folder to write.")],
    task: TaskOption = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    device: DeviceOption = CPU,
    memory_budget: BudgetOption = AUTO,
    adapter: Annotated[str, typer.Option(help=WHICH)] = "",
    prompt_init: Annotated[str, typer.Option(help="Text a soft prompt starts from.")] = "",
    rounds: Annotated[
        int,
        typer.Option(min=1, max=MOST_ROUNDS, help="Rounds of training, on this device alone."),
    ] = ROUNDS,
    epochs: Annotated[int, typer.Option(help="Passes over the texts per round.")] = Training.epochs,
    batch: Annotated[int, typer.Option(help="Texts per optimizer step.")] = Training.batch,
    lr: Annotated[float, typer.Option(help="The optimizer's learning rate.")] = Training.lr,
    tokens: Annotated[int, typer.Option(help="Longest input in tokens.")] = Training.tokens,
    optimizer: Annotated[str, typer.Option(help="adamw or sgd.")] = Training.optimizer,
    momentum: Annotated[float, typer.Option(help="Of SGD, 0 to below 1.")] = Training.momentum,
    proximal: Annotated[float, typer.Option(help=PROXIMAL)] = Training.proximal,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Root seed.")] = 0,
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    json_output: JsonOption = False,
) -> None:
    """Train an adapter on this device's texts alone, and write it as a PEFT folder."""
    done = train(
        data,
        out,
        task=task,
        base=base,
        engine=engine,
        device=device,
        memory_budget=memory_budget,
        adapter=adapter,
        prompt_init=prompt_init,
        rounds=rounds,
        epochs=epochs,
        batch=batch,
        lr=lr,
        tokens=tokens,
        optimizer=optimizer,
        momentum=momentum,
        proximal=proximal,
        seed=seed,
        text_column=text_column,
        label_column=label_column,
        delimiter=delimiter,
        encoding=encoding,
        tell=_tell,
    )
    print(json.dumps(_answer(done)) if json_output else _table(done))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _answer(done: TrainedAdapter) -> Mapping[str, object]:
    facts = asdict(done)
    return {"out": str(facts.pop("folder"))} | facts


def _table(done: TrainedAdapter) -> str:
    before, after = done.score_before, done.score_after
    measure = measure_called(done.measure)
    facts = {
        "trained on": f"{done.num_examples} texts, loss {done.loss:.3f} in the last pass",
        measure.name: "not known: no test texts (a test.* beside the others)",
        "peak memory": _memory(done),
        "written to": str(done.folder),
        "next": f"smidgen client predict --adapter {done.folder} 'a text'",
    }
    if before is not None and after is not None:
        figures = [measure.in_words(one) for one in (before, after)]
        texts = f"on {done.test_examples} test texts"
        facts[measure.name] = f"{figures[0]} before, {figures[1]} after, {texts}"
    return "\n".join(f"{name:<14} {value}" for name, value in facts.items())


def _memory(done: TrainedAdapter) -> str:
    """The peak beside its prediction: of this process, or of the card with the process's after."""
    card = done.device_peak
    if card is None:
        return _peak(done.predicted_peak_bytes, done.peak_rss_bytes)
    allocated, process = size(card.allocated_bytes), size(done.peak_rss_bytes)
    if card.is_unified:
        both = _peak(done.predicted_peak_bytes, card.reserved_bytes + done.peak_rss_bytes)
        return f"{both} ({process} of it this process's own, {allocated} in the card's tensors)"
    reserved = _peak(done.predicted_peak_bytes, card.reserved_bytes)
    return f"on the card {reserved} ({allocated} in tensors); this process {process} measured"


def _peak(predicted_bytes: int, measured_bytes: int) -> str:
    told = f"{size(measured_bytes)} measured, {size(predicted_bytes)} predicted"
    if measured_bytes <= predicted_bytes:
        return told
    above = 100 * (measured_bytes / predicted_bytes - 1)
    return f"{told}: {above:.0f} % above the prediction; leave room for it in --memory-budget"

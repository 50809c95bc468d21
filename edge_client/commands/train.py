"""`smidgen client train`: train an adapter on this device's texts, all by itself."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from edge_client.adapters.initial import first_adapter
from edge_client.adapters.peft_folder import Exported, check_exportable, write_peft_folder
from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import EMBEDDED, open_base
from edge_client.commands.console import (
    BaseOption,
    BudgetOption,
    DataOption,
    EngineOption,
    JsonOption,
    TaskOption,
    task_for,
    training_of,
)
from edge_client.engine.budgeted import open_within
from edge_client.engine.engine import Engine
from edge_client.engine.trainer import Evaluation, evaluate, train
from edge_client.planning.guard import peak_rss_bytes
from edge_client.planning.sizes import AUTO, parse_budget
from edge_client.texts.examples import ClientData, read_folder
from edge_client.wire.messages import Training
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import encode_adapter


def train_alone(
    data: DataOption,
    out: Annotated[Path, typer.Option(help="PEFT adapter folder to write.")],
    task: TaskOption = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    memory_budget: BudgetOption = AUTO,
    adapter: Annotated[str, typer.Option(help="lora:8, prompt:8, bias, head ...")] = "lora:8",
    prompt_init: Annotated[str, typer.Option(help="Text a soft prompt starts from.")] = "",
    rounds: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Rounds of training, on this device alone.")
    ] = 1,
    epochs: Annotated[int, typer.Option(help="Passes over the texts per round.")] = Training.epochs,
    batch: Annotated[int, typer.Option(help="Texts per optimizer step.")] = Training.batch,
    lr: Annotated[float, typer.Option(help="AdamW's learning rate.")] = Training.lr,
    tokens: Annotated[int, typer.Option(help="Longest input in tokens.")] = Training.tokens,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Root seed.")] = 0,
    json_output: JsonOption = False,
) -> None:
    """Train an adapter on this device's texts alone, and write it as a PEFT folder."""
    opened, chosen, spec = open_base(base), task_for(task, data), parse_adapter(adapter)
    check_exportable(spec)
    texts = read_folder(data, chosen.labels)
    training = training_of(epochs, batch, lr, tokens)
    computer = open_within(engine, opened, chosen, spec, training, parse_budget(memory_budget))
    computer.load_adapter(first_adapter(opened, spec, chosen, prompt_init, seed, tokens))
    before, peak = _score(computer, texts), 0
    for round_index in range(1, rounds + 1):
        computer.load_adapter(computer.adapter())
        round_seed = derive_seed(seed, "train", "alone", round_index)
        trained = train(computer, texts.labelled, training, round_seed)
        peak = max(peak, peak_rss_bytes())
        computer.end_round()
    after, body = _score(computer, texts), encode_adapter(computer.adapter())
    origin = Exported(adapter, opened.peft_name, opened.base_id, opened.architecture, chosen)
    write_peft_folder(out, origin, body)
    result = {
        "out": str(out),
        "num_examples": trained.num_examples,
        "loss": trained.loss,
        "accuracy_before": before.accuracy if before else None,
        "accuracy_after": after.accuracy if after else None,
        "test_examples": after.num_examples if after else 0,
        "plan": asdict(computer.plan),
        "predicted_peak_bytes": computer.option.predicted_peak_bytes,
        "peak_rss_bytes": max(peak, peak_rss_bytes()),
    }
    print(json.dumps(result) if json_output else _table(result))


def _score(engine: Engine, texts: ClientData) -> Evaluation | None:
    return evaluate(engine, texts.test) if texts.test else None


def _table(result: Mapping[str, object]) -> str:
    return "\n".join(f"{name:<16} {value}" for name, value in result.items())

"""`smidgen client predict`: label texts with an adapter, or with the base alone."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from edge_client.adapters.peft_folder import is_exported, read_peft_folder
from edge_client.adapters.peft_import import read_peft_adapter
from edge_client.adapters.spec import AdapterSpec, parse_adapter
from edge_client.bases.base import EMBEDDED, Base, BaseError, open_base
from edge_client.commands.console import BaseOption, BudgetOption, EngineOption, JsonOption
from edge_client.engine.budgeted import open_within
from edge_client.errors import demand
from edge_client.planning.sizes import AUTO, parse_budget
from edge_client.texts.examples import Example
from edge_client.texts.ready_tasks import find_task
from edge_client.texts.tasks import Task, TaskError
from edge_client.wire.messages import Training
from edge_client.wire.tensors import AdapterState


def predict(
    texts: Annotated[list[str], typer.Argument(help="Texts to label.")],
    adapter: Annotated[
        Path | None, typer.Option(help="Exported adapter folder, or one PEFT itself saved.")
    ] = None,
    task: Annotated[
        Path | None, typer.Option(help="task.toml or a ready-made one; not with an export.")
    ] = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    memory_budget: BudgetOption = AUTO,
    json_output: JsonOption = False,
) -> None:
    """Label texts with an adapter, or with the base alone (zero-shot)."""
    opened = open_base(base)
    chosen, spec, state = _adapter(adapter, task, opened)
    budget = parse_budget(memory_budget)
    computer = open_within(engine, opened, chosen, spec, Training(), budget)
    if state is not None:
        computer.load_adapter(state)
    rows = computer.predict([Example(text) for text in texts])
    labels = [chosen.labels[int(row.argmax())] for row in rows]
    confidences = [round(math.exp(float(row.max())), 4) for row in rows]
    if json_output:
        answer = {"labels": labels, "confidences": confidences}
        print(json.dumps(answer | {"log_probabilities": rows.tolist()}))
        return
    for label, confidence, text in zip(labels, confidences, texts, strict=True):
        print(f"{label:<12} {confidence:.2f}  {text}")


def _adapter(
    folder: Path | None, task: Path | None, base: Base
) -> tuple[Task, AdapterSpec, AdapterState | None]:
    """Task, adapter and its values: exported here, made by PEFT elsewhere, or none at all."""
    demand(folder is None or folder.is_dir(), f"--adapter {folder}: there is no such folder")
    if folder is not None and is_exported(folder):
        origin, state = read_peft_folder(folder)
        if origin.base_id != base.base_id:
            raise BaseError(f"{folder} was trained on base {origin.base_name}; give --base with it")
        return origin.task, parse_adapter(origin.adapter), state
    if task is None:
        whose = "which labels this adapter has" if folder else "the base alone"
        raise TaskError(f"give --task task.toml for {whose}, or --adapter with an exported adapter")
    chosen = find_task(task)
    if folder is None:
        return chosen, parse_adapter("lora:1"), None
    return chosen, *read_peft_adapter(folder, base, len(chosen.labels))

"""`smidgen client train`: train an adapter on this device's texts, all by itself."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from edge_client.adapters.card import Card, licence_of
from edge_client.adapters.initial import first_adapter
from edge_client.adapters.peft_folder import (
    Exported,
    check_adapter_folder,
    check_exportable,
    write_peft_folder,
)
from edge_client.adapters.spec import AdapterSpec, parse_adapter
from edge_client.bases.base import EMBEDDED, Base, open_base
from edge_client.commands.console import (
    BaseOption,
    BudgetOption,
    DataOption,
    DelimiterOption,
    EncodingOption,
    EngineOption,
    JsonOption,
    LabelColumnOption,
    TaskOption,
    TextColumnOption,
    task_for,
    training_of,
)
from edge_client.commands.run import version
from edge_client.engine.budgeted import open_within
from edge_client.engine.engine import Engine
from edge_client.engine.trainer import Evaluation, Trained, evaluate, train
from edge_client.planning.guard import peak_rss_bytes
from edge_client.planning.sizes import AUTO, parse_budget
from edge_client.planning.words import plan_in_words
from edge_client.tables import share, size
from edge_client.texts.dialect import Dialect
from edge_client.texts.examples import ClientData, read_folder
from edge_client.texts.rows import DataError
from edge_client.texts.tasks import Task
from edge_client.wire.messages import Training
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import encode_adapter


@dataclass(frozen=True)
class Alone:
    """What is trained on one device.

    Attributes:
        base: The frozen base.
        task: Labels and patterns.
        adapter: The adapter's name.
        texts: The device's; some of them labelled.
        training: How each round trains.
        rounds: How often.
        seed: Root seed.
    """

    base: Base
    task: Task
    adapter: str
    texts: ClientData
    training: Training
    rounds: int
    seed: int


@dataclass(frozen=True)
class Rounds:
    """What training gave.

    Attributes:
        last: The last round's training.
        before: How the first adapter did on the test texts; None without any.
        after: How the last one did.
        peak_rss_bytes: Most memory of this process, measured.
    """

    last: Trained
    before: Evaluation | None
    after: Evaluation | None
    peak_rss_bytes: int


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
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    json_output: JsonOption = False,
) -> None:
    """Train an adapter on this device's texts alone, and write it as a PEFT folder."""
    check_adapter_folder("--out", out)
    budget, spec = parse_budget(memory_budget), _exportable(adapter)
    training, chosen = training_of(epochs, batch, lr, tokens), task_for(task, data)
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    texts = _texts(data, chosen, dialect)
    alone = Alone(open_base(base), chosen, adapter, texts, training, rounds, seed)
    first = first_adapter(alone.base, spec, chosen, prompt_init, seed, tokens)
    computer = open_within(engine, alone.base, chosen, spec, training, budget)
    computer.load_adapter(first)
    print(f"plan: {plan_in_words(computer.option)}", file=sys.stderr, flush=True)
    done = _train(computer, alone)
    origin = Exported(
        adapter, alone.base.peft_name, alone.base.base_id, alone.base.architecture, chosen
    )
    write_peft_folder(out, origin, encode_adapter(computer.adapter()), _card(alone, done))
    print(json.dumps(_answer(out, computer, done)) if json_output else _table(out, computer, done))


def _exportable(adapter: str) -> AdapterSpec:
    spec = parse_adapter(adapter)
    check_exportable(spec)
    return spec


def _texts(data: Path, task: Task, dialect: Dialect) -> ClientData:
    texts = read_folder(data, task.labels, dialect)
    if not texts.labelled:
        raise DataError(
            f"{data} holds no labelled texts to train on; put a labelled.csv with columns "
            "text,label there"
        )
    return texts


def _train(engine: Engine, alone: Alone) -> Rounds:
    before, peak = _score(engine, alone.texts), 0
    for round_index in range(1, alone.rounds + 1):
        engine.load_adapter(engine.adapter())
        seed = derive_seed(alone.seed, "train", "alone", round_index)
        trained = train(engine, alone.texts.labelled, alone.training, seed)
        peak = max(peak, peak_rss_bytes())
        engine.end_round()
    after = _score(engine, alone.texts)
    return Rounds(trained, before, after, max(peak, peak_rss_bytes()))


def _score(engine: Engine, texts: ClientData) -> Evaluation | None:
    return evaluate(engine, texts.test) if texts.test else None


def _card(alone: Alone, done: Rounds) -> Card:
    scores = {0: done.before, alone.rounds: done.after}
    accuracies = {index: score.accuracy for index, score in scores.items() if score}
    today = datetime.now(tz=timezone.utc).date().isoformat()
    return Card(alone.rounds, 1, accuracies, today, version(), licence_of(alone.base))


def _answer(out: Path, engine: Engine, done: Rounds) -> Mapping[str, object]:
    before, after = done.before, done.after
    return {
        "out": str(out),
        "num_examples": done.last.num_examples,
        "loss": done.last.loss,
        "accuracy_before": before.accuracy if before else None,
        "accuracy_after": after.accuracy if after else None,
        "test_examples": after.num_examples if after else 0,
        "plan": asdict(engine.plan),
        "predicted_peak_bytes": engine.option.predicted_peak_bytes,
        "peak_rss_bytes": done.peak_rss_bytes,
    }


def _table(out: Path, engine: Engine, done: Rounds) -> str:
    before, after = done.before, done.after
    facts = {
        "trained on": f"{done.last.num_examples} texts, loss {done.last.loss:.3f} in the last pass",
        "accuracy": "not known: no test texts (a test.csv beside the others)",
        "peak memory": _peak(engine.option.predicted_peak_bytes, done.peak_rss_bytes),
        "written to": str(out),
        "next": f"smidgen client predict --adapter {out} 'a text'",
    }
    if before is not None and after is not None:
        facts["accuracy"] = (
            f"{share(before.accuracy)} before, {share(after.accuracy)} after, on "
            f"{after.num_examples} test texts"
        )
    return "\n".join(f"{name:<12} {value}" for name, value in facts.items())


def _peak(predicted_bytes: int, measured_bytes: int) -> str:
    told = f"{size(measured_bytes)} measured, {size(predicted_bytes)} predicted"
    if measured_bytes <= predicted_bytes:
        return told
    above = 100 * (measured_bytes / predicted_bytes - 1)
    return f"{told}: {above:.0f} % above the prediction; leave room for it in --memory-budget"

"""`smidgen client`: join a run from a device, train alone, or use an adapter.

Only what is asked for is imported: torch not before there is work.
"""

import json
import logging
import math
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from edge_client.adapters.initial import initial_adapter
from edge_client.adapters.peft_folder import (
    Exported,
    check_exportable,
    is_exported,
    read_peft_folder,
    write_peft_folder,
)
from edge_client.adapters.peft_import import read_peft_adapter
from edge_client.adapters.spec import AdapterError, AdapterSpec, parse_adapter
from edge_client.bases.base import EMBEDDED, Base, BaseError, open_base
from edge_client.bases.header import WeightsError
from edge_client.client.state import StateError
from edge_client.commands.labels import Asked, tell_labels
from edge_client.commands.patterns import tell_patterns, tell_tasks
from edge_client.commands.plan import plan
from edge_client.engine.budgeted import open_within
from edge_client.engine.engine import Engine, EngineError
from edge_client.engine.opening import ENGINE_HELP
from edge_client.engine.trainer import Evaluation, TrainingError, evaluate, train
from edge_client.planning.guard import peak_rss_bytes
from edge_client.planning.sizes import AUTO, BudgetError, parse_budget, parse_cache_size
from edge_client.texts.examples import ClientData, Example, check_folder, read_folder
from edge_client.texts.ready_tasks import find_task
from edge_client.texts.rows import DataError
from edge_client.texts.tasks import Task, TaskError
from edge_client.wire.messages import Training, WireError
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState, encode_adapter

app = typer.Typer(
    help="Run on a device: join a run, train alone, use an adapter.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

BaseOption = Annotated[str, typer.Option("--base", help="Folder, hub name, or `embedded`.")]
EngineOption = Annotated[str, typer.Option("--engine", help=ENGINE_HELP)]
BudgetOption = Annotated[
    str, typer.Option(help="Such as 512M or 1.5G; auto: 60 % of what is available now.")
]
DataOption = Annotated[
    Path, typer.Option("--data", help="Folder with labelled.csv, test.csv ..., or one file.")
]
TaskOption = Annotated[
    Path | None,
    typer.Option("--task", help="task.toml or a ready-made one; by default that in --data."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Last line of stdout: one JSON object.")]


@contextmanager
def one_line_errors(*others: type[Exception]) -> Iterator[None]:
    """Turn expected errors into one line and exit code 2 (wrong input) or 1 (failed working).

    Args:
        others: Wrong input too; only a command that speaks to a coordinator imports what does.
    """
    wrong_input: tuple[type[Exception], ...] = (
        *(AdapterError, BaseError, BudgetError, DataError),
        *(EngineError, TaskError, WeightsError),
        *others,
    )
    try:
        yield
    except wrong_input as error:
        _stop(2, str(error))
    except (TrainingError, WireError) as error:
        _stop(1, str(error))
    except KeyboardInterrupt:
        _stop(130, "stopped")


def _stop(code: int, message: str) -> NoReturn:
    print(f"smidgen client: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code)


@app.command()
def run(
    coordinator: Annotated[str, typer.Option(help="The coordinator's URL.")],
    data: DataOption,
    token: Annotated[
        str, typer.Option(envvar="SMIDGEN_TOKEN", help="Enrolment token; needed once.")
    ] = "",
    base: BaseOption = EMBEDDED,
    engine: EngineOption = "auto",
    memory_budget: BudgetOption = AUTO,
    state: Annotated[
        Path | None, typer.Option(help="State folder; ~/.local/state/smidgen/NAME by default.")
    ] = None,
    name: Annotated[str, typer.Option(help="The device's name; the host's by default.")] = "",
    cache_size: Annotated[
        str, typer.Option(help="Disk for what frozen layers give, such as 1G; 0: none.")
    ] = "256M",
    patience: Annotated[
        float, typer.Option(help="Seconds the coordinator may be absent at the start.")
    ] = 10.0,
    json_output: JsonOption = False,
) -> None:
    """Join a run and serve it until it is finished."""
    from edge_client.client.loop import Client, ClientError, Settings
    from edge_client.client.state import ClientState
    from edge_client.client.transport import TransportError

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with one_line_errors(ClientError, StateError, TransportError):
        check_folder(data)  # a folder that cannot serve is told before anybody is asked
        name = name or socket.gethostname()
        settings = Settings(
            url=coordinator.rstrip("/"),
            token=token,
            name=name,
            data=data,
            base=open_base(base),
            engine=engine,
            budget_bytes=parse_budget(memory_budget),
            cache_bytes=parse_cache_size(cache_size),
            version=version(),
            patience_s=patience,
        )
        folder = state or Path.home() / ".local" / "state" / "smidgen" / name
        client_state = ClientState(folder)
        with client_state.locked():
            summary = Client(settings, client_state).run()
    if json_output:
        print(json.dumps(asdict(summary) | {"peak_rss_bytes": peak_rss_bytes()}))
    else:
        print(f"{summary.device_id}: run finished, {summary.works} pieces of work done")


@app.command("train")
def train_alone(
    data: DataOption,
    out: Annotated[Path, typer.Option(help="PEFT adapter folder to write.")],
    task: TaskOption = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = "auto",
    memory_budget: BudgetOption = AUTO,
    adapter: Annotated[str, typer.Option(help="lora:8, prompt:8, bias, head ...")] = "lora:8",
    prompt_init: Annotated[str, typer.Option(help="Text a soft prompt starts from.")] = "",
    rounds: Annotated[int, typer.Option(help="Like rounds of a run, with this device only.")] = 1,
    epochs: Annotated[int, typer.Option()] = Training.epochs,
    batch: Annotated[int, typer.Option()] = Training.batch,
    lr: Annotated[float, typer.Option()] = Training.lr,
    tokens: Annotated[int, typer.Option(help="Longest input in tokens.")] = Training.tokens,
    seed: Annotated[int, typer.Option()] = 0,
    json_output: JsonOption = False,
) -> None:
    """Train an adapter on this device's texts alone, and write it as a PEFT folder."""
    with one_line_errors():
        opened, chosen, spec = open_base(base), _task(task, data), parse_adapter(adapter)
        check_exportable(spec)
        texts = read_folder(data, chosen.labels)
        training = _training(epochs, batch, lr, tokens)
        budget = parse_budget(memory_budget)
        computer = open_within(engine, opened, chosen, spec, training, budget)
        prompt_ids = computer.encoder.tokens.encode(prompt_init)
        first = derive_seed(seed, "adapter")
        state = initial_adapter(spec, opened, len(chosen.labels), first, prompt_ids)
        computer.load_adapter(state)
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


@app.command()
def predict(
    texts: Annotated[list[str], typer.Argument(help="Texts to label.")],
    adapter: Annotated[
        Path | None, typer.Option(help="Exported adapter folder, or one PEFT itself saved.")
    ] = None,
    task: Annotated[
        Path | None, typer.Option(help="task.toml or a ready-made one; not with an export.")
    ] = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = "auto",
    memory_budget: BudgetOption = AUTO,
    json_output: JsonOption = False,
) -> None:
    """Label texts with an adapter, or with the base alone (zero-shot)."""
    with one_line_errors():
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


app.command()(plan)


@app.command()
def tasks(json_output: JsonOption = False) -> None:
    """List the ready-made tasks, which `--task` knows by name."""
    tell_tasks(json_output)


@app.command()
def patterns(
    data: DataOption,
    task: TaskOption = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = "auto",
    write: Annotated[
        bool, typer.Option("--write", help="Put the best one first in the task.toml.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Ask this device's labelled texts by each pattern of a task: which one is right most often?"""
    with one_line_errors():
        chosen, file = _task(task, data), _own_task_file(task, data) if write else None
        tell_patterns(chosen, data, base, engine, file, json_output)


@app.command()
def labels(
    state: Annotated[Path, typer.Option(help="State folder of a client that runs no more.")],
    data: Annotated[Path | None, typer.Option(help="The device's texts, to show them.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="By default the newest.")] = None,
    revoke: Annotated[
        str | None, typer.Option(help="Id of a text whose label is taken back for good.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSONL file of the surest labels; needs --data.")
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Least one of a label written to --out.")
    ] = 0.9,
    json_output: JsonOption = False,
) -> None:
    """List how this device has read its unlabelled texts; take a label back; write them out."""
    with one_line_errors(StateError):
        tell_labels(Asked(state, run_id, data, revoke, out, confidence), json_output)


def version() -> str:
    """Version of the installed client."""
    try:
        return metadata.version("smidgen")
    except metadata.PackageNotFoundError:
        return "unknown"


def _task_file(data: Path) -> Path:
    return (data if data.is_dir() else data.parent) / "task.toml"


def _task(path: Path | None, data: Path) -> Task:
    return find_task(path or _task_file(data))


def _own_task_file(path: Path | None, data: Path) -> Path:
    """The task file to write: the one that was read, or a new one for a ready-made task."""
    if path is not None and path.is_file():
        return path
    file = _task_file(data)
    if path is not None and file.exists():
        raise TaskError(f"--write would replace {file} by --task {path}; leave --task out")
    return file


def _adapter(
    folder: Path | None, task: Path | None, base: Base
) -> tuple[Task, AdapterSpec, AdapterState | None]:
    """Task, adapter and its values: exported here, made by PEFT elsewhere, or none at all."""
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


def _training(epochs: int, batch: int, lr: float, tokens: int) -> Training:
    try:
        return Training(epochs=epochs, batch=batch, lr=lr, tokens=tokens)
    except ValueError as error:
        raise TaskError(f"--{error}") from error


def _score(engine: Engine, texts: ClientData) -> Evaluation | None:
    return evaluate(engine, texts.test) if texts.test else None


def _table(result: Mapping[str, object]) -> str:
    return "\n".join(f"{name:<16} {value}" for name, value in result.items())

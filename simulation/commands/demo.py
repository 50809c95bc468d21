"""`smidgen demo`: see it work, then look at what it wrote."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from edge_client.adapters.peft_folder import check_exportable
from edge_client.adapters.spec import parse_adapter
from edge_client.api.given import training_of
from edge_client.bases.base import EMBEDDED, open_base
from edge_client.engine.opening import installed_engine
from edge_client.errors import Stopped, demand
from edge_client.planning.sizes import AUTO
from edge_client.tables import Column, Table, share, show
from edge_client.texts.ready_tasks import find_task
from edge_client.texts.rows import DataError
from edge_client.texts.tasks import Task, TaskError
from profiling.rounds_report import rounds_table
from simulation.demo.demo import Result, Setting, run_demo
from simulation.demo.messages import HOMES, write_client_folders
from simulation.population.folders import write_split

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MARK = ".smidgen-demo"
# (batch, learning rate): a soft prompt is a handful of vectors and wants more and larger steps
# than the other adapters.
RECIPES = {"prompt": (8, 6e-2)}
RECIPE = (16, 5e-3)


@app.command()
def demo(
    adapter: Annotated[str, typer.Option(help="lora:8, prompt:8 ...")] = "lora:8",
    rounds: Annotated[int, typer.Option(min=1, max=1_000_000, help="Server steps.")] = 10,
    base: Annotated[str, typer.Option(help="Folder, hub name, or `embedded`.")] = EMBEDDED,
    engine: Annotated[
        str, typer.Option(help="auto, torch or onnx; a list is dealt to the homes in turn.")
    ] = AUTO,
    out: Annotated[Path, typer.Option(help="Folder for all it writes.")] = Path("smidgen-demo"),
    data: Annotated[Path | None, typer.Option(help="Your own labelled file; needs --task.")] = None,
    test: Annotated[Path | None, typer.Option(help="Labelled test file for --data.")] = None,
    task: Annotated[Path | None, typer.Option(help="task.toml for --data.")] = None,
    clients: Annotated[int, typer.Option(min=1, max=64, help="Devices for --data.")] = 4,
    labels: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Labelled texts in all for --data.")
    ] = 64,
    epochs: Annotated[int, typer.Option(help="Passes over the texts per round.")] = 1,
    batch: Annotated[int | None, typer.Option(help="Texts per optimizer step.")] = None,
    lr: Annotated[float | None, typer.Option(help="AdamW's learning rate.")] = None,
    tokens: Annotated[int, typer.Option(help="Longest input in tokens.")] = 64,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Root seed.")] = 0,
    json_output: Annotated[
        bool, typer.Option("--json", help="Last line: one JSON object.")
    ] = False,
) -> None:
    """Start a coordinator and four devices on this machine and train one adapter together."""
    console = Console(stderr=json_output)
    check_exportable(parse_adapter(adapter))
    open_base(base)  # before an earlier demo's folder is made empty
    for option, value in {"--task": task, "--test": test}.items():
        demand(value is None or data is not None, f"{option} says nothing without --data FILE")
    engines = tuple(installed_engine(name.strip()) for name in engine.split(","))
    usual = RECIPES.get(adapter.split(":")[0], RECIPE)
    training = training_of(
        epochs,
        usual[0] if batch is None else batch,
        usual[1] if lr is None else lr,
        tokens,
    )
    _clear(out)
    try:
        if data is not None:
            folders = _own_data(out / "devices", data, test, task, clients, labels, seed)
        else:
            folders = write_client_folders(out / "devices", HOMES)
        setting = Setting(out, base, adapter, rounds, training, seed, engines)
        result = _run(setting, folders, console)
    except KeyboardInterrupt as error:
        raise Stopped("stopped; no process is left behind") from error
    _tell(result, setting, folders, console)
    if json_output:
        print(json.dumps(result.summary()))


def _run(setting: Setting, folders: Sequence[Path], console: Console) -> Result:
    columns = (TextColumn("{task.description:<32}"), BarColumn(), TextColumn("{task.fields[of]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        line = bar.add_task("starting", total=setting.rounds, of=f"0/{setting.rounds} rounds")

        def progress(phase: str, done: int) -> None:
            of = f"{done}/{setting.rounds} rounds"
            bar.update(line, description=phase, completed=done, of=of)

        result = run_demo(setting, folders, progress)
        progress("done", setting.rounds)
    return result


def _own_data(
    out: Path,
    data: Path,
    test: Path | None,
    task: Path | None,
    clients: int,
    labels: int,
    seed: int,
) -> list[Path]:
    if task is None:
        raise TaskError("--data needs --task task.toml (labels, patterns, verbalizer)")
    chosen: Task = find_task(task)
    return write_split(out, data, test, chosen, clients, labels, seed)


def _clear(out: Path) -> None:
    """Make an empty folder of an earlier demo's or a new one; never delete anything else."""
    if out.exists() and any(out.iterdir()) and not (out / MARK).is_file():
        raise DataError(f"--out {out} holds other files; name a new folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).write_text("made by `smidgen demo`, which may delete this folder\n")


def _tell(result: Result, setting: Setting, folders: Sequence[Path], console: Console) -> None:
    compared = {
        "nobody (zero-shot)": result.compared.zero_shot,
        "each device alone (mean)": result.compared.alone,
        "  the same, on its own test texts": result.compared.alone_own,
        "all devices together": result.accuracy_final,
    }
    table = Table(
        [Column("who trained", "word"), Column("accuracy")],
        [[name, share(value)] for name, value in compared.items()],
        f"accuracy on the test texts of all {len(result.engines)} devices",
    )
    show(rounds_table(result.costs), table, file=console.file)
    summary = result.summary()
    console.print(
        f"per client and round: {summary['bytes_up_per_client_round'] / 1000:.1f} kB up, "
        f"{summary['bytes_down_per_client_round'] / 1000:.1f} kB down; "
        f"peak RSS of a client {summary['peak_rss_bytes'] / 1e6:.0f} MB; "
        f"{summary['seconds']:.0f} s in all\n"
        f"chart    {setting.out / 'rounds.png'}\n"
        f"figures  {setting.out / 'rounds.jsonl'}\n"
        f"adapter  {setting.out / 'adapter'} (a PEFT folder)\n"
        f"next     smidgen client predict --adapter {setting.out / 'adapter'}"
        f"{'' if setting.base == EMBEDDED else f' --base {setting.base}'} "
        "'parcel left with the neighbour at no 14'",
        highlight=False,
        soft_wrap=True,
    )

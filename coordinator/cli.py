"""`smidgen coordinator`: create a run, serve it, look at it, take its adapter home.

With `--json` the last line of stdout is one JSON object.
"""

import json
import logging
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from coordinator.config import RunConfig, read_run_config
from coordinator.serving.server import listen, serve, sole_server, url_of
from coordinator.serving.service import Service
from coordinator.storage.figures import accuracies, means, pseudo_labels, rows, write_jsonl
from coordinator.storage.keys import draw_secret, hash_secret
from coordinator.storage.runs import Created, config_of, create_run, find_run
from coordinator.storage.status import state_of, status_of
from coordinator.storage.store import DATABASE, Store, StoreError
from edge_client.adapters.peft_folder import Exported, write_peft_folder
from edge_client.wire.figures import by_round

app = typer.Typer(
    help="Run on a server: create runs, serve them to devices, export the adapter.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Where = Annotated[Path, typer.Option("--store", help="Folder of the coordinator's store.")]
Which = Annotated[str | None, typer.Option("--run", help="Run id or name; by default the newest.")]
Only = Annotated[str | None, typer.Option("--run", help="Run id or name; by default, all runs.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")]


def _open(folder: Path) -> Store:
    if not (folder / DATABASE).is_file():
        raise StoreError(f"no store at {folder}; make one with `create`, or name it with --store")
    return Store(folder)


def _answer(text: str, answer: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(answer, sort_keys=True) if as_json else text, flush=True)


@app.command()
def create(
    store: Where,
    file: Annotated[Path | None, typer.Argument(help="Run file; not needed with --task.")] = None,
    task: Annotated[Path | None, typer.Option(help="Task file or ready-made task.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    base: Annotated[str | None, typer.Option(help="Base: folder, hub name, `embedded`.")] = None,
    adapter: Annotated[str | None, typer.Option(help="lora:8, prompt:8, bias, head ...")] = None,
    prompt_init: Annotated[str | None, typer.Option(help="Text a soft prompt starts from.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    fraction: Annotated[float | None, typer.Option(help="Share of devices per round.")] = None,
    min_clients: Annotated[int | None, typer.Option(help="Devices to wait for at first.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the texts per round.")] = None,
    batch: Annotated[int | None, typer.Option(help="Texts per optimizer step.")] = None,
    lr: Annotated[float | None, typer.Option(help="AdamW's learning rate.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Longest input in tokens.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds until a step closes.")] = None,
    seed: Annotated[int | None, typer.Option(help="Root seed.")] = None,
    labelling: Annotated[
        bool, typer.Option("--labelling", help="Let devices label texts.")
    ] = False,
    infer_every: Annotated[int | None, typer.Option(help="Label before every Nth round.")] = None,
    infer_clients: Annotated[
        int | None, typer.Option(help="Devices that label each time; 0: all.")
    ] = None,
    keep_first: Annotated[
        float | None,
        typer.Option(help="Most texts a device may pseudo-label before round 1, as a share."),
    ] = None,
    keep_last: Annotated[float | None, typer.Option(help="The same before the last round.")] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Least confidence a pseudo-label needs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a run; print its id and its enrolment token, which is not shown again."""
    flags = {
        "task": str(task) if task else None,
        "name": name,
        "base": base,
        "adapter": adapter,
        "prompt_init": prompt_init,
        "rounds": rounds,
        "fraction": fraction,
        "min_clients": min_clients,
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "tokens": tokens,
        "deadline_s": deadline,
        "seed": seed,
        "labelling": labelling,
        "infer_every": infer_every,
        "infer_clients": infer_clients,
        "keep_first": keep_first,
        "keep_last": keep_last,
        "confidence": confidence,
    }
    config = read_run_config(file, flags)
    with closing(Store(store)) as opened:
        created = create_run(opened, config, time.time())
    _announce(config, created, as_json)


def _announce(config: RunConfig, created: Created, as_json: bool) -> None:
    text = f"run {created.run_id} ({config.name})\nenrolment token {created.token}"
    answer = {"run_id": created.run_id, "name": config.name, "token": created.token}
    _answer(text, answer, as_json)


@app.command(name="serve")
def serve_command(
    store: Where,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8700,
    run: Annotated[Path | None, typer.Option(help="Run file; its run is created if new.")] = None,
    exit_when_finished: Annotated[bool, typer.Option(help="Exit after the last run.")] = False,
    as_json: Json = False,
) -> None:
    """Serve all runs of a store until Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    with (
        listen(host, port) as bound,
        closing(Store(store)) as opened,
        sole_server(store, opened),
    ):
        if run is not None:
            _create_if_new(opened, run, as_json)
        service, url, stop = Service(opened, time.time()), url_of(bound), threading.Event()

        def announce() -> None:
            print(f"listening on {url}", flush=True)

        serve(service, bound, announce, stop, exit_when_finished)
        if as_json:
            runs = [status_of(opened, item) for item in opened.runs()]
            print(json.dumps({"url": url, "runs": runs}, sort_keys=True), flush=True)


def _create_if_new(store: Store, file: Path, as_json: bool) -> None:
    config = read_run_config(file, {})
    if config.name not in {config_of(run).name for run in store.runs()}:
        _announce(config, create_run(store, config, time.time()), as_json)


@app.command()
def status(store: Where, run: Only = None, as_json: Json = False) -> None:
    """Show each run's phase and round, and how many of the asked devices have answered."""
    with closing(_open(store)) as opened:
        chosen = opened.runs() if run is None else [find_run(opened, run)]
        table = [status_of(opened, item) for item in chosen]
        newest = status_of(opened, find_run(opened, run))
    if as_json:
        print(json.dumps(newest | {"runs": table}, sort_keys=True))
        return
    shown = Table(
        "run", "name", "phase", "rounds", "devices", "answered", "accuracy", "pseudo-labels"
    )
    for item in table:
        last = list(item["accuracy_by_round"].values())[-1:]
        held = list(item["pseudo_labels_by_round"].values())[-1:]
        shown.add_row(
            item["run_id"],
            item["name"],
            item["phase"],
            f"{item['round_index']} of {item['rounds']}",
            str(len(item["devices"])),
            f"{item['answers']} of {item['asked']}",
            f"{last[0]:.3f}" if last else "",
            f"{held[0]}" if held else "",
        )
    Console().print(shown)


@app.command()
def figures(
    store: Where,
    out: Annotated[Path | None, typer.Option(help="JSONL file, one row per answer.")] = None,
    run: Which = None,
    as_json: Json = False,
) -> None:
    """Show what each round gave and cost; with --out, write a row per device's answer."""
    with closing(_open(store)) as opened:
        chosen = find_run(opened, run)
        table = rows(opened, chosen.run_id)
        if out is not None:
            write_jsonl(table, out)
    accuracy, loss = accuracies(table), means(table, "train", "loss")
    labels = pseudo_labels(table)
    if as_json:
        answer = {"run_id": chosen.run_id, "rows": len(table), "out": str(out) if out else None}
        print(
            json.dumps(
                answer | {"accuracy_by_round": accuracy, "pseudo_labels_by_round": labels},
                sort_keys=True,
            )
        )
        return
    columns = ("accuracy", "train loss", "pseudo-labels", "answers", "failed")
    shown = Table("round", *columns, "bytes up", "bytes down")
    for index, mine in by_round(table).items():
        shown.add_row(
            str(index),
            f"{accuracy[index]:.3f}" if index in accuracy else "",
            f"{loss[index]:.3f}" if index in loss else "",
            str(labels[index]) if index in labels else "",
            str(len(mine)),
            str(sum(row["outcome"] == "failed" for row in mine)),
            str(sum(row["bytes_up"] for row in mine)),
            str(sum(row["bytes_down"] for row in mine)),
        )
    Console().print(shown)


@app.command()
def export(
    store: Where,
    out: Annotated[Path, typer.Option(help="PEFT adapter folder to write.")],
    run: Which = None,
    as_json: Json = False,
) -> None:
    """Write the adapter of the last closed round as a folder that PEFT loads."""
    with closing(_open(store)) as opened:
        chosen = find_run(opened, run)
        config, state = config_of(chosen), state_of(opened, chosen)
        exported = Exported(
            adapter=config.adapter,
            base_name=chosen.base_reference,
            base_id=chosen.base_id,
            architecture=chosen.architecture,
            task=config.task,
        )
        write_peft_folder(out, exported, opened.read(state.adapter_sha256))
    answer = {
        "run_id": chosen.run_id,
        "round_index": state.round_index,
        "adapter_sha256": state.adapter_sha256,
        "out": str(out),
    }
    _answer(f"adapter of round {state.round_index} in {out}", answer, as_json)


@app.command()
def token(store: Where, run: Which = None, as_json: Json = False) -> None:
    """Print another enrolment token for a run; it is not shown again."""
    with closing(_open(store)) as opened:
        chosen, secret = find_run(opened, run), draw_secret()
        opened.add_token(hash_secret(secret), chosen.run_id)
    _answer(f"enrolment token {secret}", {"run_id": chosen.run_id, "token": secret}, as_json)

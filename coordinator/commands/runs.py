"""`smidgen coordinator list`, `export`, `figures`; orders: `pause`, `resume`, `stop` and others."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smidgen.coordinator.api.export import export as export_adapter
from smidgen.coordinator.api.stores import find_device, open_store, runs_told
from smidgen.coordinator.api.track import track
from smidgen.coordinator.commands.console import (
    JsonOption,
    NewestOption,
    StoreOption,
    answer,
    at_store,
)
from smidgen.coordinator.commands.status import COHORT
from smidgen.coordinator.fleet.presence import now_of
from smidgen.coordinator.operator.views import Told
from smidgen.coordinator.rounds.history import history_of
from smidgen.coordinator.rounds.machine import rounds_of
from smidgen.coordinator.rounds.orders import OrderKind
from smidgen.coordinator.rounds.scoring import heads_of, measures_of
from smidgen.coordinator.storage.database import StoreError, StorePlace
from smidgen.coordinator.storage.reports import (
    means,
    pseudo_labels,
    rows,
    scores_by_round,
    write_jsonl,
)
from smidgen.coordinator.storage.runs import (
    Order,
    add_order,
    config_of,
    find_run,
    lack_of_budget,
    order_of,
    state_of,
)
from smidgen.coordinator.storage.store import Run, Store
from smidgen.coordinator.upkeep.export import ExportedAdapter
from smidgen.coordinator.upkeep.forgetting import ask_to_forget, heirs_of
from smidgen.coordinator.watch.trackers import Figures
from smidgen.edge_client.errors import demand
from smidgen.edge_client.options import options_of
from smidgen.edge_client.outputs import OutputError, check_out_file
from smidgen.edge_client.tables import Column, Table, share, share_within, show, sizes, span
from smidgen.edge_client.tasks.kind import kind_named, kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.figures import Row, by_round, traffic_of

FIRST = (
    Column("run", "word"),
    Column("name", "text"),
    Column("phase", "word"),
    Column("round", "word"),
    Column("here", "word", optional=1),
)
LAST = (Column("loss", optional=3), Column("created", "word", optional=4))
NOTE = "here: of the devices that joined; {}, loss: the newest that are known"


@at_store
def list_runs(store: StoreOption, as_json: JsonOption = False) -> None:
    """List the runs of a store, the newest first."""
    now_s = now_of(store.folder)
    with closing(open_store(store)) as opened:
        found = runs_told(opened, now_s)
    if as_json:
        print(json.dumps({"runs": found}, sort_keys=True))
        return
    if not found:
        print("no run yet; `smidgen coordinator create` makes one")
        return
    measures = measures_of(one["kind"] for one in found)
    rows = [
        [
            one["run_id"],
            one["name"],
            "stopped" if one["is_stopped"] else one["phase"],
            f"{one['round_index']} of {one['rounds']}",
            f"{one['here']} of {one['devices']}",
            _score(one),
            "-" if one["loss"] is None else f"{one['loss']:.3f}",
            f"{span(now_s - one['created_at_s'])} ago",
        ]
        for one in found
    ]
    columns = [*FIRST, Column(heads_of(measures), optional=2), *LAST]
    said = NOTE.format(", ".join(dict.fromkeys(measure.word for measure in measures)))
    show(Table(columns, rows, notes=[said]))


def _score(one: Told) -> str:
    key = kind_named(one["kind"]).measure.key
    return share_within(one[key], one[f"{key}_error"])


ROUND = (
    "Round whose adapter to write: a number, the best by evaluation, or the last closed one; "
    "default: the one that the run keeps, the last unless its run file says otherwise."
)


@at_store
@options_of(export_adapter, without=("round_index", "database", "blobs"))
def export(
    call: Callable[..., ExportedAdapter],
    out: Path,
    round_index: Annotated[
        str | None, typer.Option("--round", metavar="N|best|last", help=ROUND)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a round's adapter as a folder that PEFT loads, by default what the run keeps."""
    found = call(round_index=None if round_index is None else round_of(round_index))
    plain = {
        "run_id": found.run_id,
        "round_index": found.round_index,
        "is_trained": found.is_trained,
        "adapter_sha256": found.adapter_sha256,
        "out": str(out),
    }
    if not found.is_trained:
        why = "" if found.rounds else ": no round of training has closed yet"
        print(
            f"smidgen coordinator: this is the untrained adapter of round 0{why}", file=sys.stderr
        )
    if found.best_round not in (None, found.round_index) and round_index is None:
        print(
            f"smidgen coordinator: by evaluation round {found.best_round} was best; --round best "
            "takes its adapter",
            file=sys.stderr,
        )
    if found.lacks:
        print(f"smidgen coordinator: {found.lacks}", file=sys.stderr)
    answer(f"adapter of round {found.round_index} of {found.run_id} in {out}", plain, as_json)


def round_of(text: str) -> int | Literal["best", "last"]:
    """What --round says.

    Raises:
        WrongInput: It is something else.
    """
    if text == "best":
        return "best"
    if text == "last":
        return "last"
    is_number = text.isascii() and text.isdecimal() and len(text) <= 7
    demand(is_number, f"--round {text[:40]!r}: a round's number, best or last expected")
    return int(text)


PATIENCE_S = 10.0  # for the process that serves, which looks every second
SAID = {
    "pause": "is paused",
    "resume": "goes on",
    "stop": "is stopped",
    "extend": "is extended",
    "rollback": "went back",
}  # `forget` has words of its own


@at_store
def pause(store: StoreOption, run: NewestOption = None, as_json: JsonOption = False) -> None:
    """Let a run stand still: nobody is given work until `resume`.

    Answers to work that is open still count, and deadlines move by the pause.
    """
    _order(store, run, "pause", None, as_json)


@at_store
def resume(store: StoreOption, run: NewestOption = None, as_json: JsonOption = False) -> None:
    """Let a paused run go on."""
    _order(store, run, "resume", None, as_json)


@at_store
def stop(store: StoreOption, run: NewestOption = None, as_json: JsonOption = False) -> None:
    """End a run now, with the adapter of its last closed round; `extend` lets it go on."""
    _order(store, run, "stop", None, as_json)


@at_store
def extend(
    store: StoreOption,
    rounds: Annotated[
        int,
        typer.Option(
            help="Rounds of training until the run is finished, all in all; more than it has."
        ),
    ],
    run: NewestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a run more rounds; one that was finished or stopped goes on."""
    _order(store, run, "extend", rounds, as_json)


@at_store
def rollback(
    store: StoreOption,
    round_index: Annotated[
        int, typer.Option("--round", help="Round whose adapter it goes on from; 0 is the first.")
    ],
    run: NewestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a run go on from the adapter that it had after an earlier round.

    Rounds are counted on, and an open step is given up. A run that is paused goes on; one that is
    finished has that adapter from now on, and `extend` gives it more rounds.
    """
    _order(store, run, "rollback", round_index, as_json)


@at_store
def forget(
    store: StoreOption,
    device: Annotated[str, typer.Argument(help="Its name or id.")],
    as_json: JsonOption = False,
) -> None:
    """Forget a device: what is known of it is deleted, and its share taken out of all adapters.

    It is revoked. Each run that it was in goes back to the last adapter that it had no part in, and
    its rounds since then are trained again without it; one that is finished has that adapter from
    now on, and `extend` trains the rest. What the others gave in those rounds is lost, for they
    started from adapters with its share.
    """
    with closing(open_store(store)) as opened:
        found, now_s = find_device(opened, device), time.time()
        heirs = [config_of(run).name for run in heirs_of(opened, found.device_id)]
        orders = ask_to_forget(opened, found, now_s)
        is_served = opened.is_served()
        orders = [_awaited(opened, one) if is_served else one for one in orders]
        runs = {run.run_id: run for run in opened.runs()}
        told = [_forgotten(opened, runs[order.run_id], order) for order in orders]
    lines = [f"device {found.name} is forgotten", *(one.pop("said") for one in told)]
    where = "backups, exported adapters, trackers, logs and adapters that devices have fetched"
    keeps = (
        f"{where} cannot be called back: they hold its share, or its name, until you delete them"
    )
    lines.append(keeps if told else "it had no part in any run")
    if heirs:
        lines.append(f"not taken out of {', '.join(heirs)}, which started from an adapter with it")
    plain = {"device_id": found.device_id, "name": found.name, "runs": told, "heirs": heirs}
    answer("\n".join(lines), plain | {"forgotten_at_s": now_s}, as_json)


def _forgotten(store: Store, run: Run, order: Order) -> dict[str, Any]:
    """Where a run stands once a device's share is taken out of it."""
    state, config = state_of(store, run), config_of(run)
    name, index = f"run {config.name} ({run.run_id})", state.round_index
    if order.done_at_s is None:
        said = f"{name}: `smidgen coordinator serve` takes its share out"
    else:
        said = f"{name} has round {index} of {rounds_of(config, state)} without it"
        said += "; `smidgen coordinator extend` lets it go on" if state.is_finished else ""
    known = {"run_id": run.run_id, "order_id": order.order_id, "done_at_s": order.done_at_s}
    return known | {"round_index": index, "said": said}


def _order(
    store: StorePlace, named: str | None, kind: OrderKind, rounds: int | None, as_json: bool
) -> None:
    with closing(open_store(store)) as opened:
        run = find_run(opened, named)
        name = f"run {config_of(run).name} ({run.run_id})"
        order = add_order(opened, run, kind, rounds, time.time())
        order = _awaited(opened, order) if opened.is_served() else order
        lack = lack_of_budget(opened, run) if kind == "extend" else ""
    if order.refused:
        raise StoreError(f"cannot {kind} {name}: {order.refused}")
    more = {"extend": f" to {rounds} rounds", "rollback": f" to round {rounds}"}.get(kind, "")
    done = f"{name} {SAID[kind]}{more}"
    later = f"{name}: {kind}{more} is ordered; `smidgen coordinator serve` carries it out"
    lines = [done if order.done_at_s else later, *([lack] if lack else [])]
    answer("\n".join(lines), asdict(order), as_json)


def _awaited(store: Store, order: Order) -> Order:
    """The order once it was taken up; as it stands, where that takes long."""
    end = time.monotonic() + PATIENCE_S
    while order.done_at_s is None and time.monotonic() < end:
        time.sleep(0.05)
        order = order_of(store, order.order_id) or order
    return order


NOTES = (
    "round: 0 is the first adapter, before any training; {}; "
    "median: the median device's; loss: of training; labels: texts that devices labelled "
    "themselves",
    "answers: of devices, to train, label and evaluate; failed: those among them that say so",
)


@at_store
def figures(
    store: StoreOption,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write (JSONL): one row per task given to a device."),
    ] = None,
    run: NewestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each round gave and cost; with --out, write a row per task given to a device."""
    if out is not None:
        check_out_file("--out", out, sign='"round_index"')
        demand(out.parent.is_dir(), f"--out {out}: there is no folder {out.parent}", OutputError)
    with closing(open_store(store)) as opened:
        chosen = find_run(opened, run)
        table, task = rows(opened, chosen.run_id), config_of(chosen).task
        _, past = history_of(chosen.adapter_sha256, opened.journal(chosen.run_id))
        gave = scores_by_round(task, table, past.scores)
        if out is not None:
            write_jsonl([row | {"task": task.kind} for row in table], out)
    if as_json:
        plain: dict[str, Any] = {
            "run_id": chosen.run_id,
            "rows": len(table),
            "out": str(out) if out else None,
            "kind": task.kind,
            **gave,
            "pseudo_labels_by_round": pseudo_labels(table),
        }
        print(json.dumps(plain, sort_keys=True))
        return
    if not table:
        print(f"no device of run {chosen.run_id} has answered yet")
        return
    show(figures_table(table, task, gave))
    if out is not None:
        print(f"written  {out}")


@at_store
def track_command(
    store: StoreOption,
    to: Annotated[
        str,
        typer.Option(
            metavar="TRACKER[:WHERE]",
            help="csv:FILE, tensorboard:FOLDER, mlflow:URI, wandb:PROJECT or trackio:PROJECT.",
        ),
    ],
    run: NewestOption = None,
) -> None:
    """Log a run's rounds to an experiment tracker until it is finished, then its adapter.

    Started again, it goes on where it was.
    """

    def tell(index: int, figures: Figures) -> None:
        print(
            f"round {index}",
            *(f"{key} {figures[key]:.1%}" for key in ("accuracy", "f1") if key in figures),
            sep=", ",
            flush=True,
        )

    print(f"the run is finished; rounds logged: {track(store, to, run=run, tell=tell)}")


def figures_table(table: list[Row], task: Task, gave: Mapping[str, Mapping[int, Any]]) -> Table:
    """One row per round.

    Args:
        table: The run's answers.
        task: The run's.
        gave: What its evaluations gave, as `scores_by_round` tells it.
    """
    measure, loss, labels = (
        kind_of(task).measure,
        means(table, "train", "loss"),
        pseudo_labels(table),
    )
    scores, wrong, middle = (
        gave[f"{measure.key}{part}_by_round"] for part in ("", "_error", "_median")
    )
    words = gave["perplexity_by_round"]
    found = by_round(table)
    moved = traffic_of(table)
    sent, received = (
        sizes([sum(moved.bytes_of(row, way) for row in mine) for mine in found.values()])
        for way in ("up", "down")
    )
    lines = [
        [
            str(index),
            share_within(scores.get(index), wrong.get(index, 0.0)),
            share(middle.get(index)),
            *([f"{words[index]:.2f}" if index in words else "-"] if measure.has_perplexity else []),
            f"{loss[index]:.3f}" if index in loss else "-",
            str(labels[index]) if index in labels else "-",
            str(len(mine)),
            str(sum(row["outcome"] == "failed" for row in mine)),
            up,
            down,
        ]
        for (index, mine), up, down in zip(found.items(), sent, received, strict=True)
    ]
    drawn = [COHORT] if wrong else []
    oldest = min(found, default=0)
    lost = [f"rounds before {oldest} are no longer known"] if oldest > 1 else []
    said, answers = NOTES
    moved_by = f"sent, received: by all devices, {moved.note}"
    notes = (said.format(measure.note), answers, *drawn, *lost, moved_by)
    names = ("loss", "labels", "answers", "failed", "sent", "received")
    first = [Column("round"), Column(measure.word), Column("median", optional=1)]
    first += [Column("perplexity")] if measure.has_perplexity else []
    return Table([*first, *map(Column, names)], lines, notes=notes, more="--out FILE")

"""`smidgen coordinator figures`: what each round gave and cost, and a row per answer in a file."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, NewestOption, StoreOption, at_store
from coordinator.commands.status import COHORT
from coordinator.rounds.history import history_of
from coordinator.storage.figures import means, pseudo_labels, rows, scores_by_round, write_jsonl
from coordinator.storage.runs import config_of, find_run
from edge_client.errors import demand
from edge_client.outputs import OutputError, check_out_file
from edge_client.tables import Column, Table, share, share_within, show, sizes
from edge_client.tasks.kind import kind_of
from edge_client.tasks.task import Task
from edge_client.wire.figures import Row, by_round, traffic_of

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
        scores = history_of(chosen.adapter_sha256, opened.journal(chosen.run_id)).scores
        gave = scores_by_round(task, table, scores)
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

"""`smidgen coordinator figures`: what each round gave and cost, and a row per answer in a file."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, NewestOption, StoreOption
from coordinator.commands.status import COHORT
from coordinator.rounds.history import history_of
from coordinator.storage.figures import (
    accuracies,
    errors,
    means,
    medians,
    pseudo_labels,
    rows,
    write_jsonl,
)
from coordinator.storage.runs import find_run
from edge_client.errors import demand
from edge_client.outputs import OutputError, check_out_file
from edge_client.tables import Column, Table, share, share_within, show, sizes
from edge_client.wire.figures import Row, by_round, traffic_of

NOTES = (
    "round: 0 is the first adapter, before any training; accuracy: over all devices' test texts; "
    "median: the median device's; loss: of training; labels: texts that devices labelled "
    "themselves",
    "answers: of devices, to train, label and evaluate; failed: those among them that say so",
)


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
        table = rows(opened, chosen.run_id)
        scores = history_of(chosen.adapter_sha256, opened.journal(chosen.run_id)).scores
        wrong, middle = errors(scores), medians(scores)
        if out is not None:
            write_jsonl(table, out)
    if as_json:
        plain: dict[str, Any] = {
            "run_id": chosen.run_id,
            "rows": len(table),
            "out": str(out) if out else None,
            "accuracy_by_round": accuracies(table),
            "accuracy_error_by_round": wrong,
            "accuracy_median_by_round": middle,
            "pseudo_labels_by_round": pseudo_labels(table),
        }
        print(json.dumps(plain, sort_keys=True))
        return
    if not table:
        print(f"no device of run {chosen.run_id} has answered yet")
        return
    show(figures_table(table, wrong, middle))
    if out is not None:
        print(f"written  {out}")


def figures_table(
    table: list[Row], wrong: Mapping[int, float | None], middle: Mapping[int, float | None]
) -> Table:
    """One row per round.

    Args:
        table: The run's answers.
        wrong: Standard errors of accuracies by round; of rounds without one nothing.
        middle: The median device's accuracy by round.
    """
    accuracy, loss, labels = accuracies(table), means(table, "train", "loss"), pseudo_labels(table)
    found = by_round(table)
    moved = traffic_of(table)
    sent, received = (
        sizes([sum(moved.bytes_of(row, way) for row in mine) for mine in found.values()])
        for way in ("up", "down")
    )
    lines = [
        [
            str(index),
            share_within(accuracy.get(index), wrong.get(index, 0.0)),
            share(middle.get(index)),
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
    notes = (*NOTES, *drawn, *lost, f"sent, received: by all devices, {moved.note}")
    names = ("loss", "labels", "answers", "failed", "sent", "received")
    first = (Column("round"), Column("accuracy"), Column("median", optional=1))
    return Table([*first, *map(Column, names)], lines, notes=notes, more="--out FILE")

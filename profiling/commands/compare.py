"""`smidgen profile compare`: what two files of records say of each other; exit code 1 if worse."""

import json
from pathlib import Path
from typing import Annotated

import typer

from edge_client.errors import demand
from edge_client.tables import Column, Table, seconds, show, size, tell
from profiling.commands.options import JsonOption
from profiling.records.compare import ACROSS, CONFIDENT, Change, Comparison, compare
from profiling.records.record import RecordError, read_records

NOTES = (
    "before, after: medians; noise: within the tolerance, or repetitions that are not apart",
    f"sure: that they are apart (two-sided rank sum test, {100 * CONFIDENT:.0f} % is asked for: "
    "five repetitions beside five can decide, three beside three cannot), - of a figure measured "
    "once, which the tolerance decides; it is per figure: of many some are apart by chance",
)
NO_SAY = "peer, estimated, published: told as they are, without a say in the exit code"
RATIOS = (
    "ours : peer, each beside the peer of its own session, since machines differ; sure: beside "
    "whichever of the peer's repetitions brings both nearest together"
)


def compare_records(
    before: Annotated[Path, typer.Argument(help="File of records (.jsonl), the base line.")],
    after: Annotated[Path, typer.Argument(help="File of records to hold against it.")],
    tolerance: Annotated[
        float, typer.Option(help="Relative change that is none, such as 0.05; 0 to 1.")
    ] = 0.05,
    across: Annotated[
        list[str] | None,
        typer.Option(help=f"Compare although this differs; may be repeated: {', '.join(ACROSS)}."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Compare two files of records: better, worse or noise; exit code 1 if anything is worse."""
    demand(0 <= tolerance <= 1, f"--tolerance {tolerance:g} is not between 0 and 1", RecordError)
    for name in across or ():
        demand(name in ACROSS, f"--across {name}: one of {', '.join(ACROSS)}", RecordError)
    old, new = read_records(before), read_records(after)
    tell([note for note in (old.note, new.note) if note])
    found = compare(old.records, new.records, tolerance, across or ())
    if not found.changes:
        why = found.refused[0] if found.refused else "they hold no record of the same thing"
        raise RecordError(f"{before} and {after} cannot be compared: {why}")
    if json_output:
        print(json.dumps(_plain(found)))
    else:
        show(comparison_table(found))
        tell([f"not compared: {line}" for line in found.refused])
    if found.is_worse:
        raise typer.Exit(1)


def comparison_table(found: Comparison) -> Table:
    """One row per figure, what has changed first."""
    order = ("worse", "better", "noise", "peer", "estimated", "published")
    rows = [
        [
            change.record.name + (f" : {change.peer}" if change.peer else ""),
            change.figure,
            *_said(change),
            "-" if change.change is None else f"{100 * change.change:+.1f} %",
            change.verdict,
            "-" if change.confidence is None else f"{100 * change.confidence:.0f} %",
        ]
        for change in sorted(found.changes, key=lambda change: order.index(change.verdict))
    ]
    columns = [
        Column("what", "text"),
        Column("figure", "word"),
        *(Column(name) for name in ("before", "after", "change")),
        Column("verdict", "word"),
        Column("sure", optional=1),
    ]
    notes = [*NOTES]
    if any(change.verdict in order[3:] for change in found.changes):
        notes.append(NO_SAY)
    if any(change.peer for change in found.changes):
        notes.append(RATIOS)
    return Table(columns, rows, "before and after", tuple(notes))


def _said(change: Change) -> tuple[str, str]:
    before, after = change.before, change.after
    if isinstance(before, str) or isinstance(after, str):
        return str(before).split(":")[0], str(after).split(":")[0]
    if change.peer:
        return f"{before:.2f} x", f"{after:.2f} x"
    if change.figure.endswith("_bytes"):
        return size(round(before)), size(round(after))
    if change.figure.endswith("_s") and not change.figure.endswith("per_s"):
        return seconds(before), seconds(after)
    return f"{before:.4g}", f"{after:.4g}"


def _plain(found: Comparison) -> dict[str, object]:
    return {
        "changes": [
            {
                "subject": change.record.subject,
                "figure": change.figure,
                "before": change.before,
                "after": change.after,
                "change": change.change,
                "verdict": change.verdict,
                "confidence": change.confidence,
                "peer": change.peer,
            }
            for change in found.changes
        ],
        "refused": list(found.refused),
        "is_worse": found.is_worse,
    }

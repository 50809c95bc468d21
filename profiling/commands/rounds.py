"""`smidgen profile rounds` and `compare`: a run's rounds, or two measurements, by their files."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from smidgen.edge_client.errors import demand
from smidgen.edge_client.outputs import OutputError, check_out_file, new_file
from smidgen.edge_client.tables import Column, Table, seconds, show, size, tell
from smidgen.edge_client.wire.figures import Row
from smidgen.profiling.benchmarks.report import BUSY, QUIET
from smidgen.profiling.commands.options import JsonOption
from smidgen.profiling.records.compare import ACROSS, CONFIDENT, Change, Comparison, compare
from smidgen.profiling.records.record import RecordError, new_session, read_records, to_line
from smidgen.profiling.rounds.costs import cost_by_round, read_figures, round_records, rounds_table
from smidgen.profiling.rounds.picture import draw_rounds, draw_waterfall, file_title, show_steps
from smidgen.profiling.rounds.waterfall import Step, steps_of_round

NOTES = (
    "before, after: medians; noise: within the tolerance, or not separated by the test below",
    f"sure: confidence that the repetitions differ, by a two-sided rank-sum test at "
    f"{100 * CONFIDENT:.0f} % (five against five can decide, three against three cannot); - for a "
    "figure measured once, which the tolerance decides; among many figures some differ by chance",
)
RATIOS = (
    "ours : peer, each relative to the peer of its own session, since machines differ; sure: "
    "against the repetition of the peer that brings both closest together"
)


def compare_records(
    before: Annotated[Path, typer.Argument(help="Baseline: a file of records (.jsonl).")],
    after: Annotated[Path, typer.Argument(help="File of records to compare with it.")],
    tolerance: Annotated[
        float, typer.Option(help="Relative change to ignore, 0 to 1, such as 0.05.")
    ] = 0.05,
    across: Annotated[
        list[str] | None,
        typer.Option(help=f"Compare although this differs; repeatable: {', '.join(ACROSS)}."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Compare two files of records: better, worse or noise. Exit code 1 if anything is worse."""
    demand(0 <= tolerance <= 1, f"--tolerance {tolerance:g} is not between 0 and 1", RecordError)
    for name in across or ():
        demand(name in ACROSS, f"--across {name}: one of {', '.join(ACROSS)}", RecordError)
    old, new = read_records(before), read_records(after)
    tell([note for note in (old.note, new.note) if note])
    found = compare(old.records, new.records, tolerance, across or ())
    if not found.changes:
        why = found.refused[0] if found.refused else "they hold no record of the same thing"
        raise RecordError(f"{before} and {after} cannot be compared: {why}")
    measured = [one.conditions for one in (*old.records, *new.records)]
    busiest = max(one.load_1m / one.machine.get("cores", 1) for one in measured)
    tell([f"warning: {busiest:.1f} processes per core: {BUSY}"] if busiest > QUIET else [])
    if json_output:
        print(json.dumps(_plain_comparison(found)))
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
        notes.append("peer, estimated, published: listed only, without effect on the exit code")
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


def _plain_comparison(found: Comparison) -> dict[str, object]:
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


PICTURES, RECORDS = (".png", ".svg", ".pdf"), ".jsonl"


def rounds(
    figures: Annotated[
        Path, typer.Argument(help="File written by `smidgen coordinator figures --out FILE`.")
    ],
    round_index: Annotated[
        int | None,
        typer.Option(
            "--round",
            help="Show where this round's time went, per device: phases, memory peaks, and the "
            "device that the others waited for. 0: the evaluation before training.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Chart to write (.png, .svg or .pdf), or all rounds as records for `profile "
            "compare` (.jsonl)."
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show each round's accuracy and cost; with --round, where one round's time went."""
    if out is not None:
        check_out_file("--out", out, PICTURES if round_index is not None else (*PICTURES, RECORDS))
        demand(out.parent.is_dir(), f"--out {out}: there is no folder {out.parent}", OutputError)
        if out.suffix == RECORDS and out.is_file():
            _check_rounds(out)
    rows = read_figures(figures)
    if round_index is None:
        _all_rounds(rows, figures, out, json_output)
    else:
        _one_round(rows, round_index, figures, out, json_output)
    if out is not None and not json_output:
        print(f"written  {out}")


def _check_rounds(out: Path) -> None:
    try:
        kinds = {record.kind for record in read_records(out).records}
    except RecordError as error:
        raise OutputError(f"--out {out} holds no records of rounds; name another file") from error
    others = ", ".join(sorted(kinds - {"round"}))
    demand(not others, f"--out {out} holds records of {others}; name another file", OutputError)


def _all_rounds(rows: Sequence[Row], file: Path, out: Path | None, json_output: bool) -> None:
    costs = cost_by_round(rows)
    if out is not None and out.suffix == RECORDS:
        with new_file("--out", out) as written:
            written.writelines(to_line(row) + "\n" for row in round_records(rows, new_session()))
    elif out is not None:
        draw_rounds(costs, out, file_title(file, costs))
    if json_output:
        print(json.dumps({"rounds": [asdict(cost) for cost in costs]}))
    else:
        show(rounds_table(costs))


def _one_round(
    rows: Sequence[Row], round_index: int, file: Path, out: Path | None, json_output: bool
) -> None:
    steps = steps_of_round(rows, round_index)
    if out is not None:
        draw_waterfall(steps, out, f"{file.name}: round {round_index} by device")
    if json_output:
        print(json.dumps({"round_index": round_index, "steps": list(map(_plain, steps))}))
    else:
        show_steps(steps)


def _plain(step: Step) -> dict[str, Any]:
    straggler = step.straggler()
    pieces = [asdict(piece) | {"work_s": piece.work_s} for piece in step.pieces]
    found = {"kind": step.kind, "attempt": step.attempt, "pieces": pieces}
    return found | {"straggler": asdict(straggler) if straggler else None}

"""`smidgen profile rounds`: what each round of a run gave and cost, or where one's time went."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.errors import demand
from edge_client.outputs import OutputError, check_out_file, new_file
from edge_client.tables import show
from edge_client.wire.figures import Row
from profiling.commands.options import JsonOption
from profiling.records.record import RecordError, new_session, read_records, to_line
from profiling.rounds.bars import show_steps
from profiling.rounds.costs import cost_by_round, read_figures, round_records, rounds_table
from profiling.rounds.picture import draw_rounds, draw_waterfall, file_title
from profiling.rounds.waterfall import Step, steps_of_round

PICTURES, RECORDS = (".png", ".svg", ".pdf"), ".jsonl"


def rounds(
    figures: Annotated[
        Path, typer.Argument(help="File that `smidgen coordinator figures --out FILE` wrote.")
    ],
    round_index: Annotated[
        int | None,
        typer.Option(
            "--round",
            help="Show where this round's time went, device by device: phases, memory peaks and "
            "the device that the others waited for. 0 is the evaluation before any training.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Chart to write: a .png, .svg or .pdf file; or .jsonl: all rounds as records for "
            "`profile compare`."
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show what each round of a run gave and cost; with --round, where one round's time went."""
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

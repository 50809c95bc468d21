"""`python -m benchmarks secure-sums`: what secure aggregation costs devices and the coordinator."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.comparisons.secure_sums import Cohort, measured
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.tables import Column, Table, show

HEADS = ("neighbours, threshold", "in the sum", "device, s", "answer, s", "server, s", "bytes", "")
NOTES = (
    "processor seconds of one core; device: masking one update and dealing its shares; answer: to "
    "the unmasking; server: from shares to the mean; bytes: of a device's whole round by those of "
    "a round without masks, both with int8 down",
)


def secure_sums(
    devices: Annotated[
        list[int] | None,
        typer.Option(min=3, max=1024, help="Devices asked; repeatable. Default: 50, 200."),
    ] = None,
    numbers: Annotated[int, typer.Option(min=1, help="Trained numbers.")] = 786_432,
    bits: Annotated[str, typer.Option(help="int4, int8 or int16.")] = "int8",
    gone: Annotated[float, typer.Option(help="Share gone at each exchange.")] = 0.3,
    wrong: Annotated[float, typer.Option(help="Share of answers that are wrong.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Draws who is gone.")] = 0,
    json_output: JsonOption = False,
) -> None:
    """Mask, drop out, unmask: is the sum exact, and what does it cost?"""
    found = []
    with Console(stderr=True).status("") as status:
        for count in devices or [50, 200]:
            status.update(f"{count} devices")
            found.append((count, measured(Cohort(count, numbers, bits, gone, wrong, seed))))
    if json_output:
        told = [{"devices": count, **asdict(one)} for count, one in found]
        print(json.dumps({"numbers": numbers, "bits": bits, "cohorts": told}))
        return
    rows = [
        [
            str(count),
            f"{one.neighbours}, {one.threshold}",
            str(one.included),
            f"{one.device_s:.2f}",
            f"{one.answer_s:.2f}",
            f"{one.server_s:.1f}",
            f"{one.times_the_bytes:.2f} x",
            "exact" if one.is_exact else one.lost or "WRONG",
        ]
        for count, one in found
    ]
    columns = [Column("devices"), *map(Column, HEADS)]
    show(Table(columns, rows, f"{numbers:,} numbers, {bits}", NOTES))

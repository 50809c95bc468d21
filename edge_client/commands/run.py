"""`smidgen client run`: join a run from this device and serve it."""

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_client.api.run import CACHE_SIZE, PATIENCE_S, NothingDone, run_client
from edge_client.bases.base import EMBEDDED
from edge_client.commands.console import (
    BaseOption,
    BudgetOption,
    DataOption,
    DelimiterOption,
    DeviceOption,
    EncodingOption,
    EngineOption,
    JsonOption,
    LabelColumnOption,
    TextColumnOption,
)
from edge_client.metering.memory import PeakSpan
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO

if TYPE_CHECKING:
    from edge_client.client.settings import Summary


def run(
    coordinator: Annotated[str, typer.Option(help="The coordinator's URL.")],
    data: DataOption,
    token: Annotated[
        str, typer.Option(envvar="SMIDGEN_TOKEN", help="Enrolment token; needed once.")
    ] = "",
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    device: DeviceOption = CPU,
    memory_budget: BudgetOption = AUTO,
    state: Annotated[
        Path | None, typer.Option(help="State folder; ~/.local/state/smidgen/NAME by default.")
    ] = None,
    name: Annotated[str, typer.Option(help="The device's name; the host's by default.")] = "",
    cache_size: Annotated[
        str, typer.Option(help="Disk for what frozen layers give, such as 1G; 0: none.")
    ] = CACHE_SIZE,
    patience: Annotated[
        float, typer.Option(help="Seconds the coordinator may be absent at the start.")
    ] = PATIENCE_S,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the finished adapter; the state folder's `adapter` if not said."
        ),
    ] = None,
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    json_output: JsonOption = False,
) -> None:
    """Join a run and serve it until it is finished; its adapter then lies on this device.

    Exit code 1 where nothing could be done, or where work failed three times in a row.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    failed: NothingDone | None = None
    span = PeakSpan(is_fresh=False)  # work resets the kernel's peak
    try:
        summary = run_client(
            coordinator,
            data,
            token,
            base=base,
            engine=engine,
            device=device,
            memory_budget=memory_budget,
            state=state,
            name=name,
            cache_size=cache_size,
            patience=patience,
            out=out,
            text_column=text_column,
            label_column=label_column,
            delimiter=delimiter,
            encoding=encoding,
        )
    except NothingDone as error:
        summary, failed = error.summary, error
    if json_output:
        print(json.dumps(asdict(summary) | {"peak_rss_bytes": span.peak_bytes()}))
    else:
        print(_in_words(summary))
    if failed is not None:
        raise failed


def _in_words(summary: "Summary") -> str:
    works = f"{summary.works} piece{'s' if summary.works != 1 else ''} of work done"
    failures = f", {summary.failures} failed" if summary.failures else ""
    adapter = f"\nfinished adapter: {summary.adapter}" if summary.adapter else ""
    return f"{summary.device_id}: run finished, {works}{failures}{adapter}"

"""`smidgen client run`: join a run from this device and serve it."""

import json
import logging
import socket
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_client.adapters.peft_folder import check_adapter_folder
from edge_client.bases.base import EMBEDDED, open_base
from edge_client.commands.console import (
    BaseOption,
    BudgetOption,
    DataOption,
    DelimiterOption,
    EncodingOption,
    EngineOption,
    JsonOption,
    LabelColumnOption,
    TextColumnOption,
)
from edge_client.errors import Failed, demand
from edge_client.planning.guard import peak_rss_bytes
from edge_client.planning.sizes import AUTO, parse_budget, parse_cache_size
from edge_client.texts.dialect import Dialect
from edge_client.texts.examples import check_folder
from edge_client.wire.messages import LONGEST_NAME

if TYPE_CHECKING:
    from edge_client.client.settings import Summary

STATES = Path(".local") / "state" / "smidgen"  # below the user's home


def run(
    coordinator: Annotated[str, typer.Option(help="The coordinator's URL.")],
    data: DataOption,
    token: Annotated[
        str, typer.Option(envvar="SMIDGEN_TOKEN", help="Enrolment token; needed once.")
    ] = "",
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    memory_budget: BudgetOption = AUTO,
    state: Annotated[
        Path | None, typer.Option(help="State folder; ~/.local/state/smidgen/NAME by default.")
    ] = None,
    name: Annotated[str, typer.Option(help="The device's name; the host's by default.")] = "",
    cache_size: Annotated[
        str, typer.Option(help="Disk for what frozen layers give, such as 1G; 0: none.")
    ] = "256M",
    patience: Annotated[
        float, typer.Option(help="Seconds the coordinator may be absent at the start.")
    ] = 10.0,
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
    from edge_client.client.loop import Client
    from edge_client.client.settings import Settings
    from edge_client.client.state import ClientState

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    name = name or socket.gethostname()
    check_name(name, is_folder=state is None)
    demand(patience >= 0, f"--patience {patience}: seconds, 0 or more, are expected")
    if out is not None:
        check_adapter_folder("--out", out)
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    check_folder(data, dialect)  # a folder that cannot serve is told before anybody is asked
    settings = Settings(
        url=coordinator.rstrip("/"),
        token=token,
        name=name,
        data=data,
        dialect=dialect,
        base=open_base(base),
        engine=engine,
        budget_bytes=parse_budget(memory_budget),
        cache_bytes=parse_cache_size(cache_size),
        version=version(),
        patience_s=patience,
        out=out,
    )
    client_state = ClientState(state or Path.home() / STATES / name)
    with client_state.locked():
        summary = Client(settings, client_state).run()
    if json_output:
        print(json.dumps(asdict(summary) | {"peak_rss_bytes": peak_rss_bytes()}))
    else:
        print(_in_words(summary))
    if summary.failures and not summary.works:
        raise Failed(f"{summary.device_id}: nothing could be done; the lines above say why")


def _in_words(summary: "Summary") -> str:
    works = f"{summary.works} piece{'s' if summary.works != 1 else ''} of work done"
    failures = f", {summary.failures} failed" if summary.failures else ""
    adapter = f"\nfinished adapter: {summary.adapter}" if summary.adapter else ""
    return f"{summary.device_id}: run finished, {works}{failures}{adapter}"


def check_name(name: str, *, is_folder: bool) -> None:
    """Refuse a name that no coordinator takes.

    Args:
        name: The device's name.
        is_folder: Whether it has to name a folder, too.

    Raises:
        WrongInput: Says what is expected.
    """
    is_short = len(name) <= LONGEST_NAME
    told = f"of {len(name)} characters" if not is_short else repr(name)
    fits = not is_folder or ("/" not in name and name not in (".", ".."))
    slash = " without a slash" if is_folder else ""
    demand(
        is_short and fits and name != "" and name.isprintable(),
        f"--name {told}: 1 to {LONGEST_NAME} printable characters{slash} are expected",
    )


def version() -> str:
    """Version of the installed client."""
    try:
        return metadata.version("smidgen")
    except metadata.PackageNotFoundError:
        return "unknown"

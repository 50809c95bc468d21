"""`smidgen client run`: let this device serve a coordinator's runs."""

import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_client.api.run import (
    CACHE_SIZE,
    FINISHED,
    PACKS_SIZE,
    PATIENCE_S,
    STOPPED,
    NothingDone,
    run_client,
)
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
from edge_client.engine.limits import Limits, limits_in_words
from edge_client.errors import demand
from edge_client.files import OTHERS
from edge_client.guest.process import Ended, asked, listening
from edge_client.log_lines import PlainLines
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
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token instead, of mode 0600; needed once.")
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            help=f"`{FINISHED}`: end when the runs it joined are over, and wait while there is "
            f"none to join; `{STOPPED}`: wait for more."
        ),
    ] = STOPPED,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="What runs may choose by, such as site=kitchen; may be repeated."),
    ] = None,
    ca: Annotated[
        str,
        typer.Option(
            envvar="SMIDGEN_CA",
            help="Whom to believe over https: sha256:HEX as `coordinator init` printed, a file, or "
            "`system`; needed once.",
        ),
    ] = "",
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Speak plain HTTP to another machine.")
    ] = False,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    device: DeviceOption = CPU,
    memory_budget: BudgetOption = AUTO,
    limits: Annotated[
        str,
        typer.Option(
            metavar="NAME=VALUE,...",
            help="What this device does at most, whatever a run asks: epochs, batch, tokens, lr, "
            "rank, samples, and seconds for a piece of work; "
            f"{limits_in_words(Limits())} where not said.",
        ),
    ] = "",
    state: Annotated[
        Path | None, typer.Option(help="State folder; ~/.local/state/smidgen/NAME by default.")
    ] = None,
    name: Annotated[str, typer.Option(help="The device's name; the host's by default.")] = "",
    cache_size: Annotated[
        str, typer.Option(help="Disk for what frozen layers give, such as 1G; 0: none.")
    ] = CACHE_SIZE,
    packs: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the packs of runs with another base, which are then fetched; without, "
            "this device takes no part in such runs."
        ),
    ] = None,
    packs_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Disk for all packs there, such as 4G.")
    ] = PACKS_SIZE,
    pack_mirror: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER|URL",
            help="Where packs are looked for first; may be repeated.",
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds the coordinator may be absent at the start.")
    ] = PATIENCE_S,
    window: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HH:MM-HH:MM",
            help="When it may work, in local time, such as 01:00-05:00; may be repeated.",
        ),
    ] = None,
    on_mains: Annotated[
        bool, typer.Option("--on-mains", help="Work on mains or while charging alone.")
    ] = False,
    max_watts: Annotated[
        float | None, typer.Option(help="Pause while the whole board draws more.")
    ] = None,
    max_celsius: Annotated[
        float | None,
        typer.Option(help="Pause while its hottest zone is hotter; slow down just below."),
    ] = None,
    max_load: Annotated[
        float | None, typer.Option(help="Pause while other programs keep more processors busy.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for a finished run's adapter; the state folder's `adapter` if not said."
        ),
    ] = None,
    personal: Annotated[
        bool,
        typer.Option(
            "--personal", help="Make an adapter of this device's own after each run, of its texts."
        ),
    ] = False,
    rank_budget: Annotated[
        int | None,
        typer.Option(help="R of that one: R times the modules there are; by memory if not said."),
    ] = None,
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    json_output: JsonOption = False,
) -> None:
    """Serve a coordinator's runs, one after the other; their adapters then lie on this device.

    SIGTERM and Ctrl-C end it within seconds; unfinished training goes on where it was, when the
    client is started again.

    Exit code 1 where nothing could be done, or where work failed three times in a row.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    os.umask(OTHERS)  # what it keeps of the texts is its owner's
    failed: NothingDone | None = None
    summary: Summary | None = None
    span = PeakSpan(is_fresh=False)  # work resets the kernel's peak
    with listening():
        try:
            summary = run_client(
                coordinator,
                data,
                token,
                token_file=token_file,
                until=until,
                tags=tags_of(tag or []),
                ca=ca,
                plain_http=plain_http,
                base=base,
                engine=engine,
                device=device,
                memory_budget=memory_budget,
                limits=limits,
                state=state,
                name=name,
                cache_size=cache_size,
                packs=packs,
                packs_size=packs_size,
                pack_mirrors=pack_mirror or (),
                patience=patience,
                windows=window,
                on_mains=on_mains,
                max_watts=max_watts,
                max_celsius=max_celsius,
                max_load=max_load,
                out=out,
                personal=personal,
                rank_budget=rank_budget,
                text_column=text_column,
                label_column=label_column,
                delimiter=delimiter,
                encoding=encoding,
            )
        except NothingDone as error:
            summary, failed = error.summary, error
        except Ended:  # before it had a name
            pass
        is_interrupted = asked() == signal.SIGINT
    if is_interrupted:
        raise KeyboardInterrupt
    if summary is None:
        return
    if json_output:
        print(json.dumps(asdict(summary) | {"peak_rss_bytes": span.peak_bytes()}))
    else:
        print(_in_words(summary))
    if failed is not None:
        raise failed


def tags_of(said: list[str]) -> dict[str, str]:
    """Tags from words such as `site=kitchen`.

    Raises:
        WrongInput: A word without `=`, or a tag that is said twice.
    """
    tags: dict[str, str] = {}
    for word in said:
        key, is_split, value = word.partition("=")
        demand(bool(is_split), f"--tag {word!r}: KEY=VALUE is expected, such as site=kitchen")
        demand(tags.get(key, value) == value, f"--tag {key} is said twice; give one value")
        tags[key] = value
    return tags


def _in_words(summary: "Summary") -> str:
    works = f"{summary.works} piece{'s' if summary.works != 1 else ''} of work done"
    failures = f", {summary.failures} failed" if summary.failures else ""
    runs = len(summary.runs)
    finished = "run finished" if runs == 1 else f"{runs} runs finished"
    if summary.is_stopped:
        finished = f"stopped, {finished}" if runs else "stopped"
    adapter = f"\nfinished adapter: {summary.adapter}" if summary.adapter else ""
    own = f"\nits own adapter: {summary.personal}" if summary.personal else ""
    name = f"{summary.name}: " if summary.name else ""  # nobody has told it one yet
    return f"{name}{finished}, {works}{failures}{adapter}{own}"

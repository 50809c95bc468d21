"""`smidgen client run` and `doctor`: serving a coordinator's runs, and whether it will work."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from smidgen.edge_client.api.doctor import Diagnosis
from smidgen.edge_client.api.doctor import doctor as diagnose
from smidgen.edge_client.api.run import STOPPED, NothingDone, run_client
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.engine.limits import Limits, limits_in_words
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.files import OTHERS
from smidgen.edge_client.guest.process import Ended, asked, listening
from smidgen.edge_client.log_lines import PlainLines
from smidgen.edge_client.metering.memory import PeakSpan
from smidgen.edge_client.options import options_of
from smidgen.edge_client.tables import Column, Table, seconds, show

if TYPE_CHECKING:
    from smidgen.edge_client.client.settings import Summary


LIMITS = (
    "Limits of this device, whatever a run asks for: epochs, batch, tokens, lr, rank, samples, and "
    f"seconds for a piece of work; default: {limits_in_words(Limits()).replace(',', ', ')}."
)


@options_of(
    run_client,
    without=("tags",),
    token={"envvar": "SMIDGEN_TOKEN"},
    until={"default": STOPPED},
    ca={"envvar": "SMIDGEN_CA"},
    limits={"metavar": "NAME=VALUE,...", "help": LIMITS},
    packs_size={"metavar": "SIZE"},
    pack_mirrors={"name": "pack_mirror", "metavar": "FOLDER|URL"},
    windows={"name": "window", "metavar": "HH:MM-HH:MM"},
)
def run(
    call: Callable[..., "Summary"],
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Tag that the operator sees, such as site=kitchen; may be repeated."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Serve a coordinator's runs, one after another, and save their adapters on this device.

    SIGTERM and Ctrl-C stop it within seconds; when started again, it resumes unfinished training.

    Exit code 1 if nothing could be done, if work failed three times in a row, or if the adapter of
    a finished run is not here.
    """
    from smidgen.edge_client.client.failures import GaveUp

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    os.umask(OTHERS)  # what it keeps of the texts is its owner's
    failed: NothingDone | GaveUp | None = None
    summary: Summary | None = None
    span = PeakSpan(is_fresh=False)  # work resets the kernel's peak
    with listening():
        try:
            summary = call(tags=tags_of(tag or []))
        except (NothingDone, GaveUp) as error:
            summary, failed = error.summary, error
        except Ended:  # before it had a name
            pass
        is_interrupted = asked() == signal.SIGINT
    if is_interrupted:
        raise KeyboardInterrupt
    if summary is not None:
        said = asdict(summary) | {"peak_rss_bytes": span.peak_bytes()}
        print(json.dumps(said) if json_output else _in_words(summary))
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


@options_of(diagnose, without=("tell",), bases={"name": "base"}, ca={"envvar": "SMIDGEN_CA"})
def doctor(call: Callable[..., Diagnosis], json_output: JsonOption = False) -> None:
    """Check this device; print fixes for what fails.

    Checks board, system, memory, clock rates, disk and clock; runs ten steps of each engine in a
    process of its own; plans for each base; contacts the coordinator without enrolling. Changes
    nothing, and sends neither token nor key.

    Exit code 1 if a check fails; warnings and unknowns are 0.
    """
    found = call(tell=_tell)
    if json_output:
        rows = [asdict(one) for one in found.findings]
        elapsed_s = round(found.elapsed_s, 3)
        print(json.dumps({"works": found.works, "findings": rows, "elapsed_s": elapsed_s}))
    else:
        show(_table(found))
    if not found.works:
        names = ", ".join(dict.fromkeys(one.check for one in found.errors))
        raise Failed(f"this device will not work yet: {names}; what to do is said beside each")


def _tell(line: str) -> None:
    """What is being waited for; to people alone."""
    if sys.stderr.isatty():
        print(f"{line} ...", file=sys.stderr, flush=True)


def _table(found: Diagnosis) -> Table:
    columns = [
        Column("check", "word"),
        Column("state", "word"),
        Column("found", "text"),
        Column("what to do", "text"),
    ]
    rows = [[one.check, one.state, one.found, one.todo] for one in found.findings]
    return Table(columns, rows, notes=[f"Checked in {seconds(found.elapsed_s)}."])

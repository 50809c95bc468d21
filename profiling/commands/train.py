"""`smidgen profile train`: a few steps in a fresh process, and its peers beside it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from edge_client.engine.opening import engine_name
from edge_client.options import options_of
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO, parse_size
from edge_client.tables import show, tell
from profiling.benchmarks.report import named, ratio_notes, train_notes, train_table
from profiling.benchmarks.training import (
    NO_WORDS,
    PEERS,
    Benchmark,
    Settings,
    lack,
    peers_here,
)
from profiling.benchmarks.training_run import TRAIN_FILE, TrainingRun, ratios, to_record
from profiling.commands.options import (
    JsonOption,
    added_to,
    working,
)
from profiling.instruments.bases import BenchmarkError
from profiling.instruments.child import Line, terminable
from profiling.instruments.machine import ISAS
from profiling.peers.ort import ORT_TRAINING
from profiling.records.record import append, new_session

CGROUP = (
    "Hard cap around our process, by a memory cgroup, such as 512M; needs root. By default none."
)


@options_of(
    Settings,
    without=("cap_bytes", "patience_s"),
    is_random={"flag": "--random"},
    is_tagging={"flag": "--tagging"},
    engine={"default": AUTO},
    isa={"help": f"Hold torch to an older processor's instructions: {', '.join(ISAS)}."},
)
def train_steps(
    call: Callable[..., Settings],
    engine: str,
    device: str,
    cgroup: Annotated[str | None, typer.Option(help=CGROUP)] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Run every peer that is installed too, without a cap.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Run this peer too; may be repeated: {', '.join(PEERS)}."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"Folder of {TRAIN_FILE}, to which a record of each process is added."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Train a few steps in a fresh process: seconds, peak memory, and what was predicted."""
    path = added_to(out, TRAIN_FILE)
    with terminable():
        settings = call(
            engine=engine_name(engine, device) if engine == AUTO else engine,
            cap_bytes=None if cgroup is None else parse_size("--cgroup", cgroup),
        )
        names = _peer_names(peers, peer or [], settings)
        with working("looking for the base") as say:
            benchmark = Benchmark(settings)
            for name in names:
                say(f"{name}: making its checkpoint")
                benchmark.prepare(name)
            session, runs = new_session(), list[TrainingRun]()
            for name in ("", *names):
                listen = _follow(say, name or named(settings.engine))
                runs.append(benchmark.peer(name, listen) if name else benchmark.ours(listen))
                if path is not None:  # at once: whatever ends the next ones, this one is kept
                    append(path, [to_record(runs[-1], session)])
        found = ratios(runs[0], runs[1:])
        rows = [run.to_json() for run in runs]
        result = {"runs": rows, "ratios": found} if names else rows[0]
    if json_output:
        print(json.dumps(result))
    else:
        show(train_table(runs))
        tell((*ratio_notes(runs[0].engine, found), *train_notes(runs)))
    if not runs[0].is_done:
        raise typer.Exit(1)


def _peer_names(every: bool, chosen: list[str], settings: Settings) -> list[str]:
    for name in chosen:
        if name not in PEERS:
            raise BenchmarkError(f"--peer {name} is not known; one of {', '.join(PEERS)}")
        if why := NO_WORDS if settings.masked and name == ORT_TRAINING else lack(name):
            raise BenchmarkError(f"--peer {name}: {why}")
    here, notes = peers_here(asks_for_words=settings.masked > 0) if every else ([], [])
    names = list(dict.fromkeys([*here, *chosen]))
    spec = settings.spec
    if names and (not spec.rank or spec.head or spec.ranks):
        raise BenchmarkError(f"peers train LoRA alone; --adapter {settings.adapter} is another")
    if names and settings.device != CPU:
        raise BenchmarkError(
            f"--device {settings.device}: peers compute on the processor; leave --device or the "
            "peers away"
        )
    for note in notes:
        print(f"smidgen profile: {note}", file=sys.stderr)
    return names


def _follow(say: Callable[[str], None], name: str) -> Callable[[Line], None]:

    def listen(line: Line) -> None:
        if line["event"] == "step":
            say(f"{name}: step {line['index'] + 1} took {line['elapsed_s']:.1f} s")

    say(f"{name}: starting")
    return listen

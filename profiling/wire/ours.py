"""Rounds without compute by our own server and transport, through a relay.

`smidgen coordinator serve` is a process with a store on disk, every client a process that speaks
with the device's transport (`profiling.wire.device`). A round is what a run does in it by default:
every client trains, and then evaluates what came of it. The first round warms up.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from edge_client.bases.base import Base
from profiling.instruments.bases import cache_folder, label_words
from profiling.instruments.child import Line
from profiling.wire.processes import Processes, running
from profiling.wire.relay import Exchange, Relay, relaying
from profiling.wire.run import WARMUP, WireRun, passed, side

WHO = "smidgen"
SERVER = "coordinator"
LISTENING = r"listening on http://([\d.]+:\d+)"
START_S = 60.0  # until the server listens
UPLOAD = re.compile(r"/v1/work/([^/]+)/update$")
ROUND_S = 60.0  # the longest round that is waited for


def measure(
    base: Base, adapter: str, clients: int, rounds: int, rtt_s: float, say: Callable[[str], None]
) -> WireRun:
    """Take rounds in which every client adds 0.01 to the adapter it got.

    Args:
        base: Gives the adapter its tensors.
        adapter: What would be trained, such as `lora:8@q,v`.
        clients: Clients, all of them in every round.
        rounds: Rounds that count.
        rtt_s: Round trip that the relay adds.
        say: Told how far it is.

    Raises:
        ProcessError: The server or a client failed.
        RelayError: The relay failed.
    """
    # Not where temporary files are: that may be memory, and an answer is on disk when it counts.
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="wire-", dir=cache_folder()) as name,
        running(Path(name) / "logs") as processes,
    ):
        folder = Path(name)
        host, port, token = _serve(processes, folder, base, adapter, clients, rounds + WARMUP)
        with relaying(host, port, rtt_s) as relay:
            return _run(processes, folder, relay, token, clients, rounds, rtt_s, say)


def _serve(
    processes: Processes, folder: Path, base: Base, adapter: str, clients: int, rounds: int
) -> tuple[str, int, str]:
    """Start the server with a run; where it listens, and the run's token."""
    (folder / "run.toml").write_text(run_file(base, adapter, clients, rounds))
    serve = ["smidgen", "coordinator", "serve", "--store", str(folder / "store"), "--port", "0"]
    run = ["--run", str(folder / "run.toml"), "--json"]
    processes.start(SERVER, [sys.executable, "-m", *serve, *run], {})
    processes.wait(lambda: bool(processes.said(SERVER, LISTENING)), START_S, "it to listen")
    host, port = processes.said(SERVER, LISTENING)[0].split(":")
    return host, int(port), processes.lines(SERVER)[0]["token"]


def run_file(base: Base, adapter: str, clients: int, rounds: int) -> str:
    """A run's TOML; its task is nobody's, for its texts are never looked at."""
    task = {"name": "wire", "labels": list(label_words(base)), "patterns": ["{text} [MASK]"]}
    run = {
        "name": "wire",
        "base": str(base.folder.resolve()),
        "adapter": adapter,
        "rounds": rounds,
        "min_clients": clients,
    }
    # What JSON calls a string, a number or a list is one in TOML too.
    rows = [f"{key} = {json.dumps(value)}" for key, value in run.items()]
    rows += ["[task]", *(f"{key} = {json.dumps(value)}" for key, value in task.items())]
    return "\n".join(rows) + "\n"


def _run(
    processes: Processes,
    folder: Path,
    relay: Relay,
    token: str,
    clients: int,
    rounds: int,
    rtt_s: float,
    say: Callable[[str], None],
) -> WireRun:
    names = [f"client-{number + 1}" for number in range(clients)]
    for name in names:
        request = {"url": relay.url, "token": token, "name": name, "folder": str(folder / name)}
        command = [sys.executable, "-m", "profiling.wire.device", json.dumps(request)]
        processes.start(name, command, {})

    def trained() -> int:
        """Rounds that the first client has begun."""
        return sum(line.get("kind") == "train" for line in processes.lines(names[0]))

    processes.wait(lambda: trained() > WARMUP, START_S + ROUND_S, "the first round")
    before = {name: processes.use(name) for name in (SERVER, *names)}

    def is_over() -> bool:
        say(f"round {max(0, trained() - WARMUP)} of {rounds}")
        return all(processes.is_over(name) for name in names)

    processes.wait(is_over, ROUND_S * (rounds + 1), "the last round")
    processes.check()
    after = {name: processes.use(name) for name in (SERVER, *names)}
    lines = {name: processes.lines(name) for name in names}
    began = [begins(lines.values(), index, "train") for index in range(2, rounds + 2)]
    ended = [begins(lines.values(), index, "evaluate") for index in range(2, rounds + 2)]
    over = min(line["at_s"] for rows in lines.values() for line in rows if line["event"] == "over")
    done = [line for rows in lines.values() for line in rows if line.get("kind") == "train"]
    whole = list(whole_rounds(relay.exchanges(), rounds))
    return WireRun(
        who=WHO,
        rtt_s=rtt_s,
        clients=clients,
        tensors=done[0]["tensors"],
        payload_bytes=done[0]["payload_bytes"],
        rounds_s=tuple(later - earlier for earlier, later in pairwise([*began, over])),
        training_s=tuple(end - begin for begin, end in zip(began, ended, strict=True)),
        whole=passed(whole, clients * rounds),
        training=passed(of_training(whole), clients * rounds),
        server=side([before[SERVER]], [after[SERVER]], rounds),
        client=side([before[name] for name in names], [after[name] for name in names], rounds),
    )


def begins(clients: Iterable[Sequence[Line]], round_index: int, kind: str) -> float:
    """When the first client got a round's work of a kind."""
    work = (line for lines in clients for line in lines if line["event"] == "work")
    named = [one for one in work if (one["round_index"], one["kind"]) == (round_index, kind)]
    return float(min(one["at_s"] for one in named))


def by_client(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Exchanges of each connection on which there were uploads: of a client that has enrolled."""
    numbers = {one.connection for one in exchanges if UPLOAD.match(one.path)}
    return [[one for one in exchanges if one.connection == number] for number in sorted(numbers)]


def whole_rounds(exchanges: Sequence[Exchange], rounds: int) -> Iterator[Exchange]:
    """Exchanges of the last rounds of each client, as many of each kind as rounds have.

    Every round has one upload: from the one before the first of these rounds up to the one in the
    last of them is as much as the rounds take.
    """
    for own in by_client(exchanges):
        uploads = [place for place, one in enumerate(own) if UPLOAD.match(one.path)]
        yield from own[uploads[-rounds - 1] : uploads[-1]]


def of_training(exchanges: Sequence[Exchange]) -> Iterator[Exchange]:
    """Those of them that training takes: the poll that gave the work, adapter, upload and report.

    The adapter counts here, though a client that was asked to evaluate it has it by then.
    """
    for own in by_client(exchanges):
        works = {found[1] for one in own if (found := UPLOAD.match(one.path))}
        # What comes next in time begins this round again: each round has as much of each.
        after = [*own[1:], own[0]]
        for one, following in zip(own, after, strict=True):
            is_poll = one.path.startswith("/v1/work?") and UPLOAD.match(following.path)
            is_report = any(one.path == f"/v1/work/{work}/report" for work in works)
            is_adapter = one.path.startswith("/v1/adapters/")
            if is_poll or is_report or is_adapter or UPLOAD.match(one.path):
                yield one

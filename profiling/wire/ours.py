"""Wire benchmark of our own server and transport, through a relay, without compute.

`smidgen coordinator serve` is a process with a store on disk, every client a process with the
device's transport (`smidgen.profiling.wire.device`). Rounds are a run's default: every client
trains, then evaluates the result. The first round warms up: processor time is counted from the
first `train` of the second one on.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.errors import demand
from smidgen.edge_client.wire.tensors import AdapterState, decode_adapter
from smidgen.profiling.instruments.child import Line, ProcessError, Processes, running
from smidgen.profiling.instruments.environment import cache_folder
from smidgen.profiling.instruments.made_up_run import first_state, is_sum, run_file
from smidgen.profiling.instruments.sampler import TreeUse
from smidgen.profiling.wire.relay import Exchange, of_training, relaying, whole_rounds
from smidgen.profiling.wire.run import SAMPLE_S, WARMUP, WHO, WireRun, passed, side

SERVER = "coordinator"
LISTENING = r"listening on http://([\d.]+:\d+)"
START_S = 60.0  # until the server listens
ROUND_S = 60.0  # the longest round that is waited for
POLL_S = 0.5  # between two looks for the end; what has ended by then uses nothing more


@dataclass(frozen=True)
class Rounds:
    """What is measured.

    Attributes:
        base: Gives the adapter its tensors.
        adapter: What would be trained, such as `lora:8@q,v`.
        clients: All of them take part in every round.
        count: Rounds that count.
        rtt_s: Round trip that the relay adds.
    """

    base: Base
    adapter: str
    clients: int
    count: int
    rtt_s: float

    @property
    def all_rounds(self) -> int:
        return self.count + WARMUP


def measure(asked: Rounds, say: Callable[[str], None]) -> WireRun:
    """Take rounds in which every client adds 0.01 to the adapter it got.

    Args:
        asked: Which.
        say: Told how far they are.

    Raises:
        ProcessError: The server or a client failed.
        RelayError: The relay failed.
    """
    load_1m = os.getloadavg()[0]
    # Not where temporary files are: that may be memory, and an answer is on disk when it counts.
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="wire-", dir=cache_folder()) as name,
        running(Path(name) / "logs", SAMPLE_S) as processes,
    ):
        folder = Path(name)
        host, port, token = serve(processes, folder, asked)
        with relaying(host, port, asked.rtt_s) as relay:
            clients = start_clients(processes, folder, asked.clients, relay.url, token)
            server, client = _wait(processes, clients, asked, say)
            exchanges = relay.exchanges()
        lines = [line for name in clients for line in processes.lines(name)]
        adapter = last_adapter(folder / clients[0])
    check(asked, adapter)
    return _run(asked, lines, adapter, exchanges, server, client, load_1m)


def serve(processes: Processes, folder: Path, asked: Rounds) -> tuple[str, int, str]:
    """Start the server with a run; where it listens, and the run's token."""
    run = run_file(
        asked.base, asked.adapter, name="wire", rounds=asked.all_rounds, min_clients=asked.clients
    )
    (folder / "run.toml").write_text(run)
    serve = ["smidgen", "coordinator", "serve", "--store", str(folder / "store"), "--port", "0"]
    serve += ["--run", str(folder / "run.toml"), "--json"]
    processes.start(SERVER, [sys.executable, "-m", *serve], {})
    processes.wait(lambda: bool(processes.said(SERVER, LISTENING)), START_S, "it to listen")
    host, port = processes.said(SERVER, LISTENING)[0].split(":")
    return host, int(port), processes.lines(SERVER)[0]["token"]


def start_clients(
    processes: Processes, folder: Path, count: int, url: str, token: str
) -> list[str]:
    names = [f"client-{number + 1}" for number in range(count)]
    for name in names:
        request = {"url": url, "token": token, "name": name, "folder": str(folder / name)}
        command = [sys.executable, "-m", "smidgen.profiling.wire.device", json.dumps(request)]
        processes.start(name, command, {})
    return names


def _wait(
    processes: Processes, clients: Sequence[str], asked: Rounds, say: Callable[[str], None]
) -> tuple[TreeUse, TreeUse]:
    """Wait until the run is finished; what the server and a client used in its rounds."""

    def begun(name: str) -> int:
        return sum(line.get("kind") == "train" for line in processes.lines(name))

    def is_over() -> bool:
        say(f"round {begun(clients[0]) - WARMUP} of {asked.count}")
        last = [processes.lines(name)[-1:] for name in clients]
        return all(lines and lines[0]["event"] == "over" for lines in last)

    names = [SERVER, *clients]
    processes.wait(
        lambda: any(begun(name) > WARMUP for name in clients),
        START_S + ROUND_S,
        "the first round",
    )
    before = [processes.use(name) for name in names]
    processes.wait(is_over, ROUND_S * (asked.count + 1), "the last round", POLL_S)
    after = [processes.use(name) for name in names]
    return side(before[:1], after[:1], asked.count), side(before[1:], after[1:], asked.count)


def _run(
    asked: Rounds,
    lines: Sequence[Line],
    adapter: AdapterState,
    exchanges: Sequence[Exchange],
    server: TreeUse,
    client: TreeUse,
    load_1m: float,
) -> WireRun:
    indices = range(WARMUP + 1, WARMUP + 1 + asked.count)
    began = [begins(lines, index, "train") for index in indices]
    ended = [begins(lines, index, "evaluate") for index in indices]
    over = min(line["at_s"] for line in lines if line["event"] == "over")
    whole = list(whole_rounds(exchanges, asked.count))
    return WireRun(
        who=WHO,
        version=version(WHO),
        rtt_s=asked.rtt_s,
        clients=asked.clients,
        tensors=len(adapter),
        payload_bytes=sum(tensor.nbytes for tensor in adapter.values()),
        rounds_s=tuple(later - earlier for earlier, later in pairwise([*began, over])),
        training_s=tuple(end - begin for begin, end in zip(began, ended, strict=True)),
        whole=passed(whole, asked.clients * asked.count),
        training=passed(of_training(whole), asked.clients * asked.count),
        server=server,
        client=client,
        load_1m=load_1m,
    )


def last_adapter(folder: Path) -> AdapterState:
    state = ClientState(folder)
    for path in (folder / "adapters").glob("*.st"):  # the newest alone is kept
        if body := state.adapter(path.stem):
            return decode_adapter(body)
    raise ProcessError(f"{folder.name} has kept no adapter")


def check(asked: Rounds, last: AdapterState) -> None:
    """See whether the work was done.

    Args:
        asked: What was to be done.
        last: The adapter after its rounds.

    Raises:
        ProcessError: It is not the first one with 0.01 added in each round.
    """
    is_so = is_sum(first_state(asked.base, asked.adapter), last, asked.all_rounds)
    demand(is_so, f"{WHO}: its mean is not that of the answers", ProcessError)


def begins(lines: Iterable[Line], round_index: int, kind: str) -> float:
    work = (line for line in lines if line["event"] == "work")
    named = (line for line in work if (line["round_index"], line["kind"]) == (round_index, kind))
    return float(min(line["at_s"] for line in named))

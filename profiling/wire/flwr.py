"""Wire benchmark of Flower's deployment, in its own environment, through the same relay as ours.

A SuperLink, a SuperNode for each client and `flwr run`, as its documentation starts them, without
TLS as ours are here. The app (`smidgen.profiling.peers.flwr_app`) only trains and is never asked to
evaluate. The SuperLink's state is in memory, its default.

An exchange counts for the rounds in which it began, from the end of the warm-up round to that of
the last one. A message leaves after its round's beginning and is averaged before its end, so none
of its bytes fall out of that span.
"""

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.profiling.instruments.child import Line, ProcessError, Processes, running
from smidgen.profiling.instruments.environment import BenchmarkError, cache_folder
from smidgen.profiling.instruments.made_up_run import ADDED
from smidgen.profiling.peers.flwr import FLWR, QUIET, environment, missing
from smidgen.profiling.wire.relay import Exchange, Relay, relaying
from smidgen.profiling.wire.run import SAMPLE_S, WARMUP, WireRun, passed, side

SERVER, RUN = "superlink", "flwr run"
APP = Path(__file__).parents[1] / "peers" / "flwr_app.py"
SAID = "said.jsonl"  # by the app
START_S = 120.0  # until it listens, and until clients are there
ROUND_S = 120.0  # the longest round that is waited for
POLL_S = 0.2  # between two looks for the end of a round, which takes some seconds
PROJECT = """
[project]
name = "zero-compute"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "smidgen"

[tool.flwr.app.components]
serverapp = "zero_compute.flwr_app:server"
clientapp = "zero_compute.flwr_app:client"

[tool.flwr.app.config]
"""


def measure(
    adapter: AdapterState, clients: int, rounds: int, rtt_s: float, say: Callable[[str], None]
) -> WireRun:
    """Take rounds in which every client adds 0.01 to the adapter it got, and FedAvg averages.

    Args:
        adapter: What the first round starts from.
        clients: SuperNodes, all of them in every round.
        rounds: Rounds that count.
        rtt_s: Round trip that the relay adds.
        say: Told how far it is.

    Raises:
        BenchmarkError: There is no environment, or an answer is missing.
        ProcessError: One of its processes failed, or took too long.
        RelayError: The relay failed.
    """
    if reason := missing():
        raise BenchmarkError(f"--peer {FLWR}: {reason}")
    load_1m = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(
            prefix="wire-", dir=cache_folder(), ignore_cleanup_errors=True
        ) as name,
        running(Path(name) / "logs", SAMPLE_S) as processes,
    ):
        ports = free_ports(1 + clients)
        run = _Deployment(processes, Path(name), ports, clients, rounds + WARMUP)
        run.serve()
        with relaying("127.0.0.1", ports[0], rtt_s) as relay:
            run.start(adapter, relay)
            return run.measured(adapter, relay, rtt_s, load_1m, say)


class _Deployment:
    def __init__(
        self, processes: Processes, folder: Path, ports: list[int], clients: int, rounds: int
    ) -> None:
        self._processes, self._folder, self._ports = processes, folder, ports
        self._rounds = rounds
        self._nodes = [f"supernode-{number + 1}" for number in range(clients)]
        path = f"{environment() / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        self._environment = QUIET | {"FLWR_HOME": str(folder / "home"), "PATH": path}

    def _start(self, name: str, program: str, *arguments: str) -> None:
        command = [str(environment() / "bin" / program), *arguments]
        self._processes.start(name, command, self._environment)

    def serve(self) -> None:
        self._start(
            SERVER,
            "flower-superlink",
            *("--insecure", "--port", str(self._ports[0])),
            "--disable-runtime-dependency-installation",
        )
        self._processes.wait(lambda: listens(self._ports[0]), START_S, f"{SERVER} to listen")

    def start(self, adapter: AdapterState, relay: Relay) -> None:
        """Start the SuperNodes behind the relay, then the run."""
        for name, port in zip(self._nodes, self._ports[1:], strict=True):
            self._start(
                name,
                "flower-supernode",
                "--insecure",
                "--superlink",
                f"127.0.0.1:{relay.port}",
                "--port",
                str(port),
            )
        app = write_app(self._folder, adapter, len(self._nodes), self._rounds)
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        link = f'[superlink.bench]\naddress = "127.0.0.1:{self._ports[0]}"\ninsecure = true\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "bench"\n\n{link}')
        self._start(RUN, FLWR, "run", str(app), "bench", "--stream")

    def measured(
        self,
        adapter: AdapterState,
        relay: Relay,
        rtt_s: float,
        load_1m: float,
        say: Callable[[str], None],
    ) -> WireRun:
        """Wait until the run is over; what its rounds took."""
        names = [SERVER, *self._nodes]
        rounds, clients = self._rounds - WARMUP, len(self._nodes)
        self._await(WARMUP, START_S)
        before = [self._processes.use(name) for name in names]
        for index in range(rounds):
            say(f"round {index + 1} of {rounds}")
            self._await(WARMUP + index + 1, 0.0)
        after = [self._processes.use(name) for name in names]
        exchanges = relay.exchanges()
        self._processes.wait(lambda: self._processes.is_over(RUN), START_S, f"{RUN} to end")
        self._check()
        began = [line["at_s"] for line in self._lines("round")][WARMUP:]
        inside = within(exchanges, began[0], began[-1])
        spans = tuple(end - start for start, end in pairwise(began))
        whole = passed(inside, clients * rounds)
        return WireRun(
            who=FLWR,
            version=version(),
            rtt_s=rtt_s,
            clients=clients,
            tensors=len(adapter),
            payload_bytes=sum(tensor.nbytes for tensor in adapter.values()),
            rounds_s=spans,
            training_s=spans,
            whole=whole,
            training=whole,
            server=side(before[:1], after[:1], rounds),
            client=side(before[1:], after[1:], rounds),
            load_1m=load_1m,
        )

    def _await(self, rounds: int, more_s: float) -> None:

        def is_done() -> bool:
            if self._processes.is_over(RUN) and not self._lines("done"):
                raise ProcessError(f"{RUN} ended early: {self._processes.last_line(RUN)}")
            return len(self._lines("round")) > rounds

        self._processes.wait(is_done, ROUND_S + more_s, f"round {rounds} of {FLWR}", POLL_S)

    def _lines(self, event: str) -> list[Line]:
        with suppress(FileNotFoundError):
            rows = (self._folder / SAID).read_text().splitlines(keepends=True)
            lines = [json.loads(row) for row in rows if row.endswith("\n")]
            return [line for line in lines if line["event"] == event]
        return []

    def _check(self) -> None:
        found = self._lines("done")
        if not found:
            raise ProcessError(f"{RUN} ended early: {self._processes.last_line(RUN)}")
        if found[0]["clients"] != [len(self._nodes)] * self._rounds:
            raise ProcessError(f"--peer {FLWR}: answers are missing: {found[0]['clients']}")
        if not np.allclose(found[0]["added"], self._rounds * ADDED, rtol=1e-3):
            raise ProcessError(f"--peer {FLWR}: its mean is not that of the answers")


def within(exchanges: Iterable[Exchange], start_s: float, end_s: float) -> list[Exchange]:
    return [one for one in exchanges if start_s <= one.started_s < end_s]


def numbers(adapter: AdapterState) -> AdapterState:
    """Tensors of an adapter's shapes with random numbers: equal ones would travel as one object."""
    draw = np.random.Generator(np.random.PCG64(0))
    return {
        name: draw.standard_normal(tensor.shape, np.float32) for name, tensor in adapter.items()
    }


def write_app(folder: Path, adapter: AdapterState, clients: int, rounds: int) -> Path:
    """The folder that `flwr run` takes."""
    app = folder / "app"
    (app / "zero_compute").mkdir(parents=True)
    (app / "zero_compute" / "__init__.py").touch()
    shutil.copy(APP, app / "zero_compute" / APP.name)
    arrays: dict[str, Any] = dict(adapter)
    np.savez(folder / "adapter.npz", **arrays)
    settings = {
        "clients": clients,
        "rounds": rounds,
        "adapter": str(folder / "adapter.npz"),
        "said": str(folder / SAID),
    }
    rows = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    (app / "pyproject.toml").write_text("\n".join([PROJECT.strip(), *rows]) + "\n")
    return app


def version() -> str:
    found = sorted(environment().glob("lib/python3*/site-packages/flwr-*.dist-info"))
    return found[0].name.removeprefix("flwr-").removesuffix(".dist-info") if found else ""


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False

"""Flower's simulation of a task without compute.

`flwr_child` runs in Flower's own environment, in a fresh process that is watched from outside with
all the processes that Ray starts.

    run = simulate(clients=1000, rounds=3, adapter=initial_adapter(...))
    print(run.round_s, run.peak_pss_bytes)
"""

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any

import numpy as np

from smidgen.edge_client.planning.resources import usable_cores
from smidgen.profiling.instruments.child import DONE, Child, Line, run_child
from smidgen.profiling.instruments.environment import BenchmarkError, command_in
from smidgen.profiling.instruments.made_up_run import ADDED
from smidgen.profiling.instruments.sampler import ProcessTree, TreeUse
from smidgen.profiling.peers.flwr import FLWR, QUIET, environment, missing


@dataclass(frozen=True)
class FlwrRun:
    """Rounds of Flower's simulation; all measured.

    Attributes:
        clients: Virtual clients, all of them in every round.
        processors: Ray actors that run them, one per processor.
        startup_s: Seconds up to the first answer from each actor; part of no round.
        rounds_s: Seconds of each round.
        cpu_s: Processor time of the rounds, all processes.
        peak_pss_bytes: Peak of all processes together, pages that they share counted once.
        versions: The environment's libraries, by name.
    """

    clients: int
    processors: int
    startup_s: float
    rounds_s: tuple[float, ...]
    cpu_s: float
    peak_pss_bytes: int
    versions: dict[str, str]

    @property
    def round_s(self) -> float:
        return median(self.rounds_s)


def simulate(clients: int, rounds: int, adapter: Mapping[str, np.ndarray]) -> FlwrRun:
    """Have virtual clients add 0.01 to an adapter, and FedAvg average what they send.

    Args:
        clients: Virtual clients, all of them in every round.
        rounds: Rounds that count; a small one before them starts everything.
        adapter: What each of them is sent in the first; float32.

    Raises:
        BenchmarkError: No environment, the peer failed, or a client's answer is missing.
    """
    if reason := missing():
        raise BenchmarkError(f"--peer {FLWR}: {reason}")
    processors = usable_cores()
    # Ray's processes write there until they are ended.
    with tempfile.TemporaryDirectory(prefix="flwr-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "adapter.npz"
        arrays: dict[str, Any] = dict(adapter)
        np.savez(file, **arrays)
        request = {
            "clients": clients,
            "rounds": rounds,
            "adapter": str(file),
            "processors": processors,
            "folder": folder,
        }
        child, uses = _run(request)
    _check(child, clients, rounds)
    return FlwrRun(
        clients=clients,
        processors=processors,
        startup_s=next(line["elapsed_s"] for line in child.lines if line["event"] == "ready"),
        rounds_s=tuple(line["elapsed_s"] for line in child.lines if line["event"] == "round"),
        cpu_s=uses["done"].cpu_s - uses["ready"].cpu_s,
        peak_pss_bytes=uses["done"].peak_pss_bytes,
        versions=child.done["versions"],
    )


def _run(request: dict[str, Any]) -> tuple[Child, dict[str, TreeUse]]:
    """The child's lines, and what it and its processes had used when it was `ready` and `done`."""
    uses: dict[str, TreeUse] = {}
    trees: list[ProcessTree] = []
    line = command_in(environment(), "benchmarks.comparisons.flwr_child", json.dumps(request))
    own = {"FLWR_HOME": request["folder"], "RAY_AUTH_TOKEN": token_hex(32)}
    with ExitStack() as watching:

        def listen(said: Line) -> None:
            if said["event"] == "started":
                trees.append(watching.enter_context(ProcessTree(said["pid"])))
            elif said["event"] in ("ready", "done"):
                uses[said["event"]] = trees[0].take()

        return run_child(line, None, 0, QUIET | own, listen), uses


def _check(child: Child, clients: int, rounds: int) -> None:
    if child.outcome != DONE:
        raise BenchmarkError(f"--peer {FLWR} {child.outcome}")
    if child.done["clients"] != [clients] * rounds:
        raise BenchmarkError(
            f"--peer {FLWR}: {clients} clients expected in each of {rounds} rounds, "
            f"{child.done['clients']} answered"
        )
    if not np.allclose(child.done["added"], rounds * ADDED, rtol=1e-3):
        raise BenchmarkError(f"--peer {FLWR}: its mean is not that of the answers")

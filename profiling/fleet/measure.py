"""Runs a fleet against a real coordinator: `init`, `create` and `serve` as processes, over TLS.

    Served()                                          # one process, SQLite and files
    Served(3, "postgresql://fleet@127.0.0.1/load", "s3://load/blobs")

The store is on disk and removed at the end. Devices run in separate processes on the same machine,
whose share of it is reported beside the coordinator's.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.errors import demand
from smidgen.profiling.fleet.generator import OWN_FILES, LoadRequest
from smidgen.profiling.fleet.run import (
    LATE,
    FleetRun,
    Heard,
    Met,
    ProcessWatch,
    Sample,
    cpu_between,
    growth,
    heard,
    lag,
    latencies,
    near,
)
from smidgen.profiling.instruments.child import LISTENING, ProcessError, Processes, running
from smidgen.profiling.instruments.environment import BenchmarkError, cache_folder
from smidgen.profiling.instruments.made_up_run import first_state, run_file

COORDINATOR = "coordinator"
COMMAND_S = 180.0  # for a command of the coordinator


@dataclass(frozen=True)
class Served:
    """A coordinator's processes and store.

    Attributes:
        processes: How many serve.
        database: URL of a PostgreSQL database; empty: SQLite.
        blobs: `s3://BUCKET/PREFIX`; empty: files.
    """

    processes: int = 1
    database: str = field(default="", repr=False)
    blobs: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What names the store to a command, beside its folder: a line would show a password."""
        return {"SMIDGEN_DATABASE": self.database, "SMIDGEN_BLOBS": self.blobs}

    def servers(self) -> dict[str, int]:
        """Ids of the store's servers that run on this machine, where they can be seen."""
        endpoint = environ.get("AWS_ENDPOINT_URL", "") if self.blobs else ""
        asked = {"database": self.database, "object store": endpoint}
        found = {name: _listens(url) for name, url in asked.items() if url}
        return {name: pid for name, pid in found.items() if pid is not None}


ALONE = Served()


def check_fresh(served: Served, folder: Path) -> None:
    """Refuse a database that somebody uses already.

    Args:
        served: Names it.
        folder: Of the store to be made.

    Raises:
        BenchmarkError: It holds a fleet.
        ProcessError: It cannot be reached; the coordinator's own line.
    """
    if not served.database:
        return
    try:
        coordinator(served, "status", "--store", str(folder))
    except ProcessError as error:
        if "no store at" in str(error):
            return
        raise
    demand(
        False,
        "--database names one with a fleet in it, which would take part; make an empty one "
        "(`createdb`), and drop it afterwards",
        BenchmarkError,
    )


def coordinator(served: Served, command: str, *arguments: str) -> dict[str, Any]:
    """Run a command of the coordinator on a store; its JSON.

    Raises:
        ProcessError: It failed.
    """
    line = [sys.executable, "-m", "smidgen", COORDINATOR, command, *arguments, "--json"]
    own = {**environ, **served.environment}
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=COMMAND_S, check=False, env=own
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"{COORDINATOR} {command} took over {COMMAND_S:g} s") from error
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode or not said:
        told = said[-1] if said else "it said nothing"
        raise ProcessError(f"{COORDINATOR} {command} ended with code {done.returncode}: {told}")
    found: dict[str, Any] = json.loads(said[-1])
    return found


def _listens(url: str) -> int | None:
    """Id of the process on this machine that listens at a URL's port; None where none is seen."""
    parts = urlsplit(url)
    port = parts.port or {"postgresql": 5432, "http": 80, "https": 443}.get(parts.scheme)
    if parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        return None
    with suppress(psutil.Error):
        for one in psutil.net_connections("tcp"):
            here = one.laddr.port if one.laddr else None
            if one.status == psutil.CONN_LISTEN and here == port and one.pid:
                return int(one.pid)
    return None


START_S = 180.0  # until the coordinator listens
END_S = 60.0  # for the devices' processes to write what they met
POLL_S = 0.5
PER_PROCESS = 2500  # devices: above, one event loop is too slow to be fair


@dataclass(frozen=True)
class Load:
    """What is measured.

    Attributes:
        base: Gives the adapter its tensors.
        adapter: What would be trained, such as `lora:64@q,v`.
        devices: Light devices that take part.
        cohort: Most of them that train in a round, and that evaluate.
        rounds: Until the run is over.
        within_s: After so long it is ended, and what was seen is told.
        served: By how many processes, and where the store lies.
    """

    base: Base
    adapter: str
    devices: int
    cohort: int
    rounds: int
    within_s: float
    served: Served = ALONE


def check_files(devices: int) -> None:
    """Refuse a fleet for which this machine opens too few files.

    Raises:
        BenchmarkError: The hard limit is too low.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = devices + 2 * OWN_FILES
    demand(
        hard == resource.RLIM_INFINITY or hard >= needed,
        f"--devices {devices} need {needed} open files in the coordinator, and this user may have "
        f"{hard} (`ulimit -Hn`); raise that limit or take fewer devices",
        BenchmarkError,
    )


def measure(load: Load, say: Callable[[str], None]) -> FleetRun:
    """Let a fleet take part in a run.

    Args:
        load: Which.
        say: Told how far it is.

    Raises:
        ProcessError: The coordinator or a process of devices failed.
    """
    load_1m = os.getloadavg()[0]
    end_s = time.monotonic() + load.within_s
    # Not where temporary files are: that may be memory, and an answer is on disk when it counts.
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="fleet-", dir=cache_folder()) as name,
        running(Path(name) / "logs") as processes,
    ):
        folder = Path(name)
        check_fresh(load.served, folder / "store")
        token = create(folder, load)
        url = serve(processes, folder / "store", load.served)
        pid = processes.running[COORDINATOR].pid
        with ProcessWatch(pid, folder / "store", load.served.servers()) as watch:
            time.sleep(2 * POLL_S)  # what it takes before anybody is there
            names = _start_devices(processes, folder, load, url, token)
            outcome = _wait(processes, names, load, end_s, say)
            met = _ended(processes, folder, names)
    return _run(load, url, outcome, met, watch.samples, load_1m)


def create(folder: Path, load: Load) -> str:
    """Make the store, its certificates and a run; the run's enrolment token."""
    run = run_file(
        load.base,
        load.adapter,
        name="fleet",
        rounds=load.rounds,
        min_clients=load.devices,
        max_cohort=load.cohort,
        evaluate_cohort=load.cohort,
    )
    (folder / "run.toml").write_text(run)
    store = ["--store", str(folder / "store")]
    coordinator(load.served, "init", *store, "--host", "127.0.0.1")
    return str(coordinator(load.served, "create", *store, str(folder / "run.toml"))["token"])


def serve(processes: Processes, store: Path, served: Served) -> str:
    line = [COORDINATOR, "serve", "--store", str(store), "--host", "127.0.0.1", "--port", "0"]
    line += ["--workers", str(served.processes)]
    processes.start(COORDINATOR, [sys.executable, "-m", "smidgen", *line], served.environment)
    processes.wait(lambda: bool(processes.said(COORDINATOR, LISTENING)), START_S, "it to listen")
    return processes.said(COORDINATOR, LISTENING)[0]


def _start_devices(
    processes: Processes, folder: Path, load: Load, url: str, token: str
) -> list[str]:
    """Start the devices' processes, with as many devices each; their names."""
    count = -(-load.devices // PER_PROCESS)
    ca = str(folder / "store" / "tls" / "ca.pem") if url.startswith("https") else ""
    names = []
    for number in range(count):
        first = load.devices * number // count
        own = load.devices * (number + 1) // count - first
        name = f"devices-{number + 1}"
        out = str(folder / f"{name}.json")
        asked = LoadRequest(url, ca, token, first, own, load.base.base_id, load.rounds, out)
        line = [
            sys.executable,
            "-m",
            "smidgen.profiling.fleet.generator",
            json.dumps(asdict(asked)),
        ]
        processes.start(name, line, {"OMP_NUM_THREADS": "1"})
        names.append(name)
    return names


def _wait(
    processes: Processes,
    names: Sequence[str],
    load: Load,
    end_s: float,
    say: Callable[[str], None],
) -> str:
    """Wait until the devices are through, or the time is over; how it ended."""

    def progress() -> str:
        lines = [line for name in names for line in processes.lines(name)]
        rounds = [line["round_index"] for line in lines if line.get("kind") == "train"]
        if rounds:
            return f"round {max(rounds)} of {load.rounds}"
        return "the first evaluation" if any("kind" in line for line in lines) else "enrolling"

    while not all(processes.is_over(name) for name in names):
        processes.check()
        if processes.is_over(COORDINATOR):
            raise ProcessError(f"{COORDINATOR} ended: {processes.last_line(COORDINATOR)}")
        if time.monotonic() > end_s:
            return f"ended after {load.within_s:g} s (--within), in {progress()}"
        say(f"{load.devices} devices: {progress()}")
        time.sleep(POLL_S)
    processes.check()
    return "done"


def _ended(processes: Processes, folder: Path, names: Sequence[str]) -> list[Met]:
    """Ask devices that are not through to end; what each process met."""
    for name in names:
        if not processes.is_over(name):
            processes.running[name].terminate()
    end_s = time.monotonic() + END_S
    for name in names:
        with suppress(subprocess.TimeoutExpired):
            processes.running[name].wait(max(0.1, end_s - time.monotonic()))
        if processes.running[name].returncode not in (0, -signal.SIGTERM):
            processes.check()
            raise ProcessError(f"waited {END_S:.0f} s for {name} to end")
    files = [folder / f"{name}.json" for name in names]
    return [
        msgspec.json.decode(one.read_bytes(), type=Met) if one.exists() else Met() for one in files
    ]


def _run(
    load: Load,
    url: str,
    outcome: str,
    met: Sequence[Met],
    samples: Sequence[Sample],
    load_1m: float,
) -> FleetRun:
    steps = heard([one.heard_s for one in met], [one.over_s for one in met])
    began, last = samples[0], samples[-1]
    is_whole = all(one.enrolled_s for one in met)
    enrolled_s = max(one.enrolled_s for one in met)
    errors: dict[str, int] = {}
    for one in met:
        for what, count in one.errors.items():
            errors[what] = errors.get(what, 0) + count
    return FleetRun(
        devices=load.devices,
        cohort=load.cohort,
        rounds=load.rounds,
        update_bytes=payload_bytes(load),
        processes=load.served.processes,
        is_shared=bool(load.served.database),
        is_tls=url.startswith("https"),
        outcome=_outcome(outcome, met),
        enrolled=sum(one.enrolled for one in met),
        enrolling_s=enrolled_s - min(one.began_s for one in met) if is_whole else None,
        enrolling_cpu_s=near(samples, enrolled_s).cpu_s - began.cpu_s if is_whole else None,
        rounds_s=steps.rounds_s,
        latencies=latencies([one.seconds for one in met], steps),
        errors=errors,
        held_back=sum(one.held_back for one in met),
        accepted=sum(one.accepted for one in met),
        refused=sum(one.refused for one in met),
        cpu_s=_cpu_s(samples, steps),
        shares_s=_shares_s(samples, steps),
        requests_per_s=_requests_per_s(met, steps),
        rss_bytes=(began.rss_bytes, near(samples, enrolled_s).rss_bytes, last.rss_bytes),
        peak_rss_bytes=max(one.rss_bytes for one in samples),
        rss_slope_bytes=growth(samples, "rss_bytes", steps),
        late_rss_slope_bytes=growth(samples, "rss_bytes", steps, LATE),
        disk_bytes=last.disk_bytes,
        peak_disk_bytes=max(one.disk_bytes for one in samples),
        disk_slope_bytes=growth(samples, "disk_bytes", steps),
        most_files=max(one.open_files for one in samples),
        devices_cpu_s=sum(one.cpu_s for one in met),
        devices_lag_s=lag([one.lag_s for one in met]),
        load_1m=load_1m,
        samples=tuple(replace(one, at_s=round(one.at_s - began.at_s, 3)) for one in samples),
    )


def _outcome(outcome: str, met: Sequence[Met]) -> str:
    if outcome != "done":
        return outcome
    if not any(one.over_s for one in met):
        return "no device heard of the end of the run"
    if any(one.is_right is False for one in met):
        return "the finished adapter is not the mean of the answers"
    return "done"


def _cpu_s(samples: Sequence[Sample], steps: Heard) -> float | None:
    if not steps.rounds_s:
        return None
    return cpu_between(samples, steps.bounds_s[0], steps.bounds_s[-1])


def _shares_s(samples: Sequence[Sample], steps: Heard) -> dict[str, float]:
    """Processor time of each process in the rounds; of one that was started again, since then."""
    if not steps.rounds_s:
        return {}
    before, after = (
        near(samples, at_s).shares_s for at_s in (steps.bounds_s[0], steps.bounds_s[-1])
    )
    return {name: used_s - before.get(name, 0.0) for name, used_s in after.items()}


def _requests_per_s(met: Sequence[Met], steps: Heard) -> float | None:
    if not steps.over_s:
        return None
    return sum(one.answered for one in met) / (steps.over_s - min(one.began_s for one in met))


def payload_bytes(load: Load) -> int:
    first = first_state(load.base, load.adapter)
    return sum(tensor.nbytes for tensor in first.values())

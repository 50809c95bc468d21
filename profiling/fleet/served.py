"""How a coordinator serves that is measured: its processes, and the servers of its store.

Served()                                              # one process, SQLite and files
Served(3, "postgresql://fleet@127.0.0.1/load", "s3://load/blobs")
"""

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from edge_client.errors import demand
from profiling.instruments.bases import BenchmarkError
from profiling.instruments.processes import ProcessError

COORDINATOR = "coordinator"
NO_STORE = "no store at"
COMMAND_S = 180.0  # for a command of the coordinator
PORTS = {"postgresql": 5432, "http": 80, "https": 443}


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
        if NO_STORE in str(error):
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
    port = parts.port or PORTS.get(parts.scheme)
    if parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        return None
    with suppress(psutil.Error):
        for one in psutil.net_connections("tcp"):
            here = one.laddr.port if one.laddr else None
            if one.status == psutil.CONN_LISTEN and here == port and one.pid:
                return int(one.pid)
    return None

"""A real PostgreSQL and a real server of S3, each in a process of its own on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from smidgen.edge_client.client.connection import nobody
from tests.processes import free_port

PASSWORD = "s3cret-w0rd"
KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@dataclass
class Postgres:
    """A server whose superuser is `smidgen`; its texts sort as in English."""

    bin: Path
    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None
    databases: list[str] = field(default_factory=list)

    @property
    def owner(self) -> dict[str, Any]:
        """As whom its programs run: it refuses to run as root."""
        return {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://smidgen:{password}@127.0.0.1:{self.port}/{database}"

    def create(self) -> str:
        """The URL of a new database."""
        name = f"t{len(self.databases)}"
        self.databases.append(name)
        self.do(f"CREATE DATABASE {name}")
        return self.url(name)

    def do(self, statement: str, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def start(self) -> None:
        given = ["-D", str(self.folder), "-p", str(self.port), "-h", "127.0.0.1"]
        given += ["-k", str(self.folder), "-c", "fsync=off"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.bin / "postgres"), *given], stdout=log, stderr=log, **self.owner
            )
        wait_until(self.answers, f"PostgreSQL does not start: {self.folder / 'log'}")

    def answers(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError):
            psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            return True
        return False

    def stop(self, how: int = signal.SIGINT) -> None:
        """End it; SIGINT: in order, SIGQUIT: as in a crash."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no PostgreSQL here (initdb under /usr/lib/postgresql)")
    pytest.importorskip("psycopg")
    # pytest's is closed to others; each test's database is 300 files, which no disk need hold.
    has_room = os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2 << 30
    within = "/dev/shm" if has_room else None  # a container's has 64 MB
    folder = Path(tempfile.mkdtemp(prefix="smidgen-postgres-", dir=within))
    server = Postgres(found[-1].parent, folder, free_port())
    word = folder / "word"
    word.write_text(PASSWORD)
    try:
        if server.owner:
            for path in (folder, word):
                shutil.chown(path, **server.owner)
        made = [str(server.bin / "initdb"), "-D", str(folder / "data"), "-U", "smidgen", "-N"]
        made += ["-A", "scram-sha-256", "--pwfile", str(word), "-E", "UTF8"]
        made += ["--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en"]
        done = subprocess.run(made, capture_output=True, text=True, cwd=folder, **server.owner)
        assert done.returncode == 0, done.stderr
        server.folder = folder / "data"
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)  # nothing of it is wanted any more
        shutil.rmtree(folder)


@dataclass
class Buckets:
    """A server of S3.

    Attributes:
        url: Its endpoint.
        names: Buckets that were made.
        users: Whose keys were.
    """

    url: str
    names: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, str]:
        """What programs find it by."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.url}

    def create(self) -> str:
        """A new bucket."""
        name = f"fleet-{len(self.names)}"
        self.names.append(name)
        httpx.put(f"{self.url}/{name}", verify=nobody()).raise_for_status()
        return name

    def key(self, *rights: str) -> dict[str, str]:
        """What a program finds by a new key that has these rights to every bucket."""
        boto3 = pytest.importorskip("boto3")
        name, region = f"user-{len(self.users)}", KEYS["AWS_DEFAULT_REGION"]
        self.users.append(name)
        words = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        iam = boto3.client("iam", endpoint_url=self.url, region_name=region, **words)
        allowed = {"Effect": "Allow", "Action": [f"s3:{one}" for one in rights], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="s3", PolicyDocument=policy)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        found = {"AWS_ACCESS_KEY_ID": made["AccessKeyId"]}
        return {**self.settings, **found, "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}

    def guard(self) -> None:
        """Look at every key and signature from now on; until then anybody may do anything."""
        url = f"{self.url}/moto-api/reset-auth"
        httpx.post(url, content=b"0", verify=nobody()).raise_for_status()


@contextmanager
def bucket_server(folder: Path) -> Iterator[Buckets]:
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    port = free_port()
    told = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(told, stdout=log, stderr=log)
    server = Buckets(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(server.url, timeout=5, verify=nobody()).status_code < 500
        return False

    try:
        wait_until(answers, f"no server of S3: {folder / 'log'}")
        yield server
    finally:
        process.terminate()
        process.wait(60)

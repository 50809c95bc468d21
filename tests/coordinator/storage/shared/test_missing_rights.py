"""A real server of S3 that looks at keys: where one lacks a right, nothing begins half."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from tests.command_line import Done, smidgen
from tests.coordinator.servers import Postgres, bucket_server
from tests.coordinator.test_cli import SMIDGEN, TASK

RIGHTS = ("GetObject", "PutObject", "DeleteObject", "ListBucket")
SAID = "and give it GetObject, PutObject, DeleteObject and ListBucket\n"
LACKS = pytest.mark.parametrize("lacks", [*RIGHTS, "the secret"])


@dataclass
class Guarded:
    """A bucket, and the environments of those who have another key to it."""

    bucket: str
    whole: dict[str, str]
    lacking: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with bucket_server(tmp_path_factory.mktemp("guarded")) as server:
        whole = server.key(*RIGHTS)
        lacking = {one: server.key(*(set(RIGHTS) - {one})) for one in RIGHTS}
        lacking["the secret"] = {**whole, "AWS_SECRET_ACCESS_KEY": "wrong"}
        bucket = server.create()
        server.guard()
        yield Guarded(bucket, whole, lacking)


@pytest.fixture
def there(postgres: Postgres, guarded: Guarded, tmp_path: Path) -> StorePlace:
    database = postgres.create()
    return StorePlace(
        tmp_path / "here", database, f"s3://{guarded.bucket}/{database.rpartition('/')[2]}"
    )


def by(patched: pytest.MonkeyPatch, key: dict[str, str]) -> None:
    for name, value in key.items():
        patched.setenv(name, value)


def is_refused(code: int, said: str) -> bool:
    return code == 2 and said.count("\n") == 1 and said.endswith(SAID)


def named(there: StorePlace) -> list[str]:
    shared = ["--database", there.database, "--blobs", there.blobs]
    return ["--store", str(there.folder), *shared]


def create(there: StorePlace, base: Base) -> Done:
    (there.folder.parent / "task.toml").write_text(TASK)
    what = ("--base", str(base.folder), "--adapter", "lora:2", "--rounds", "1")
    task = ("--task", str(there.folder.parent / "task.toml"))
    return smidgen("coordinator", "create", *named(there), *what, *task)


@pytest.mark.slow
@LACKS
def test_no_run_is_created_by_a_key_without_a_right(
    guarded: Guarded,
    there: StorePlace,
    tiny_base: Base,
    monkeypatch: pytest.MonkeyPatch,
    lacks: str,
) -> None:
    by(monkeypatch, guarded.lacking[lacks])
    done = create(there, tiny_base)
    assert is_refused(done.exit_code, done.stderr), done.output
    by(monkeypatch, guarded.whole)
    with closing(Store(there)) as store:
        assert store.runs() == [] and store.blobs.present() == {}
    assert create(there, tiny_base).exit_code == 0


@pytest.mark.slow
@LACKS
def test_nothing_is_served_by_a_key_without_a_right(
    guarded: Guarded,
    there: StorePlace,
    config: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
    lacks: str,
) -> None:
    by(monkeypatch, guarded.whole)
    with closing(Store(there)) as store:
        create_run(store, config, 1.0)
    line = [*SMIDGEN, "serve", *named(there), "--port", "0"]
    environment = {**os.environ, **guarded.lacking[lacks]}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=60)
    assert is_refused(done.returncode, done.stderr) and not done.stdout, done


@pytest.mark.slow
@LACKS
def test_a_store_stays_where_it_is_if_a_key_lacks_a_right(
    guarded: Guarded,
    there: StorePlace,
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lacks: str,
) -> None:
    with closing(Store(tmp_path / "old")) as store:
        create_run(store, config, 1.0)
    to = ("--to", there.database, "--blobs-to", there.blobs)
    line = ("coordinator", "move", "--store", str(tmp_path / "old"), *to)
    by(monkeypatch, guarded.lacking[lacks])
    done = smidgen(*line)
    assert is_refused(done.exit_code, done.stderr), done.output
    with closing(Store(tmp_path / "old")) as store:
        assert len(store.runs()) == 1
    by(monkeypatch, guarded.whole)
    assert smidgen(*line).exit_code == 0

"""A disk without room, for real: a small file system of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from smidgen.coordinator.operator.routes import add_operator_routes
from smidgen.coordinator.storage.credentials import add_operator
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.retention import DiskLimits
from tests.coordinator.conftest import served

LIMITED = """
import resource, sys
from pathlib import Path
from smidgen.coordinator.storage.blobs import FolderBlobs
blobs = FolderBlobs(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for _ in range(3):
    try:
        blobs.put(b"x" * 2000)
    except OSError as error:
        print(error.strerror)
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(line, capture_output=True).returncode:
        pytest.skip("a file system is mounted for this; that needs root's rights")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    line = [sys.executable, "-c", LIMITED, str(tmp_path / "blobs")]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["File too large"] * 3
    assert list((tmp_path / "blobs").iterdir()) == []


def test_a_run_that_finds_no_room_is_refused_and_may_be_asked_for_again(small: Path) -> None:
    asked = {"name": "full", "task": "agnews", "adapter": "lora:8"}
    with closing(Store(small / "store")) as store:
        headers = {"Authorization": f"Bearer {add_operator(store, 'operator', time.time())}"}
        with (
            served(store, limits=DiskLimits(20, 0), parts=(add_operator_routes,)) as (_, http),
            (small / "filler").open("wb") as file,
        ):
            with pytest.raises(OSError, match="No space left"):
                _fill(file.fileno())
            answer = http.post("/v1/operator/runs", json=asked, headers=headers)
            assert answer.status_code == 507 and int(answer.headers["Retry-After"]) > 0
            assert "disk is full" in answer.json()["detail"]
            file.truncate(0)
            answer = http.post("/v1/operator/runs", json=asked, headers=headers)
            assert answer.status_code == 201


def _fill(file: int) -> None:
    while True:
        os.write(file, b"0" * 4096)

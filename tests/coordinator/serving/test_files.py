"""How many files a coordinator may open, and so how many devices may wait."""

import subprocess
import sys

import pytest

pytest.importorskip("fastapi")

CODE = """
import resource
from smidgen.coordinator.serving.server import allow_files
for limits in ((2000, 4096), (256, 4096), (256, 512)):
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    allow_files(1000)
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.slow
def test_a_coordinator_lets_itself_open_what_it_may() -> None:
    """A hard limit only falls, so that a process can try all of them."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["(2000, 4096)", "(1000, 4096)", "(512, 512)"]

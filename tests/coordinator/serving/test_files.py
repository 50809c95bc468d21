"""How many files a coordinator may open, and so how many devices may wait."""

import subprocess
import sys

import pytest

pytest.importorskip("fastapi")

CODE = """
import resource
from coordinator.serving.server import allow_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
allow_files(1000)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [(256, 4096, 1000), (256, 512, 512), (2000, 4096, 2000)],
)
def test_a_coordinator_lets_itself_open_what_it_may(soft: int, hard: int, then: int) -> None:
    line = [sys.executable, "-c", CODE.format(soft=soft, hard=hard)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(then), str(hard)]

"""What can be said of a machine before anything is installed on it.

`scripts/jetson/doctor.py` says the same in the same words without any of this; a test holds the
two together.
"""

from collections.abc import Sequence
from pathlib import Path

from edge_client.doctor.board import read_board, read_release
from edge_client.doctor.disk import read_disk
from edge_client.doctor.finding import Finding
from edge_client.doctor.host import Host
from edge_client.doctor.memory import read_memory
from edge_client.doctor.running import read_running
from edge_client.doctor.system import (
    read_clock,
    read_glibc,
    read_kernel,
    read_processor,
    read_python,
)


def read_machine(root: Path, host: Host, state: Path) -> Sequence[Finding]:
    """Every finding on a machine; takes milliseconds, but where `nvpmodel` is asked.

    Args:
        root: Where `proc`, `sys`, `etc` and `var` lie; another folder in tests.
        host: What the running system says otherwise.
        state: The client's state folder, there or to be made.
    """
    return [
        read_board(root, host),
        read_release(root),
        read_glibc(host),
        read_kernel(root),
        read_python(host),
        read_processor(root, host),
        *read_memory(root),
        *read_running(root),
        read_disk(state),
        read_clock(host),
    ]

"""The line that is pasted on a device, as `init` and `create` print it."""

import shlex
from pathlib import Path

from edge_client.bases.base import EMBEDDED


def join_line(token: str, url: str, ca: str | None, base: str = EMBEDDED) -> str:
    """One line for a shell; FOLDER stands for the device's texts.

    Args:
        token: Lets the device in.
        url: The coordinator's address.
        ca: Whom the device believes; None without TLS.
        base: The run's base, as typed. The path of a folder is the coordinator's alone: the device
            is told its last part.
    """
    words = ["smidgen", "client", "run", "--coordinator", url]
    if ca is not None:
        words += ["--ca", ca]
    if base != EMBEDDED:
        words += ["--base", _base_there(base)]
    return f"SMIDGEN_TOKEN={shlex.quote(token)} {shlex.join([*words, '--data', 'FOLDER'])}"


def _base_there(base: str) -> str:
    return f"FOLDER-OF-{Path(base).resolve().name}" if Path(base).is_dir() else base

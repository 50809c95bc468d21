"""Machine checks that need nothing installed.

They are in `scripts/jetson/doctor.py`: one file for Python 3.6 that imports nothing of ours. A
wheel holds it as `before_install.py` beside this module (pyproject.toml).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

from smidgen.edge_client.client.folder import TODO, foreign_in, in_words

State = Literal["ok", "unknown", "warning", "error"]
OK: State = "ok"
UNKNOWN: State = "unknown"
WARNING: State = "warning"
ERROR: State = "error"
NOTHING = "nothing to do"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: What was looked at, such as `glibc`.
        state: `error`: smidgen will not work so; `warning`: it will, but worse than it could;
            `unknown`: this machine does not say, and nothing is guessed.
        found: What it is.
        todo: What to do.
    """

    check: str
    state: State
    found: str
    todo: str = NOTHING


HERE = Path(__file__)
SCRIPTS = (HERE.with_name("before_install.py"), HERE.parents[3] / "scripts/jetson/doctor.py")


class Host(NamedTuple):
    """What the running system says of itself other than by files; made up in tests.

    Attributes:
        machine: Processor architecture, such as `aarch64`.
        glibc: Its version, such as `2.27`; empty where there is none that says so.
        python: The interpreter's version, such as `3.11.7`.
        now_s: What the clock says, in seconds since 1970.
    """

    machine: str
    glibc: str
    python: str
    now_s: float


@cache
def script() -> ModuleType:
    """`scripts/jetson/doctor.py` as a module."""
    place = next(filter(Path.is_file, SCRIPTS))
    spec = spec_from_file_location("before_install", place)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def this_host() -> Host:
    return Host(*script().this_host())


def is_jetson(root: Path) -> bool:
    """Whether the device tree or the system says so."""
    return bool(script().is_jetson(root))


def read_machine(root: Path, host: Host, state: Path) -> Sequence[Finding]:
    """Every finding on a machine; takes milliseconds, but where `nvpmodel` is asked.

    Args:
        root: Where `proc`, `sys`, `etc` and `var` lie; another folder in tests.
        host: What the running system says otherwise.
        state: The client's state folder, there or to be made.
    """
    return [Finding(*row) for row in script().findings(root, host, state)]


def read_state_folder(state: Path) -> Finding:
    """Whether a client would take the folder for its own, if nothing else in there is named to it.

    Args:
        state: The client's state folder.
    """
    try:
        held = foreign_in(state)
    except OSError as error:
        return Finding(
            "state folder",
            UNKNOWN,
            f"{state} cannot be read: {error.strerror}",
            "run it as the client's user",
        )
    if held is not None:
        return Finding("state folder", ERROR, in_words(state, held), TODO)
    there = "a client's, or free for one" if state.is_dir() else "no folder yet"
    return Finding("state folder", OK, f"{state}: {there}")

"""Plug-ins: loaded from installed packages and from a folder, and called under a time limit.

Packages name them as entry points in the groups `smidgen.means`, `smidgen.optimizers` and
`smidgen.selections`. A file in the folder of `--plugins` has a dictionary `MEANS`, `OPTIMIZERS` or
`SELECTIONS`: name -> class. Whoever starts the process chooses both; nothing from the network adds
to them (docs/extending.md).

    with calling_by(Limit(60.0).call):
        result = called("mean 'mine'", work)

Python cannot end a thread from outside, so each call runs in a thread of its own. A plugin that
misses its deadline is abandoned and not called again by this process, so abandoned threads do not
pile up. Time in which a call waits for one that it made does not count for it, so the plugin that
hangs is the one that is named. Without a limit, as in simulations, calls are plain calls.
"""

import hashlib
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from smidgen.coordinator.rounds.extensions import (
    FAILURES,
    Extension,
    Kind,
    PluginError,
    add,
    line_of,
)
from smidgen.coordinator.rounds.learning.registry import MEANS, OPTIMIZERS
from smidgen.coordinator.rounds.schedule import SELECTIONS, Learning
from smidgen.edge_client.errors import WrongInput, demand

GROUPS: Mapping[Kind, str] = {
    "mean": "smidgen.means",
    "optimizer": "smidgen.optimizers",
    "selection": "smidgen.selections",
}
TABLES: Mapping[Kind, str] = {"mean": "MEANS", "optimizer": "OPTIMIZERS", "selection": "SELECTIONS"}
OURS: Mapping[Kind, tuple[str, ...]] = {
    "mean": tuple(MEANS),
    "optimizer": tuple(OPTIMIZERS),
    "selection": tuple(SELECTIONS),
}


def know_installed() -> None:
    """Make the extensions of installed packages known; none is imported before it is used.

    Raises:
        WrongInput: Two packages have one name, or one has ours.
    """
    for kind, group in GROUPS.items():
        for point in entry_points(group=group):
            package = point.dist.name if point.dist else point.value
            add(
                Extension(kind, point.name, f"package {package}", partial(_make, point)), OURS[kind]
            )


def know_folder(folder: Path) -> list[str]:
    """Import a folder's files, but for tests, and make what they name known; the names.

    Raises:
        WrongInput: No such folder, a file that everybody may write or that cannot be imported, or
            one that names nothing, or no class.
    """
    demand(folder.is_dir(), f"--plugins {folder} is not a folder")
    names: list[str] = []
    for path in sorted(folder.glob("*.py")):
        if path.name == "conftest.py" or path.name.startswith("test_"):
            continue  # pytest's
        for open_to_all in (folder, path):
            is_closed = not open_to_all.stat().st_mode & stat.S_IWOTH
            demand(is_closed, f"--plugins: everybody may write {open_to_all}; chmod o-w it")
        names += _know_module(_imported(path), path)
    demand(
        bool(names), f"--plugins {folder}: no .py file names one of {', '.join(TABLES.values())}"
    )
    return names


def check_known(learning: Learning) -> None:
    """Refuse what this process does not know, once installed packages are looked through.

    Raises:
        WrongInput: Names what is not known.
    """
    if not learning.is_ours:
        know_installed()
    learning.check_known()


def lack_of(learning: Learning) -> str:
    """What a run names that this process does not know, in words; empty where it knows all."""
    try:
        check_known(learning)
    except ValueError as error:
        return str(error)
    return ""


def _make(point: EntryPoint, *arguments: str) -> Any:
    return point.load()(*arguments)


def _imported(path: Path) -> ModuleType:
    """A file as a module of a name of its own; twice the same file is imported once."""
    name = f"smidgen_plugin_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # of a .py file there is one
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except FAILURES as error:
        del sys.modules[name]
        raise WrongInput(f"--plugins: {path} cannot be imported: {line_of(error)}") from error
    return module


def _know_module(module: ModuleType, path: Path) -> list[str]:
    names = []
    for kind, table in TABLES.items():
        known = getattr(module, table, {})
        said = f"--plugins: {path}: {table}: classes by name are expected, as in {{'mine': Mine}}"
        is_table = isinstance(known, dict)
        demand(is_table and all(isinstance(n, str) and callable(c) for n, c in known.items()), said)
        for name, factory in known.items():
            add(Extension(kind, name, str(path), factory), OURS[kind])
            names.append(name)
    return names


T = TypeVar("T")
LIMIT_S = 60.0
LONGEST_S = 86_400.0
LOOK_S = 0.1  # between two looks at whether somebody ends the process
SAID_AFTER_S = 10.0
# Set while the code of this context waits for a call that it made.
_WAITS: ContextVar[threading.Event] = ContextVar("waits")


class LetGo(BaseException):
    """Nobody waits for the call any more, since the process ends; no error that `except` takes."""


class Limit:
    """How long each call may take; its `call` is for `calling_by`, from several threads at once.

    Args:
        seconds: For one call; 0: as long as it likes, but not when the process ends.
        tell: Told in one line of a call that takes long.
    """

    def __init__(
        self, seconds: float = LIMIT_S, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self._seconds, self._tell = seconds, tell
        self._left: dict[str, str] = {}  # what is not called again, and why
        self._ending = threading.Event()

    def end(self) -> None:
        """Let nobody wait any longer: the process ends."""
        self._ending.set()

    def call(self, called: str, work: Callable[[], T]) -> T:
        """What the work gives or raises.

        Args:
            called: What it is called where it does not return.
            work: The call.

        Raises:
            PluginError: It has not returned in time, now or before.
            LetGo: The process ends.
        """
        if why := self._left.get(called):
            raise PluginError(f"{why}; mend it and start the coordinator again")
        found: list[T] = []
        raised: list[BaseException] = []
        caller_waits, own_waits = _WAITS.get(threading.Event()), threading.Event()

        def run() -> None:
            _WAITS.set(own_waits)
            try:
                found.append(work())
            except BaseException as error:  # raised where the call was made
                raised.append(error)

        thread = threading.Thread(
            target=copy_context().run, args=(run,), name="extension", daemon=True
        )
        thread.start()
        caller_waits.set()
        try:
            self._wait(called, thread, own_waits)
        finally:
            caller_waits.clear()
        if raised:
            raise raised[0]
        return found[0]

    def _wait(self, called: str, thread: threading.Thread, waits: threading.Event) -> None:
        waited_s, looked_s, is_told = 0.0, time.monotonic(), False
        thread.join(LOOK_S)
        while thread.is_alive():
            now_s = time.monotonic()
            waited_s, looked_s = waited_s + (now_s - looked_s) * (not waits.is_set()), now_s
            if self._ending.is_set():
                raise LetGo
            if self._seconds and waited_s > self._seconds:
                at = _place(thread)
                self._left[called] = f"{called} did not return within {self._seconds:g} s{at}"
                raise PluginError(
                    f"{self._left[called]}; mend it, start the coordinator again and resume the "
                    "run (serve --plugin-limit gives more time)"
                )
            if waited_s > SAID_AFTER_S and not is_told:
                is_told = True
                self._tell(f"{called} has been at it for {SAID_AFTER_S:g} s{_place(thread)}")
            thread.join(LOOK_S)


def _place(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(cast(int, thread.ident))
    if frame is None:
        return ""
    return f" (now at {Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"

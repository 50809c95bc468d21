"""Loads plug-ins, from installed packages and from a folder.

Packages name them as entry points in the groups `smidgen.means`, `smidgen.optimizers` and
`smidgen.selections`. A file in the folder of `--plugins` has a dictionary `MEANS`, `OPTIMIZERS` or
`SELECTIONS`: name -> class. Whoever starts the process chooses both; nothing from the network adds
to them (docs/extending.md).
"""

import hashlib
import stat
import sys
from collections.abc import Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from smidgen.coordinator.rounds.extensions import FAILURES, Extension, Kind, add, line_of
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

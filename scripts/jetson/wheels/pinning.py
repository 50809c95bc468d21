"""Make the locks: uv resolves for a target; of each package the wheel that fits best is kept."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

from locks import Locked, environment, lock_path, read_lock, tags
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from targets import EXCLUDED, FOR_TORCH, TARGETS, TORCH, Target
from wheelhouse import Refusal, demand

ROOT = Path(__file__).resolve().parents[3]
NEVER = '; python_version < "3.0"'
HEAD = "# {}: {}, CPython {}, glibc {}.{}. Made by scripts/jetson/pin_locks; do not edit.\n"


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", help="all, if none is named")
    asked = parser.parse_args()
    try:
        for name in asked.targets or TARGETS:
            known = "{!r} is not a target; there are {}".format(name, ", ".join(TARGETS))
            demand(name in TARGETS, known)
            print(pin(TARGETS[name]))
    except Refusal as error:
        print("pin_locks: {}".format(error), file=sys.stderr)
        return 2
    return 0


def pin(target: Target) -> str:
    """Write a target's locks; what to tell.

    Raises:
        Refusal: Nothing resolves, or no wheel of a package runs there.
    """
    base = _best(target, resolve(target, _dependencies()))
    counts = "{}: {} wheels".format(target.name, len(base))
    _write(target, "base", base)
    if target.has_torch:
        exact = ["{}=={}".format(one.name, one.version) for one in base]
        both = _best(target, resolve(target, [*exact, TORCH, "numpy"]))
        held = read_lock(lock_path(target, "base"))
        more = [one for one in both if one.name not in held]
        _write(target, "torch", more)
        counts += ", {} more for torch".format(len(more))
    return counts


def resolve(target: Target, wanted: List[str]) -> List[Dict[str, Any]]:
    """Packages of a resolution, as pylock.toml has them.

    Raises:
        Refusal: uv is not there, or finds none.
    """
    uv = shutil.which("uv")
    demand(uv is not None, "uv is not there; pip install uv")
    with tempfile.TemporaryDirectory() as folder:
        texts = {
            "wanted.in": wanted,
            "overrides.txt": [name + NEVER for name in EXCLUDED],
            "constraints.txt": _constraints(target),
        }
        for name, lines in texts.items():
            (Path(folder) / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        line = [str(uv), "pip", "compile", "wanted.in", "--quiet", "--no-header"]
        line += ["--python-version", target.python, "--python-platform", target.resolver]
        line += ["--only-binary", ":all:", "--overrides", "overrides.txt"]
        line += ["--constraints", "constraints.txt", "-o", "pylock.toml"]
        line += ["--no-python-downloads", "--python", sys.executable]
        here = {**os.environ, "PWD": folder}
        done = subprocess.run(line, cwd=folder, env=here, capture_output=True, text=True)
        said = " ".join(done.stderr.split())
        demand(done.returncode == 0, "{}: uv says {}".format(target.name, said))
        return _toml(Path(folder) / "pylock.toml")["packages"]


def _toml(path: Path) -> Dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # before Python 3.11
        import tomli as tomllib
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _dependencies() -> List[str]:
    return list(_toml(ROOT / "pyproject.toml")["project"]["dependencies"])


def _constraints(target: Target) -> List[str]:
    """What the tests run with, but for what a target says itself."""
    ours = (*target.constraints, FOR_TORCH)
    own = {Requirement(one).name for one in (*ours, TORCH)}
    tested = (ROOT / "constraints" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lines = [one for one in tested if one.strip() and not one.startswith("#")]
    return [*ours, *(one for one in lines if Requirement(one).name not in own)]


def _best(target: Target, packages: List[Dict[str, Any]]) -> List[Locked]:
    return sorted(_chosen(target, packages), key=lambda one: one.name)


def _chosen(target: Target, packages: List[Dict[str, Any]]) -> Iterator[Locked]:
    rank = {tag: place for place, tag in enumerate(reversed(tags(target)))}
    for package in packages:
        marker = package.get("marker")
        if marker is not None and not Marker(marker).evaluate(environment(target)):
            continue
        places = {}
        for wheel in package.get("wheels", []):
            file = wheel.get("name") or wheel["url"].rsplit("/", 1)[1]
            place = max((rank.get(tag, -1) for tag in parse_wheel_filename(file)[3]), default=-1)
            places[place] = wheel["hashes"]["sha256"]
        best = max(places, default=-1)
        told = "{}: {} {} has no wheel for glibc {}.{}; constrain it in wheels/targets.py"
        said = told.format(target.name, package["name"], package["version"], *target.glibc[:2])
        demand(best >= 0, said)
        yield Locked(canonicalize_name(package["name"]), package["version"], places[best])


def _write(target: Target, kind: str, wheels: List[Locked]) -> None:
    path = lock_path(target, kind)
    head = HEAD.format(path.name, target.machine, target.python, *target.glibc[:2])
    part = path.with_suffix(".part")
    part.write_text(head + "".join(map(str, wheels)), encoding="utf-8")
    part.replace(path)

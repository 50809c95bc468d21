"""Build a wheelhouse for a target, from any machine that reaches a package index.

    build_wheelhouse jetpack4 wheelhouse --cpython cpython-3.11.tar.gz --sha256 HEX --torch

A CPython is not fetched: name a tarball of python-build-standalone's kind (`install_only`, one
folder `python/`) and the SHA-256 that its maker states. The folder appears once all of it is there
and `check_wheelhouse` has nothing to say.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Optional

from checks import MARK, Checked, known
from locks import LOCKS, lock_path, platforms
from targets import Target
from wheelhouse import CPYTHON, SUMS, Refusal, demand, sha256

ROOT = Path(__file__).resolve().parents[3]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input"]


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="build_wheelhouse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", help="jetpack4, jetpack5, jetpack6, arm64 or amd64")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--torch", action="store_true", help="the torch engine too")
    parser.add_argument("--cpython", type=Path, metavar="FILE", help="for boards without one")
    parser.add_argument("--sha256", metavar="HEX", help="of that file")
    parser.add_argument("--smidgen", type=Path, metavar="WHEEL", help="instead of this checkout's")
    asked = parser.parse_args()
    try:
        target = known(asked.target)
        locks = [lock_path(target, "base")]
        if asked.torch:
            told = "there is no torch lock for {}; the onnx engine needs none"
            demand(target.has_torch, told.format(target.name))
            locks.append(lock_path(target, "torch"))
        tarball = None if asked.cpython is None else _tarball(asked.cpython, asked.sha256)
        print(build(target, asked.folder, locks, tarball, asked.smidgen))
    except Refusal as error:
        print("build_wheelhouse: {}".format(error), file=sys.stderr)
        return 2
    except OSError as error:
        print("build_wheelhouse: {}; nothing was built".format(error), file=sys.stderr)
        return 1
    return 0


def build(
    target: Target, folder: Path, locks: List[Path], tarball: Optional[Path], own: Optional[Path]
) -> str:
    """Build it whole or not at all; what to tell.

    Raises:
        Refusal: A wheel or the CPython is missing, another, or does not fit.
    """
    demand(not folder.exists(), "{} exists; name a new folder".format(folder))
    folder = folder.resolve()
    part = folder.parent / ".{}.part".format(folder.name)
    if part.exists():
        shutil.rmtree(str(part))  # of one that was killed
    wheels = part / "wheels"
    try:
        wheels.mkdir(parents=True)
        _own(own, wheels)
        for lock in locks:
            shutil.copyfile(str(lock), str(part / (lock.suffixes[0][1:] + ".lock")))
            _fetch(target, lock, wheels)
        _fetch(target, LOCKS / "pip.lock", wheels)
        if tarball is not None:
            shutil.copyfile(str(tarball), str(part / CPYTHON))
        (part / MARK).write_text(target.name + "\n", encoding="utf-8")
        files = sorted(path for path in part.rglob("*") if path.is_file())
        sums = ["{}  {}\n".format(sha256(path), path.relative_to(part)) for path in files]
        (part / SUMS).write_text("".join(sums), encoding="utf-8")
        checked = Checked(part, target)
        faults = [fault.replace(str(part), str(folder)) for fault in checked.faults]
        more = " ({} more like this)".format(len(faults) - 1) if len(faults) > 1 else ""
        demand(not faults, "".join(faults[:1]) + more)
        size = sum(path.stat().st_size for path in files)
        part.rename(folder)
    finally:
        if part.exists():
            shutil.rmtree(str(part))
    told = "{} is built for {}: {} wheels, {:.0f} MB; {}"
    said = told.format(folder, target.name, checked.count, size / 1e6, checked.needs)
    if target.is_brought and tarball is None:
        said += "\nIt has no CPython: {} has none of {} itself; see --cpython".format(
            target.system, target.python
        )
    return said


def _tarball(path: Path, expected: Optional[str]) -> Path:
    demand(path.is_file(), "--cpython {} is not a file".format(path))
    told = "--cpython {} needs --sha256 HEX, as its maker states it".format(path)
    demand(expected is not None and len(expected) == 64, told)
    came = sha256(path)
    told = "--cpython {}: SHA-256 {} expected, {} came; fetch it again"
    demand(came == str(expected).lower(), told.format(path, expected, came))
    return path


def _own(wheel: Optional[Path], wheels: Path) -> None:
    if wheel is None:
        line = [*PIP, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)]
        _run(line, "smidgen's own wheel cannot be built")
        return
    is_ours = wheel.is_file() and wheel.name.startswith("smidgen-") and wheel.suffix == ".whl"
    demand(is_ours, "--smidgen {} is not a wheel of smidgen's".format(wheel))
    shutil.copyfile(str(wheel), str(wheels / wheel.name))


def _fetch(target: Target, lock: Path, wheels: Path) -> None:
    """Fetch what a lock names, and nothing else: no resolver runs, and a hash decides."""
    abi = "cp" + target.python.replace(".", "")
    line = [*PIP, "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    line += ["--dest", str(wheels), "-r", str(lock), "--implementation", "cp"]
    line += ["--python-version", target.python, "--abi", abi, "--abi", "abi3", "--abi", "none"]
    for platform in platforms(target):
        line += ["--platform", platform]
    _run(line, "{} cannot be fetched".format(lock.name))


def _run(line: List[str], problem: str) -> None:
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise Refusal("{}: {}; nothing was built".format(problem, _reason(done.stderr)))


def _reason(said: str) -> str:
    """Of all that pip says the one line that matters, and what to do."""
    lines = [one.strip() for one in said.splitlines() if one.strip()] or ["no reason given"]
    if "DO NOT MATCH THE HASHES" in said:
        wheels = [one for one in lines if "==" in one and " from " in one] or lines
        return "{} has not the SHA-256 of the lock; ask another index".format(wheels[0].rstrip(":"))
    if lines[0].endswith("No module named pip"):
        return lines[0] + "; take the Python of a `python3 -m venv`, which has pip"
    error = next((one for one in lines if one.startswith("ERROR")), lines[0])
    return "{}; does a package index answer?".format(error[7:] if error[:7] == "ERROR: " else error)

"""Wheelhouses of tiny wheels, roots to install them into, and install.sh run for real."""

import hashlib
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

JETSON = Path(__file__).parents[2] / "scripts" / "jetson"
TAG = f"cp3{sys.version_info.minor}"
MAIN = """
__version__ = {version!r}
def main():
    import sys, tinydep
    print(__version__ if "--version" in sys.argv else tinydep.HELP)
    return {code}
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="installing needs root's rights")


def wheel(folder: Path, name: str, version: str, tags: str, body: str) -> Path:
    """A wheel with one package of one module."""
    meta = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": body,
        f"{meta}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{meta}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n",
    }
    record = "".join(f"{file},,\n" for file in files) + f"{meta}/RECORD,,\n"
    path = folder / f"{name}-{version}-{tags}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files | {f"{meta}/RECORD": record}).items():
            archive.writestr(file, text)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def seal(house: Path) -> Path:
    """Write the checksums of a wheelhouse."""
    files = sorted(
        path for path in house.rglob("*") if path.is_file() and path.name != "SHA256SUMS"
    )
    lines = [f"{digest(path)}  {path.relative_to(house)}\n" for path in files]
    (house / "SHA256SUMS").write_text("".join(lines))
    return house


def cpython(house: Path) -> None:
    """A "CPython" that is brought along: this test's own, under a name of its own."""
    start = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
    member = tarfile.TarInfo("python/bin/python3")
    member.mode, member.size = 0o755, len(start)
    with tarfile.open(house / "cpython.tar.gz", "w:gz") as archive:
        archive.addfile(member, io.BytesIO(start))


def wheelhouse(
    folder: Path, version: str = "1.0.0", *, machine: str = "", code: int = 0, bring: bool = True
) -> Path:
    """A whole wheelhouse: ours of one version, which ends with `code`, and one that it needs."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    wheel(wheels, "smidgen", version, "py3-none-any", MAIN.format(version=version, code=code))
    tags = f"{TAG}-{TAG}-manylinux_2_17_{machine or platform.machine()}"
    needed = wheel(wheels, "tinydep", "2.5", tags, 'HELP = "what smidgen client takes"')
    (folder / "base.lock").write_text(f"tinydep==2.5 \\\n    --hash=sha256:{digest(needed)}\n")
    if bring:
        cpython(folder)
    return seal(folder)


def empty_root(folder: Path) -> Path:
    """As much of a root file system as an install looks at."""
    (folder / "etc").mkdir(parents=True)
    (folder / "opt").mkdir()
    (folder / "etc" / "passwd").write_text("root:x:0:0:Jürgen:/root:/bin/sh\n")
    (folder / "etc" / "group").write_text("root:x:0:\n")
    return folder


def install(*words: str | Path, script: str = "install.sh") -> "subprocess.CompletedProcess[str]":
    line = [str(JETSON / script), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=240)


def refused(done: "subprocess.CompletedProcess[str]", expected: str) -> None:
    """That a command ended with exit code 2 and one line, which a pattern finds."""
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1, done
    assert re.search(expected, done.stderr), done.stderr


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that can be told of the files below a folder: owners, modes, times, what is in them."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        at = path.lstat()
        body = str(path.readlink()) if path.is_symlink() else digest(path) if path.is_file() else ""
        told = (at.st_mode, at.st_uid, at.st_gid, at.st_ino, at.st_mtime_ns, body)
        found[str(path.relative_to(folder))] = told
    return found


def smidgen_in(root: Path, *words: str) -> str:
    """What the installed smidgen says."""
    line = [str(root / "opt/smidgen/current/bin/smidgen"), *words]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.strip()

"""Releases below /opt/smidgen: each whole or not there, `current` the one that runs.

releases/NAME/bin/smidgen   starts it, from wherever it lies
releases/NAME/site/         our wheel and all that it needs
releases/NAME/python/       the CPython that was brought along, if one was
releases/NAME/system/       unit and udev rule that belong to it
releases/.NAME.part/        one that is being made; what a killed install leaves, the next deletes
current, former             links to two of them; changed in one step
lock                        held while anything here is changed
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, List, Optional

from root import COMMAND, RULES, UNIT, WANTED, Root
from wheelhouse import Refusal, Wheelhouse, demand, tell

HOME = "opt/smidgen"
RELEASES, CURRENT, FORMER = HOME + "/releases", HOME + "/current", HOME + "/former"
SYSTEM = {"smidgen-client.service": UNIT, "70-smidgen-power.rules": RULES}
VERSIONS = ("3.11", "3.12", "3.13", "3.10", "3.14")  # of CPython, the best tried first
START = """#!/bin/sh
# smidgen with its own packages, wherever this release lies
release=$(dirname "$(dirname "$(readlink -f "$0")")")
export PYTHONPATH="$release/site" PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1
exec {python} -c 'import sys
sys.path, sys.argv[0] = [place for place in sys.path if place], "smidgen"
from smidgen import main
sys.exit(main())' "$@"
"""


@contextmanager
def alone(root: Root) -> Iterator[None]:
    """Change releases while nobody else does.

    Raises:
        Refusal: Somebody else does.
    """
    root.at(RELEASES).mkdir(parents=True, exist_ok=True)
    lock = os.open(str(root.at(HOME + "/lock")), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for part in root.at(RELEASES).glob(".*.part"):
            shutil.rmtree(str(part))
        yield
    except BlockingIOError as error:
        raise Refusal("another install runs; wait until it is done") from error
    finally:
        if not any(root.at(RELEASES).iterdir()):
            shutil.rmtree(str(root.at(HOME)))  # a first install that came to nothing
        os.close(lock)


def linked(root: Root, link: str) -> Optional[str]:
    path = root.at(link)
    return os.path.basename(os.readlink(str(path))) if path.is_symlink() else None


def make(root: Root, house: Wheelhouse, sources: Path) -> None:
    """Make a release, and try it where it runs here; after an error nothing of it is left.

    Args:
        root: Where to.
        house: What from.
        sources: Folder with the unit and the rule.

    Raises:
        Refusal: It cannot be made.
    """
    done = root.at(RELEASES) / house.release
    if done.is_dir():
        if house.cpython is None:
            _own_python(root, house)  # a newer system may have taken it away
        return
    part = root.at(RELEASES) / ".{}.part".format(house.release)
    try:
        (part / "system").mkdir(parents=True)
        for name in SYSTEM:
            shutil.copyfile(str(sources / name), str(part / "system" / name))
        if house.cpython is None:
            python = own = _own_python(root, house)
        else:
            python, own = '"$release/python/bin/python3"', str(part / "python" / "bin" / "python3")
            tell("unpacking its CPython")
            _unpack(house.cpython, part / "python")
        is_ours = house.machine in (None, platform.machine())
        is_native = is_ours and (root.is_live or house.cpython is not None) and _runs(own)
        _install(house, part, own if is_native else None)
        (part / "bin").mkdir()
        (part / "bin" / "smidgen").write_text(START.format(python=python))
        (part / "bin" / "smidgen").chmod(0o755)
        if is_native:
            tell("starting it once on the side")
            line = [str(part / "bin" / "smidgen"), "client", "--help"]
            _run(line, "the new release does not start")
        os.sync()
        os.replace(str(part), str(done))
    finally:
        if part.exists():
            shutil.rmtree(str(part))


def switch(root: Root, name: str) -> None:
    """Let a release be the one that runs; the one before becomes `former`."""
    before = linked(root, CURRENT)
    if before is None:
        root.link(WANTED, "/" + UNIT)  # enabled once: an owner may disable it
    elif before != name:
        root.link(FORMER, "releases/" + before)
    root.link(CURRENT, "releases/" + name)
    for source, place in SYSTEM.items():
        body = (root.at(RELEASES) / name / "system" / source).read_bytes()
        root.put(place, body, 0o644)
    root.link(COMMAND, "/" + CURRENT + "/bin/smidgen")


def take_back(root: Root, before: str, former: Optional[str]) -> None:
    switch(root, before)
    if former is None:
        root.remove(FORMER)
    else:
        root.link(FORMER, "releases/" + former)


def sweep(root: Root) -> None:
    kept = linked(root, CURRENT), linked(root, FORMER)
    for old in root.at(RELEASES).iterdir():
        if old.name not in kept:
            shutil.rmtree(str(old))


def roll_back(root: Root) -> str:
    """Let the former release run again, and be the former one; its name."""
    former, current = linked(root, FORMER), linked(root, CURRENT)
    if former is None or former == current or not (root.at(RELEASES) / former).is_dir():
        raise Refusal("there is no former release to go back to")
    switch(root, former)
    return former


def _own_python(root: Root, house: Wheelhouse) -> str:
    wanted = (house.python,) if house.python else VERSIONS
    for version in wanted:
        for folder in ("/usr/local/bin", "/usr/bin"):
            path = "{}/python{}".format(folder, version)
            if os.path.lexists(str(root.folder) + path):
                return path
    told = "{} has no CPython {}; put {} into the wheelhouse (build_wheelhouse takes it)"
    raise Refusal(told.format(root.folder, " or ".join(wanted), "cpython.tar.gz"))


def _unpack(tarball: Path, place: Path) -> None:
    """Unpack a tarball whose one folder is `python/`, and nothing out of it."""
    with tarfile.open(str(tarball), "r:gz") as archive:
        for member in archive:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            inside = os.path.normpath(os.path.join(os.path.dirname(member.name), member.linkname))
            names = [os.path.normpath(member.name), inside if member.issym() else member.linkname]
            for name in filter(None, names):
                told = "{}: {} lies outside of python/".format(tarball, member.name)
                demand(name.split("/")[0] == "python", told)
        archive.extractall(str(place.parent))
    told = "{} has no python/bin/python3; take an install_only build".format(tarball)
    demand((place / "bin" / "python3").exists(), told)


def _runs(python: str) -> bool:
    try:
        line = [python, "-c", ""]
        return subprocess.run(line, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def _install(house: Wheelhouse, part: Path, native: Optional[str]) -> None:
    """Let pip put all wheels into the release: no network, no resolver, every hash checked.

    Args:
        house: What from.
        part: The release.
        native: Its CPython, if that runs here. Else, for an image of another machine, the one that
            runs this does, and is told the tags that the wheels have.
    """
    requirement = part / "own.txt"
    requirement.write_text(house.own_requirement)
    pip = _pip(native or sys.executable, house)
    line = [*pip, "install", "--no-index", "--no-deps", "--require-hashes", "--no-cache-dir"]
    line += ["--no-compile", "--only-binary", ":all:", "--target", str(part / "site")]
    line += ["--find-links", str(house.folder / "wheels")]
    for lock in [*house.locks, requirement]:
        line += ["-r", str(lock)]
    scratch = part / "tmp"  # pip unpacks all of it there first; /tmp may be a small memory's
    scratch.mkdir()
    if native is None:
        version = house.python or VERSIONS[0]
        line += ["--implementation", "cp", "--python-version", version, "--abi", "abi3"]
        line += ["--abi", "cp" + version.replace(".", ""), "--abi", "none"]
        for tag in sorted(house.platforms):
            line += ["--platform", tag]
    tell("installing {} wheels", len(house.wheels))
    _run(line, "pip cannot install from {}{}".format(house.folder, house.made_for), scratch)
    requirement.unlink()
    shutil.rmtree(str(scratch))
    shutil.rmtree(str(part / "site" / "bin"), ignore_errors=True)  # they name another interpreter
    if native is not None:
        tell("compiling them")
        compiling = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
        _run([native, *compiling, str(part / "site")], "the packages cannot be compiled")


def _pip(python: str, house: Wheelhouse) -> List[str]:
    """How pip is started: from the wheelhouse's wheel, or where that does not run, Python's own."""
    wheels = [str(wheel) + "/pip" for wheel in house.wheels if wheel.name.startswith("pip-")]
    for start in [*([python, wheel] for wheel in wheels), [python, "-m", "pip"]]:
        line = [*start, "--version"]
        if not subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE).returncode:
            return [*start, "--isolated", "--disable-pip-version-check", "--no-input"]
    told = "{} has no pip; apt-get install python3-pip, or put its wheel into the wheelhouse"
    raise Refusal(told.format(python))


def _run(line: List[str], problem: str, scratch: Optional[Path] = None) -> None:
    more = {} if scratch is None else {"TMPDIR": str(scratch)}
    here = dict(os.environ, **more)
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=here)
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()
        last = [one for one in said if one.startswith("ERROR")] or said
        why = last[-1].strip() if last else "exit code {}".format(done.returncode)
        raise Refusal("{}: {}".format(problem, why))

"""A wheelhouse folder: what an offline install takes everything from.

wheels/*.whl     all wheels, ours included
base.lock        pinned and hashed, for `pip install --require-hashes`
torch.lock       the same for the torch engine, if it is wanted
cpython.tar.gz   a CPython for boards whose own is too old, or None
target           the system that it was built for, such as jetpack4; for people
SHA256SUMS       of all of these; what it does not name is refused

Python 3.6 runs this: a board's own is as old as that.
"""

import hashlib
import re
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Set


class Refusal(Exception):
    """Nothing was changed; the message is for people."""


def demand(holds: bool, message: str) -> None:
    if not holds:
        raise Refusal(message)


def tell(doing: str, *about: object) -> None:
    """Say it, where somebody sees it; a script that calls this one sees the outcome alone."""
    if sys.stderr.isatty():
        print("{} ...".format(doing.format(*about)), file=sys.stderr, flush=True)


SUMS, CPYTHON, LOCKS = "SHA256SUMS", "cpython.tar.gz", ("base.lock", "torch.lock")
SUM = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")
AGAIN = "build the wheelhouse again, or copy it again"


class Wheelhouse:
    """A checked wheelhouse.

    Args:
        folder: Where it lies.

    Raises:
        Refusal: Something is missing, damaged, or not named in SHA256SUMS.
    """

    def __init__(self, folder: Path) -> None:
        demand(folder.is_dir(), "{} is not a folder; name the wheelhouse's".format(folder))
        self.folder = folder
        for name in (SUMS, LOCKS[0], "wheels"):
            there = (folder / name).exists()
            demand(there, "{} has no {}: it is no wheelhouse, or half of one".format(folder, name))
        self.sums = (folder / SUMS).read_bytes()
        self._check()
        self.wheels = sorted((folder / "wheels").glob("*.whl"))
        own = [wheel for wheel in self.wheels if wheel.name.startswith("smidgen-")]
        told = "{}/wheels holds {} wheels of smidgen, 1 is expected; {}"
        demand(len(own) == 1, told.format(folder, len(own), AGAIN))
        self.own = own[0]

    def _check(self) -> None:
        named = [self.folder / name for name in (*LOCKS, CPYTHON)]
        used = [path for path in named if path.exists()]
        used += (self.folder / "wheels").glob("*.whl")
        for fault in sum_faults(self.folder, self.sums, used, AGAIN):
            raise Refusal(fault)

    @property
    def release(self) -> str:
        """Our version, and eight digits that stand for all that is installed with it."""
        return "{}-{}".format(
            self.own.name.split("-")[1], hashlib.sha256(self.sums).hexdigest()[:8]
        )

    @property
    def locks(self) -> List[Path]:
        return [self.folder / name for name in LOCKS if (self.folder / name).exists()]

    @property
    def cpython(self) -> Optional[Path]:
        path = self.folder / CPYTHON
        return path if path.exists() else None

    @property
    def made_for(self) -> str:
        """The system that it was built for, in words; empty if nothing says it."""
        path = self.folder / "target"
        said = path.read_text("utf-8", "replace")[:40].strip() if path.is_file() else ""
        return ", which was built for {}".format(said) if said else ""

    @property
    def own_requirement(self) -> str:
        """Our wheel as a hashed line of requirements; empty where a lock names it."""
        for lock in self.locks:
            if re.search(r"^smidgen\s*==", lock.read_text("utf-8", "replace"), re.MULTILINE):
                return ""
        version = self.own.name.split("-")[1]
        return "smidgen=={} --hash=sha256:{}\n".format(version, sha256(self.own))

    @property
    def platforms(self) -> Set[str]:
        tags = (wheel.stem.split("-")[-1].split(".") for wheel in self.wheels)
        return {tag for of_one in tags for tag in of_one} - {"any"}

    @property
    def machine(self) -> Optional[str]:
        """What the wheels run on, such as aarch64; None where any machine will do.

        Raises:
            Refusal: They are for several.
        """
        found = {
            m for m in ("aarch64", "x86_64", "armv7l") for t in self.platforms if t.endswith(m)
        }
        told = "{}: wheels for {}; one wheelhouse is for one kind of machine"
        demand(len(found) < 2, told.format(self.folder, " and ".join(sorted(found))))
        return found.pop() if found else None

    @property
    def python(self) -> Optional[str]:
        found = set()
        for wheel in self.wheels:
            python, abi = wheel.stem.split("-")[-3:-1]
            if re.fullmatch(r"cp3\d+", python) and abi == python:
                found.add("3." + python[3:])
        told = "{}: wheels for CPython {}; one is expected"
        demand(len(found) < 2, told.format(self.folder, " and ".join(sorted(found))))
        return found.pop() if found else None

    def unpacked_bytes(self) -> int:
        """Disk that a release takes: what is in the wheels and the tarball, compiled code too.

        Raises:
            Refusal: One of them is not what its name says.
        """
        total, path = 0, self.own
        try:
            for path in self.wheels:
                with zipfile.ZipFile(str(path)) as archive:
                    for info in archive.infolist():
                        # Compiled code is about as long as its source
                        total += info.file_size * (2 if info.filename.endswith(".py") else 1) + 4096
            if self.cpython is not None:
                path = self.cpython
                with tarfile.open(str(path), "r:gz") as tarball:
                    total += sum(member.size + 4096 for member in tarball)
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
            raise Refusal("{} cannot be unpacked ({}); {}".format(path, error, AGAIN)) from error
        return total


def sum_faults(folder: Path, sums: bytes, held: Iterable[Path], todo: str) -> Iterator[str]:
    """What is said of files by SHA256SUMS and is not so, a line per fault.

    Args:
        folder: The wheelhouse.
        sums: What SHA256SUMS says.
        held: Files that it must name.
        todo: What to do about it.
    """
    named = set()
    for line in sums.decode("utf-8", "replace").splitlines():
        found = SUM.fullmatch(line)
        if found is None or ".." in found.group(2) or found.group(2).startswith("/"):
            yield "{}/{}: no checksum in {!r}; {}".format(folder, SUMS, line[:80], todo)
            continue
        path = folder / found.group(2)
        named.add(path)
        if not path.is_file():
            yield "{} is missing; {}".format(path, todo)
        elif sha256(path) != found.group(1):
            told = "{} is damaged: its SHA-256 is not the one in {}; {}"
            yield told.format(path, SUMS, todo)
    for path in held:
        if path not in named:
            yield "{} is not named in {}; {}".format(path, SUMS, todo)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()

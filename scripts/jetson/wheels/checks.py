"""Say what is wrong with a wheelhouse, a line per fault; exit code 1 if anything is."""

import argparse
import sys
import zipfile
from pathlib import Path
from typing import Dict, Iterator, List, Set

from locks import Locked, environment, fits, read_lock
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from shared_objects import Needs, of_tarball, of_wheel
from targets import DENIED, EXCLUDED, TARGETS, Target
from wheelhouse import CPYTHON, LOCKS, SUMS, Refusal, demand, sha256, sum_faults

AGAIN = "build the wheelhouse again"
OWN = ("smidgen", "pip")  # in no lock: ours, and what installs it


class Checked:
    """A wheelhouse that was looked through.

    Attributes:
        faults: Lines for people; none if it is good.
        needs: The highest symbol versions that its shared objects ask for.
        count: How many wheels it has.
    """

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder, self.target = folder, target
        self.wheels = sorted((folder / "wheels").glob("*.whl"))
        self.count = len(self.wheels)
        self.needs = Needs(target)
        self.faults = [*self._sums(), *self._locked(), *self._tags(), *self._denied()]
        self.faults += [*self._shared_objects(), *self._required()]

    def _sums(self) -> Iterator[str]:
        """Every file is named in SHA256SUMS with its own hash."""
        path = self.folder / SUMS
        if not path.is_file():
            yield "{} is missing; {}".format(path, AGAIN)
            return
        held = (file for file in sorted(self.folder.rglob("*")) if file.is_file() and file != path)
        yield from sum_faults(self.folder, path.read_bytes(), held, AGAIN)

    def _locked(self) -> Iterator[str]:
        """Locks and wheels name the same hashes; there is one wheel of smidgen's."""
        held: Dict[str, Locked] = {}
        for name in LOCKS:
            path = self.folder / name
            if path.exists():
                try:
                    held.update(read_lock(path))
                except Refusal as error:
                    yield str(error)
            elif name == LOCKS[0]:
                yield "{} is missing; {}".format(path, AGAIN)
        by_hash = {one.sha256: one for one in held.values()}
        seen: Set[str] = set()
        own = 0
        for wheel in self.wheels:
            if wheel.name.split("-")[0] in OWN:
                own += wheel.name.startswith("smidgen-")
                continue
            found = by_hash.get(sha256(wheel))
            if found is None:
                told = "{}: its SHA-256 is in no lock here; take the wheel that {} names"
                yield told.format(wheel.name, LOCKS[0])
            else:
                seen.add(found.name)
        for name in sorted(set(held) - seen):
            told = "{} {} is in a lock, and no wheel here has its SHA-256; {}"
            yield told.format(name, held[name].version, AGAIN)
        if own != 1:
            told = "{}/wheels holds {} wheels of smidgen, 1 is expected; {}"
            yield told.format(self.folder, own, AGAIN)

    def _tags(self) -> Iterator[str]:
        for wheel in self.wheels:
            try:
                is_good = fits(parse_wheel_filename(wheel.name)[3], self.target)
            except InvalidWheelFilename:
                yield "{} is not a wheel's name; {}".format(wheel.name, AGAIN)
                continue
            if not is_good:
                told = "{}: its tags do not fit {} (CPython {}, {}, glibc {}.{}); take another"
                of = self.target
                yield told.format(wheel.name, of.name, of.python, of.machine, *of.glibc[:2])

    def _denied(self) -> Iterator[str]:
        for name, version, wheel in self._versions():
            for denied in DENIED:
                applies = not denied.cpus or self.target.cpu in denied.cpus
                is_hit = name == denied.name and version in SpecifierSet(denied.versions)
                if is_hit and applies and self.target.machine == "aarch64":
                    yield "{} {}; pin another version".format(wheel.name, denied.why)

    def _versions(self) -> Iterator["tuple[str, str, Path]"]:
        for wheel in self.wheels:
            words = wheel.name.split("-")
            if len(words) >= 5:
                yield canonicalize_name(words[0]), words[1], wheel

    def _shared_objects(self) -> Iterator[str]:
        for wheel in self.wheels:
            yield from self.needs.add(wheel.name, of_wheel(wheel))
        tarball = self.folder / CPYTHON
        if tarball.exists():
            yield from self.needs.add(CPYTHON, of_tarball(tarball, self.target))

    def _required(self) -> Iterator[str]:
        """What a wheel requires is here: an install asks no index and resolves nothing."""
        there = {name: version for name, version, _ in self._versions()}
        for wheel in self.wheels:
            for needed in _requirements(wheel, self.target):
                name = canonicalize_name(needed.name)
                came = there.get(name)
                if came is None and name not in EXCLUDED:
                    told = "{} requires {}, which is not here; run pin_locks"
                    yield told.format(wheel.name, needed)
                elif came is not None and came not in needed.specifier:
                    told = "{} requires {}, {} is here; run pin_locks"
                    yield told.format(wheel.name, needed, came)


def _requirements(wheel: Path, target: Target) -> List[Requirement]:
    """What a wheel asks for on a target, extras aside."""
    here = {**environment(target), "extra": ""}
    try:
        with zipfile.ZipFile(str(wheel)) as archive:
            for name in archive.namelist():
                if name.count("/") == 1 and name.endswith(".dist-info/METADATA"):
                    meta = Metadata.from_email(archive.read(name), validate=False)
                    asked = meta.requires_dist or ()
                    return [one for one in asked if one.marker is None or one.marker.evaluate(here)]
    except (OSError, zipfile.BadZipFile):
        return []  # its shared objects could not be read either: said there
    return []


MARK = "target"  # the file in a wheelhouse that says what it is for


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="check_wheelhouse", description=__doc__)
    parser.add_argument("folder", type=Path, help="made by build_wheelhouse")
    parser.add_argument("--target", help="what it is for, if its file `target` does not say it")
    asked = parser.parse_args()
    try:
        checked = Checked(asked.folder, target_of(asked.folder, asked.target))
    except Refusal as error:
        print("check_wheelhouse: {}".format(error), file=sys.stderr)
        return 2
    for fault in checked.faults:
        print("check_wheelhouse: {}".format(fault), file=sys.stderr)
    if checked.faults:
        return 1
    told = "{} is good for {}: {} wheels; {}"
    print(told.format(asked.folder, checked.target.name, checked.count, checked.needs))
    return 0


def target_of(folder: Path, named: "str | None") -> Target:
    """What a wheelhouse is for.

    Raises:
        Refusal: Nobody says it, or it is nothing we know.
    """
    demand(folder.is_dir(), "{} is not a folder; name the wheelhouse's".format(folder))
    path = folder / MARK
    if named is None:
        told = "{} has no file `{}`; name one of {} with --target"
        demand(path.is_file(), told.format(folder, MARK, ", ".join(TARGETS)))
        named = path.read_text(encoding="utf-8", errors="replace").strip()
    return known(named)


def known(name: str) -> Target:
    """A target by its name.

    Raises:
        Refusal: There is none.
    """
    demand(name in TARGETS, "{!r} is not a target; there are {}".format(name, ", ".join(TARGETS)))
    return TARGETS[name]

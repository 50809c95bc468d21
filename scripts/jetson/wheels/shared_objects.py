"""The shared objects of a wheel or of a CPython, held against what a target's libraries offer."""

import re
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Dict, Iterator, Optional, Set, Tuple, Union

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment, DynamicTag
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from targets import Target, Version

# By pyelftools' names; as wheels spell them
MACHINES = {"EM_AARCH64": "aarch64", "EM_X86_64": "x86_64", "EM_ARM": "armv7l", "EM_386": "i686"}
DAMAGED = (ELFError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Elf:
    """A shared object or a program.

    Attributes:
        machine: As wheels spell it.
        soname: The name that others ask for it by, or None.
        versions: Library to the versions of its symbols that are needed, such as GLIBC_2.17.
    """

    machine: str
    soname: Optional[str]
    versions: Dict[str, Set[str]]


def is_elf(head: bytes) -> bool:
    return head[:4] == b"\x7fELF"


def read_elf(body: bytes) -> Elf:
    """Read a whole file.

    Raises:
        ValueError: It is cut short, or not of 64 bits, lowest byte first.
    """
    if body[4:6] != b"\x02\x01":
        raise ValueError("not an ELF file of 64 bits")
    try:
        file = ELFFile(BytesIO(body))
        segments = list(file.iter_segments())
        if any(one["p_offset"] + one["p_filesz"] > len(body) for one in segments):
            raise ELFError("a segment ends behind the file")
        machine = MACHINES.get(file["e_machine"], "ELF machine {}".format(file["e_machine"]))
        dynamic = next((one for one in segments if isinstance(one, DynamicSegment)), None)
        if dynamic is None:
            return Elf(machine, None, {})
        tags = {tag.entry.d_tag: tag for tag in dynamic.iter_tags()}
        soname = tags["DT_SONAME"].soname if "DT_SONAME" in tags else None
        return Elf(machine, soname, _versions(file, dynamic, tags))
    except DAMAGED as error:  # what pyelftools raises of bytes that are no whole ELF file
        raise ValueError("an ELF file that is cut short") from error


def _versions(
    file: ELFFile, dynamic: DynamicSegment, tags: Dict[str, DynamicTag]
) -> Dict[str, Set[str]]:
    """As the loader finds them, by the dynamic segment: a stripped file has no sections."""
    found: Dict[str, Set[str]] = {}
    if "DT_VERNEED" in tags:
        _, offset = dynamic.get_table_offset("DT_VERNEED")
        header = dict.fromkeys(("sh_flags", "sh_size", "sh_addralign"), 0)
        header.update(sh_offset=offset, sh_info=tags["DT_VERNEEDNUM"].entry.d_val)
        table = GNUVerNeedSection(header, "", file, dynamic._get_stringtable())
        for library, versions in table.iter_versions():
            found.setdefault(library.name, set()).update(one.name for one in versions)
    return found


NUMBERED = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)+)")
NEWER = {"GLIBC_ABI_DT_RELR": ("GLIBC", (2, 36))}  # a version that is no number
Found = Union[Elf, str]


def of_wheel(path: Path) -> Iterator[Tuple[str, Found]]:
    """Each shared object's path in a wheel, and what it is, or what is wrong with the file."""
    try:
        with zipfile.ZipFile(str(path)) as archive:
            for info in archive.infolist():
                with archive.open(info) as file:
                    head = file.read(4)
                    # Read to the end: that is what checks a member's own checksum
                    body = head + file.read() if is_elf(head) else _skip(file)
                if is_elf(body):
                    yield info.filename, _elf(body)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError):
        yield "", "is damaged: not a whole wheel; build the wheelhouse again"


def of_tarball(path: Path, target: Target) -> Iterator[Tuple[str, Found]]:
    """The same of a CPython's tarball, and whether it is the one that the wheels are for."""
    program = "python/bin/python" + target.python
    has_program = False
    try:
        with tarfile.open(str(path)) as archive:
            for member in archive:
                has_program = has_program or member.name == program
                file = archive.extractfile(member) if member.isfile() else None
                head = file.read(4) if file is not None else b""
                if file is not None and is_elf(head):
                    yield member.name, _elf(head + file.read())
    except (OSError, tarfile.TarError, zlib.error, EOFError):
        yield "", "is damaged: not a whole tarball; fetch it again"
        return
    if not has_program:
        told = "has no {}; take an install_only build of CPython {}"
        yield "", told.format(program, target.python)


def _skip(file: "zipfile.ZipExtFile") -> bytes:
    while file.read(1 << 20):
        pass
    return b""


def _elf(body: bytes) -> Found:
    try:
        return read_elf(body)
    except ValueError as error:
        return "is {}; build the wheelhouse again".format(error)


class Needs:
    """The highest versions that anything asked for so far.

    Args:
        target: Whose libraries must offer them.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.highest: Dict[str, Version] = {}
        self.objects = 0

    def add(self, name: str, found: Iterator[Tuple[str, Found]]) -> Iterator[str]:
        """Look at the shared objects of one file; its faults.

        Args:
            name: The file's, for people.
            found: What `of_wheel` or `of_tarball` gave.
        """
        members = list(found)
        brought = {elf.soname for _, elf in members if isinstance(elf, Elf)}
        brought |= {member.rsplit("/", 1)[-1] for member, _ in members}
        for member, elf in members:
            at = "{}: {}".format(name, member) if member else name
            if isinstance(elf, str):
                yield "{} {}".format(at, elf)
                continue
            self.objects += 1
            if elf.machine != self.target.machine:
                told = "{} is for {}, {} is expected; take another wheel"
                yield told.format(at, elf.machine, self.target.machine)
                continue
            for library, versions in sorted(elf.versions.items()):
                if library not in brought:
                    for version in sorted(versions):
                        yield from self._version(at, version)

    def _version(self, at: str, name: str) -> Iterator[str]:
        found = NUMBERED.fullmatch(name)
        if found is not None:
            kind, version = found[1], tuple(map(int, found[2].split(".")))
        elif name in NEWER:
            kind, version = NEWER[name]
        else:
            return
        self.highest[kind] = max(version, self.highest.get(kind, (0,)))
        most = self.target.most[kind]
        if version > most:
            told = "{} needs {}, {} has {}; pin an older version"
            yield told.format(at, name, self.target.name, dotted(most))

    def __str__(self) -> str:
        highest = ", ".join(
            "{} {}".format(kind, dotted(version)) for kind, version in sorted(self.highest.items())
        )
        return "{} shared objects need {}".format(self.objects, highest or "nothing")


def dotted(version: Version) -> str:
    return ".".join(map(str, version))

"""What a shared object asks of the system that it is loaded on, read from its dynamic section.

Only what a loader reads: program headers, the dynamic segment, the needed versions of symbols.
"""

import struct
from dataclasses import dataclass
from typing import Dict, Iterator, Optional, Set, Tuple

MACHINES = {183: "aarch64", 62: "x86_64", 40: "armv7l", 3: "i686"}
LOAD, DYNAMIC = 1, 2  # of program headers
STRINGS, SONAME, NEEDED_VERSIONS, HOW_MANY = 5, 14, 0x6FFFFFFE, 0x6FFFFFFF  # of the dynamic section


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
        (number,) = struct.unpack_from("<H", body, 18)
        machine = MACHINES.get(number, "ELF machine {}".format(number))
        segments = list(_segments(body))
        dynamic = _dynamic(body, segments)
        if STRINGS not in dynamic:
            return Elf(machine, None, {})
        strings = _offset(segments, dynamic[STRINGS])
        soname = _text(body, strings + dynamic[SONAME]) if SONAME in dynamic else None
        return Elf(machine, soname, _versions(body, segments, dynamic, strings))
    except (struct.error, IndexError) as error:
        raise ValueError("an ELF file that is cut short") from error


def _segments(body: bytes) -> Iterator[Tuple[int, int, int, int]]:
    """Kind, offset in the file, address, bytes in the file."""
    (start,) = struct.unpack_from("<Q", body, 32)
    size, count = struct.unpack_from("<HH", body, 54)
    for index in range(count):
        kind, _, offset, address, _, length = struct.unpack_from(
            "<IIQQQQ", body, start + index * size
        )
        yield kind, offset, address, length


def _dynamic(body: bytes, segments: "list[Tuple[int, int, int, int]]") -> Dict[int, int]:
    found = {}
    for kind, offset, _, length in segments:
        if kind == DYNAMIC:
            for at in range(offset, offset + length, 16):
                tag, value = struct.unpack_from("<QQ", body, at)
                if tag == 0:
                    break
                found[tag] = value
    return found


def _offset(segments: "list[Tuple[int, int, int, int]]", address: int) -> int:
    """Where in the file the byte lies that is loaded to an address."""
    for kind, offset, start, length in segments:
        if kind == LOAD and start <= address < start + length:
            return offset + address - start
    raise IndexError(address)


def _text(body: bytes, at: int) -> str:
    end = body.find(0, at) if 0 <= at < len(body) else -1
    if end < 0:
        raise IndexError(at)
    return body[at:end].decode("utf-8", "replace")


def _versions(
    body: bytes, segments: "list[Tuple[int, int, int, int]]", dynamic: Dict[int, int], strings: int
) -> Dict[str, Set[str]]:
    found: Dict[str, Set[str]] = {}
    if NEEDED_VERSIONS not in dynamic:
        return found
    at = _offset(segments, dynamic[NEEDED_VERSIONS])
    for _ in range(dynamic.get(HOW_MANY, 0)):
        _, count, library, inner, following = struct.unpack_from("<HHIII", body, at)
        names = found.setdefault(_text(body, strings + library), set())
        entry = at + inner
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", body, entry)
            names.add(_text(body, strings + name))
            entry += step
        at += following
    return found

"""Tiny shared objects: a dynamic section that asks a library for versions of its symbols."""

import struct
from collections.abc import Mapping, Sequence

MACHINES = {"aarch64": 183, "x86_64": 62}


def elf(machine: str, needs: Mapping[str, Sequence[str]]) -> bytes:
    """A shared object; `needs` maps libraries to versions such as GLIBC_2.17."""
    strings, places = b"\0", dict[str, int]()
    for text in [*needs, *(version for some in needs.values() for version in some)]:
        places.setdefault(text, len(strings))
        strings += text.encode() + b"\0"
    versions = b""
    for index, (library, some) in enumerate(needs.items()):
        following = 0 if index == len(needs) - 1 else 16 + 16 * len(some)
        versions += struct.pack("<HHIII", 1, len(some), places[library], 16, following)
        for place, version in enumerate(some):
            step = 0 if place == len(some) - 1 else 16
            versions += struct.pack("<IHHII", 0, 0, 2, places[version], step)
    dynamic_at = 64 + 2 * 56
    versions_at = dynamic_at + 4 * 16
    strings_at = versions_at + len(versions)
    whole = strings_at + len(strings)
    tags = [(5, strings_at), (0x6FFFFFFE, versions_at), (0x6FFFFFFF, len(needs)), (0, 0)]
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, MACHINES[machine], 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, whole, whole, 4096)
    dynamic = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, 64, 64, 8)
    return (
        head
        + load
        + dynamic
        + b"".join(struct.pack("<QQ", *tag) for tag in tags)
        + (versions + strings)
    )

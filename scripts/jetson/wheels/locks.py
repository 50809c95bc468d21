"""Locks: one wheel by name, version and SHA-256 a line, for one target; no address of an index."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, FrozenSet, List

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name
from targets import Target
from wheelhouse import demand

LOCKS = Path(__file__).resolve().parents[1] / "locks"
ENTRY = re.compile(r"([A-Za-z0-9][\w.-]*)==(\S+) --hash=sha256:([0-9a-f]{64})")
OLD_NAMES = {(2, 5): "manylinux1", (2, 12): "manylinux2010", (2, 17): "manylinux2014"}


@dataclass(frozen=True)
class Locked:
    """One wheel of a lock file."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return "{}=={} \\\n    --hash=sha256:{}\n".format(self.name, self.version, self.sha256)


def lock_path(target: Target, kind: str) -> Path:
    """Where our lock for a target lies; kind is base or torch."""
    return LOCKS / "{}.{}.lock".format(target.name, kind)


def read_lock(path: Path) -> Dict[str, Locked]:
    """A lock's wheels by their canonical names.

    Raises:
        Refusal: A line is not `name==version --hash=sha256:...`, or names a second wheel.
    """
    found: Dict[str, Locked] = {}
    joined = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in joined.splitlines():
        words = " ".join(line.split("#")[0].split())
        if not words:
            continue
        entry = ENTRY.fullmatch(words)
        told = "{}: expected name==version and one sha256, came {!r}; run pin_locks"
        demand(entry is not None, told.format(path, words[:80]))
        assert entry is not None
        locked = Locked(canonicalize_name(entry[1]), entry[2], entry[3])
        demand(locked.name not in found, "{} names {} twice".format(path, locked.name))
        found[locked.name] = locked
    return found


def platforms(target: Target) -> List[str]:
    most = []
    for minor in range(target.glibc[1], 4, -1):
        most.append("manylinux_2_{}_{}".format(minor, target.machine))
        if (2, minor) in OLD_NAMES:
            most.append("{}_{}".format(OLD_NAMES[2, minor], target.machine))
    return most


def tags(target: Target) -> List[Tag]:
    version = tuple(int(part) for part in target.python.split("."))
    abi = "cp" + "".join(target.python.split("."))
    on = platforms(target)
    found = list(cpython_tags(version, [abi], on))
    return found + list(compatible_tags(version, abi, on))


def fits(of_wheel: FrozenSet[Tag], target: Target) -> bool:
    return any(tag in of_wheel for tag in tags(target))


def environment(target: Target) -> Dict[str, str]:
    """What a requirement's marker is judged by, on a target."""
    return {
        "implementation_name": "cpython",
        "implementation_version": target.python + ".0",
        "os_name": "posix",
        "platform_machine": target.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": target.python + ".0",
        "python_version": target.python,
        "sys_platform": "linux",
    }

"""What we support, as tables: systems that a wheelhouse can be for, boards, wheels that do harm.

`check_wheelhouse` judges by them, `pin_locks` resolves for them, and docs/boards.md prints them.
Nothing here was run on a real board.
"""

from dataclasses import dataclass
from typing import Dict, Tuple

Version = Tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """A system that a wheelhouse is for.

    Attributes:
        machine: As wheels spell it.
        python: The CPython that its wheels are for.
        is_brought: Whether that comes in the wheelhouse, since the system's own is too old.
        most: Highest symbol versions that its C and C++ libraries offer.
        cpu: The oldest instruction set among its boards.
        resolver: The nearest platform that uv knows; wheels are judged by `most`, not by it.
        constraints: Beside those of constraints/constraints.txt, which they replace.
        has_torch: Whether there is a torch lock.
    """

    name: str
    system: str
    machine: str
    python: str
    is_brought: bool
    most: Dict[str, Version]
    cpu: str
    resolver: str
    constraints: Tuple[str, ...] = ()
    has_torch: bool = False

    @property
    def glibc(self) -> Version:
        return self.most["GLIBC"]


def _libraries(glibc: Version, glibcxx: Version, cxxabi: Version) -> Dict[str, Version]:
    return {"GLIBC": glibc, "GLIBCXX": glibcxx, "CXXABI": cxxabi}


PLAIN = _libraries((2, 28), (3, 4, 25), (1, 3, 11))  # Debian 10 and all that is newer

TORCH = "torch==2.5.1"  # the newest for glibc 2.27; one for all boards
FOR_TORCH = "sympy==1.13.1"  # that torch takes no other
TARGETS = {
    target.name: target
    for target in (
        Target(
            name="jetpack4",
            system="JetPack 4.6 (Ubuntu 18.04)",
            machine="aarch64",
            python="3.11",
            is_brought=True,
            most=_libraries((2, 27), (3, 4, 25), (1, 3, 11)),  # GCC 8's libstdc++
            cpu="ARMv8.0",
            resolver="aarch64-manylinux_2_28",
            constraints=("onnxruntime<=1.28.0",),  # later ones need glibc 2.28
            has_torch=True,
        ),
        Target(
            name="jetpack5",
            system="JetPack 5 (Ubuntu 20.04)",
            machine="aarch64",
            python="3.11",
            is_brought=True,
            most=_libraries((2, 31), (3, 4, 28), (1, 3, 12)),
            cpu="ARMv8.2",
            resolver="aarch64-manylinux_2_31",
            has_torch=True,
        ),
        Target(
            name="jetpack6",
            system="JetPack 6 (Ubuntu 22.04)",
            machine="aarch64",
            python="3.10",
            is_brought=False,
            most=_libraries((2, 35), (3, 4, 30), (1, 3, 13)),
            cpu="ARMv8.2",
            resolver="aarch64-manylinux_2_35",
            has_torch=True,
        ),
        Target(
            name="arm64",
            system="Linux with glibc 2.28 or newer",
            machine="aarch64",
            python="3.11",
            is_brought=False,
            most=PLAIN,
            cpu="ARMv8.0",
            resolver="aarch64-manylinux_2_28",
        ),
        Target(
            name="amd64",
            system="Linux with glibc 2.28 or newer",
            machine="x86_64",
            python="3.11",
            is_brought=False,
            most=PLAIN,
            cpu="x86-64",
            resolver="x86_64-manylinux_2_28",
        ),
    )
}
EXCLUDED = {"hf-xet": "no wheel for glibc 2.27; huggingface-hub works without it"}


@dataclass(frozen=True)
class Denied:
    """Wheels that install and then do harm.

    Attributes:
        versions: As a requirement says them.
        cpus: Where they do; empty for any aarch64 target.
    """

    name: str
    versions: str
    cpus: Tuple[str, ...]
    why: str


_SIGILL = "dies with SIGILL at import on ARMv8.0 (no LSE atomics)"
DENIED = (
    Denied("torch", "==2.0.0", ("ARMv8.0",), _SIGILL),
    Denied("torch", "==2.4.0", ("ARMv8.0",), _SIGILL),
    Denied("torch", "==2.10.0", ("ARMv8.0",), _SIGILL),
    Denied("onnxruntime", "==1.21.0", ("ARMv8.0",), _SIGILL),
    Denied("torch", ">=2.11", (), "brings gigabytes of CUDA 13, which no JetPack 4 to 6 can use"),
)


@dataclass(frozen=True)
class Board:
    """What we say of some boards.

    Attributes:
        tier: 1 supported, 2 lighter, "untested" or "not supported".
        target: Name of the wheelhouse; empty where there is none.
    """

    boards: str
    system: str
    tier: str
    target: str
    engines: str
    checked: str


_EMULATED = "wheels' check, and both engines under an emulated Cortex-A57"
_CHECKED = "wheels' check"
_ORIN, _LINUX = "Orin Nano, Orin NX, AGX Orin", "Linux, glibc 2.28 or newer"
_BOTH = "onnx, torch (CPU)"
BOARDS = (
    Board("TX2 8 GB, TX2i; Nano 4 GB", "JetPack 4.6", "1", "jetpack4", _BOTH, _EMULATED),
    Board("Xavier NX, AGX Xavier; Orin", "JetPack 5", "1", "jetpack5", _BOTH, _CHECKED),
    Board(_ORIN, "JetPack 6", "1", "jetpack6", _BOTH, _CHECKED),
    Board("Nano 2 GB; TX2 NX, TX2 4 GB", "JetPack 4.6", "2", "jetpack4", "onnx", _EMULATED),
    Board("Raspberry Pi 4 and 5, any arm64", _LINUX, "2", "arm64", "onnx", _CHECKED),
    Board("any x86-64", _LINUX, "2", "amd64", "onnx", "wheels' check, and an install"),
    Board("Orin, on its GPU", "JetPack 5 and 6", "untested", "", "torch (CUDA)", "nothing"),
    Board(
        "TX2, TX1 and Nano, on their GPU", "JetPack 4.6", "not supported", "", "none", "see below"
    ),
)

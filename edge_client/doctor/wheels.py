"""Wheels that are known to die, and on which processors.

Cortex-A57 and Denver 2 (TX1, TX2, Nano) are ARMv8.0: they lack the atomic instructions (LSE) that
some releases were built with, so importing them is an illegal instruction. Tried under an emulated
Cortex-A57, or reported by others; nothing was run on a real board.
"""

import re
from collections.abc import Collection

LSE, ALL_HAVE = "atomics", "asimd"  # as /proc/cpuinfo calls them; every aarch64 has the second
DIE_WITHOUT_LSE = {"torch": ("2.0.0", "2.4.0", "2.10.0"), "onnxruntime": ("1.21.0",)}
NEWEST_WITHOUT_CUDA = (2, 10)  # torch; later aarch64 wheels of the public index are CUDA 13 builds
NO_WHEEL = "install the version of the wheelhouse's lock"


def is_without_lse(machine: str, flags: Collection[str]) -> bool:
    """Whether this is an ARMv8.0; not where the processor does not say what it has."""
    return machine == "aarch64" and ALL_HAVE in flags and LSE not in flags


def objection(library: str, version: str, machine: str, flags: Collection[str]) -> str:
    """Why a release will die on a processor; empty where nothing is known against it."""
    plain = version.partition("+")[0]
    if is_without_lse(machine, flags) and plain in DIE_WITHOUT_LSE.get(library, ()):
        return f"{library} {plain} dies on ARMv8.0 processors such as this one"
    return ""


def is_for_a_server(library: str, version: str) -> bool:
    """Whether an aarch64 wheel from the public index brings CUDA for servers."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if library != "torch" or numbers is None or "+cpu" in version:
        return False
    return (int(numbers[1]), int(numbers[2])) > NEWEST_WITHOUT_CUDA

"""Boards that are not here: cores, clocks, width of arithmetic and of memory.

None of these figures was measured by us. A peak is arithmetic on them: cores x clock x operations
per cycle, and bytes per transfer x transfers per second.

`published` was read in a copy of the document itself: Xavier NX (DA-09366-001), and the memory of
Orin Nano. `commonly cited` was not looked up in the document that is named; check it there before
an estimate decides anything.
"""

from dataclasses import dataclass
from typing import Literal

BoardKind = Literal["published", "commonly cited", "assumed"]
GIB = 1 << 30
CITED: BoardKind = "commonly cited"
A57 = (
    "commonly cited from the Arm Cortex-A57 Software Optimization Guide: one "
    "float32 fused multiply-add on four numbers "
    "per cycle"
)
A78 = (
    "commonly cited from the Arm Cortex-A78AE Software Optimization Guide: two "
    "float32 fused multiply-adds on four numbers "
    "per cycle"
)
ORIN_CORES = (
    "commonly cited from the NVIDIA Jetson Orin Nano module data sheet: six Cortex-A78AE at 1.5 GHz"
)


@dataclass(frozen=True)
class Board:
    """A board's processor and memory.

    Attributes:
        name: As people call it.
        memory_bytes: All of it; the system's own share included.
        cores: That the estimate computes on.
        clock_hz: With all of these cores on.
        flops_per_cycle: float32 operations of one core in a cycle; a multiply-add is two.
        memory_bits: Width of the memory's bus.
        transfers_per_s: On each of its lines.
        flags: What the kernel says that the processor has, for the planner.
        sources: Where each of these is from, and what is assumed.
        clock_kind: How we came by its cores and their clock.
        cycle_kind: By the operations per cycle.
        memory_kind: By the memory's bus.
    """

    name: str
    memory_bytes: int
    cores: int
    clock_hz: float
    flops_per_cycle: int
    memory_bits: int
    transfers_per_s: float
    flags: tuple[str, ...]
    sources: tuple[str, ...]
    clock_kind: BoardKind = CITED
    cycle_kind: BoardKind = CITED
    memory_kind: BoardKind = CITED

    @property
    def peak_flops_per_s(self) -> float:
        return self.cores * self.clock_hz * self.flops_per_cycle

    @property
    def peak_bytes_per_s(self) -> float:
        return self.memory_bits / 8 * self.transfers_per_s


BOARDS = {
    "nano": Board(
        "Jetson Nano 4 GB",
        *(4 * GIB, 4, 1.43e9, 8, 64, 3.2e9, ("asimd",)),
        sources=(
            "commonly cited from the NVIDIA Jetson Nano module data sheet: cores, clock, 64-bit "
            "LPDDR4 at 1600 MHz",
            A57,
        ),
    ),
    "tx2": Board(
        "Jetson TX2 8 GB",
        *(8 * GIB, 4, 2.0e9, 8, 128, 3.732e9, ("asimd",)),
        sources=(
            "commonly cited from the NVIDIA Jetson TX2 module data sheet: four Cortex-A57 at 2.0 "
            "GHz, 128-bit LPDDR4 at 1866 MHz; the two Denver cores are left out",
            A57,
        ),
    ),
    "xavier-nx": Board(
        "Jetson Xavier NX 8 GB",
        *(8 * GIB, 6, 1.4e9, 8, 128, 3.2e9, ("asimd", "asimdhp")),
        sources=(
            "NVIDIA Jetson Xavier NX module data sheet DA-09366-001: six Carmel cores, 128-bit "
            "LPDDR4x at 1600 MHz; their 1.9 GHz are of two cores, 1.4 GHz of all six in the 15 W "
            "mode",
            "operations per cycle of a Carmel core are not published: those of a Cortex-A57 are "
            "assumed",
        ),
        clock_kind="published",
        cycle_kind="assumed",
        memory_kind="published",
    ),
    "orin-nano": Board(
        "Jetson Orin Nano 8 GB",
        *(8 * GIB, 6, 1.5e9, 16, 128, 4.266e9, ("asimd", "asimdhp")),
        sources=(
            ORIN_CORES,
            "NVIDIA Jetson Orin Nano module data sheet: 128-bit LPDDR5 at 2133 MHz",
            A78,
        ),
        memory_kind="published",
    ),
    "orin-nano-4": Board(
        "Jetson Orin Nano 4 GB",
        *(4 * GIB, 6, 1.5e9, 16, 64, 4.266e9, ("asimd", "asimdhp")),
        sources=(
            ORIN_CORES,
            "NVIDIA Jetson Orin Nano module data sheet: 64-bit LPDDR5 at 2133 MHz",
            A78,
        ),
        memory_kind="published",
    ),
}

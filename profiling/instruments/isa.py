"""Holding torch to a smaller instruction set, as an older processor would have it: `--isa`.

By the libraries' own switches, which they read when they are loaded. ONNX Runtime has none;
bitsandbytes follows torch's. Held like this, our planner is offered float32 alone.
"""

import platform

from profiling.instruments.bases import BenchmarkError
from profiling.instruments.machine import this_machine

_SWITCHES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
# Name -> the processor's flag, then the switches of torch's own kernels, oneDNN and MKL.
ISAS = {
    "sse4": ("sse4_2", "default", "SSE41", "SSE4_2"),
    "avx2": ("avx2", "avx2", "AVX2", "AVX2"),
    "avx512": ("avx512f", "avx512", "AVX512_CORE", "AVX512"),
}


def held_to(isa: str) -> dict[str, str]:
    """Environment of a process that is held to an instruction set; empty of the empty name."""
    return dict(zip(_SWITCHES, ISAS[isa][1:], strict=True)) if isa else {}


def check_isa(isa: str) -> None:
    """Refuse an instruction set that cannot be had here.

    Raises:
        BenchmarkError: None of `ISAS`, or one that this processor lacks.
    """
    if not isa:
        return
    if isa not in ISAS:
        raise BenchmarkError(f"--isa {isa} is not one of {', '.join(ISAS)}")
    machine = this_machine()
    if ISAS[isa][0] not in machine.instruction_sets:
        processor = machine.processor or platform.machine()
        raise BenchmarkError(f"--isa {isa}: this processor ({processor}) has none; leave it out")

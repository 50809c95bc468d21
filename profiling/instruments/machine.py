"""Machine facts that must agree before two runs are compared: processor, kernel, versions.

`--isa` holds torch to a smaller instruction set, as an older processor has it, by the libraries'
own environment variables, read as they load. ONNX Runtime has none; bitsandbytes follows torch's.
With it our planner is offered float32 alone.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.metering.machine import governor, power_mode
from smidgen.edge_client.metering.memory import number, text
from smidgen.edge_client.planning.resources import cpu_flags, usable_cores
from smidgen.profiling.instruments.bases import BenchmarkError
from smidgen.profiling.records.record import Conditions

# What the engines' matrix products choose their code by, on x86-64 and on ARM.
INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
LIBRARIES = ("numpy", "torch", "transformers", "peft", "bitsandbytes", "onnxruntime")


@dataclass(frozen=True)
class Machine:
    """Where a run was made; but for the load, what must agree for two runs to be compared.

    Attributes:
        machine: Processor architecture, such as `aarch64`.
        processor: The name of the processor, or None where the kernel does not tell.
        instruction_sets: Those of `INSTRUCTION_SETS` that the kernel says it has.
        cores: Processors that may be used.
        memory_bytes: Physical memory.
        kernel: The release of the kernel.
        load_1m: Load average of the last minute before the run; above zero others were at work.
        board: Model of a board, such as `NVIDIA Jetson TX2 Developer Kit`; None where the kernel
            does not tell, as on a PC.
        physical_cores: Of all its processors, threads of one core counted once; None if unknown.
        governor: What chooses the cores' clocks, such as `schedutil`; None where nothing does, as
            in a virtual machine.
        power_mode: A Jetson's, such as `0 MAXN`; None elsewhere.
        swap_bytes: Swap there is, zram included.
        zram_bytes: Swap that is compressed memory, before compression.
        swappiness: How readily the kernel swaps, 0 to 200; None if unknown.
    """

    machine: str
    processor: str | None
    instruction_sets: list[str]
    cores: int
    memory_bytes: int
    kernel: str
    load_1m: float
    board: str | None = None
    physical_cores: int | None = None
    governor: str | None = None
    power_mode: str | None = None
    swap_bytes: int | None = None
    zram_bytes: int | None = None
    swappiness: int | None = None


def this_machine(root: Path = Path("/")) -> Machine:
    """This machine's facts, read now.

    Args:
        root: Where the files of the kernel lie that psutil does not read; another in tests.
    """
    mode, flags = power_mode(root), cpu_flags(text(root / "proc/cpuinfo"))
    return Machine(
        machine=platform.machine(),
        processor=_processor(root / "proc/cpuinfo"),
        instruction_sets=[name for name in INSTRUCTION_SETS if name in flags],
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        load_1m=round(psutil.getloadavg()[0], 2),
        board=text(root / "proc/device-tree/model") or None,
        physical_cores=psutil.cpu_count(logical=False),
        governor=governor(root),
        power_mode=None if mode is None else str(mode),
        swap_bytes=psutil.swap_memory().total,
        zram_bytes=_zram_bytes(root / "proc/swaps"),
        swappiness=number(root / "proc/sys/vm/swappiness"),
    )


def _processor(cpuinfo: Path) -> str | None:
    rows = text(cpuinfo).splitlines()
    names = [row.partition(":")[2].strip() for row in rows if row.startswith("model name")]
    return names[0] if names else None


def _zram_bytes(swaps: Path) -> int | None:
    """By the rows of `/proc/swaps`: file name, type, KiB, KiB used, priority; None without it."""
    rows = [row.split() for row in text(swaps).splitlines()[1:]]
    return sum(int(row[2]) << 10 for row in rows if "zram" in row[0]) if swaps.exists() else None


def gemm_flops_per_s(threads: int | None = None) -> float:
    """Operations per second of a plain float32 product of 1536 x 1536, measured now.

    By numpy's BLAS in a process of its own, median of nine.

    Args:
        threads: That compute; None for all.

    Raises:
        Failed: Its process ended before it could tell.
    """
    code = (
        "from smidgen.edge_client.planning.resources import measured_flops as f; print(f(1536, 9))"
    )
    counts = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", code]
    # An interrupted `run` ends its process
    done = subprocess.run(command, env=os.environ | counts, stdout=subprocess.PIPE, text=True)
    demand(
        done.returncode == 0,
        f"the rate of products cannot be measured: its process ended with {done.returncode}",
        Failed,
    )
    return float(done.stdout)


def library_files() -> list[Path]:
    """The libraries that our engines compute with: most of what their processes have mapped."""
    found: list[Path] = []
    for name in ("torch", "onnxruntime", "numpy"):
        spec = find_spec(name)
        for place in (spec and spec.submodule_search_locations) or []:
            folders = (Path(place), Path(f"{place}.libs"))
            found += [path for folder in folders for path in folder.rglob("*.so*")]
    return sorted(path for path in found if path.is_file())


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def conditions(
    base_id: str = "",
    plan: Mapping[str, Any] | None = None,
    seed: int = 0,
    isa: str = "",
    machine: Mapping[str, Any] | None = None,
    libraries: Mapping[str, str | None] | None = None,
) -> Conditions:
    """This machine, and what else must agree.

    Args:
        base_id: SHA-256 of the base; empty where none takes part.
        plan: How a step is computed, or None.
        seed: Root seed.
        isa: What the libraries were held to.
        machine: `asdict` of `this_machine()`, where it was read before; None: it is read now.
        libraries: Their versions; None: those installed beside us.
    """
    here = dict(asdict(this_machine()) if machine is None else machine)
    load = here.pop("load_1m")
    found = versions() if libraries is None else dict(libraries)
    held = None if plan is None else dict(plan)
    return Conditions(here, found, base_id, held, seed, isa, load)


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

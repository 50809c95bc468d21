"""What must agree before two runs may be compared: processor, memory, kernel, library versions."""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from edge_client.planning.resources import memory_bytes, usable_cores

# What the engines' matrix products choose their code by, on x86-64 and on ARM.
INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
LIBRARIES = ("numpy", "torch", "transformers", "peft", "bitsandbytes", "onnxruntime")


@dataclass(frozen=True)
class Machine:
    """Where a run was made.

    Attributes:
        machine: Processor architecture, such as `aarch64`.
        processor: The name of the processor, or None where the kernel does not tell.
        instruction_sets: Those of `INSTRUCTION_SETS` that the kernel says it has.
        cores: Processors that may be used.
        memory_bytes: Physical memory.
        kernel: The release of the kernel.
        load_1m: Load average of the last minute before the run; above zero others were at work.
    """

    machine: str
    processor: str | None
    instruction_sets: list[str]
    cores: int
    memory_bytes: int
    kernel: str
    load_1m: float


def this_machine() -> Machine:
    """This machine's facts, read now."""
    return Machine(
        machine=platform.machine(),
        processor=_processor(Path("/proc/cpuinfo")),
        instruction_sets=_instruction_sets(Path("/proc/cpuinfo")),
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        kernel=platform.release(),
        load_1m=round(os.getloadavg()[0], 2),
    )


def _processor(cpuinfo: Path) -> str | None:
    rows = cpuinfo.read_text(errors="replace").splitlines()
    names = [row.partition(":")[2].strip() for row in rows if row.startswith("model name")]
    return names[0] if names else None


def _instruction_sets(cpuinfo: Path) -> list[str]:
    rows = cpuinfo.read_text(errors="replace").splitlines()
    told = [row.partition(":")[2].split() for row in rows if row.startswith(("flags", "Features"))]
    return [name for name in INSTRUCTION_SETS if told and name in told[0]]


def gemm_flops_per_s(threads: int | None = None) -> float:
    """Operations per second of a plain float32 product of 1536 x 1536, measured now.

    By numpy's BLAS in a process of its own, median of nine.

    Args:
        threads: That compute; None for all.
    """
    code = "from edge_client.planning.resources import measured_flops as f; print(f(1536, 9))"
    counts = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, env=os.environ | counts, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            answer, _ = process.communicate()
        finally:
            process.kill()  # an interrupted benchmark leaves nobody behind
            process.wait()
    return float(answer)


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
    """Installed versions; None where a library is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found

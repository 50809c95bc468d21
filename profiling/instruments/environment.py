"""What a benchmark runs in: this machine, its bases in the user's cache, the peers' environments.

    ~/.cache/smidgen/packs/random-roberta-large-4-0     SHAPE-BITS-SEED
    ~/.cache/smidgen/packs/0c9f6a41d2b37e58-8           identity of the source, BITS
    ~/.cache/smidgen/peers/0c9f6a41d2b37e58-nf4         a peer's checkpoint of the same weights

Each is made by a process of its own, so that its cost is in no measured process, and may be deleted
at any time. Peers that cannot be installed beside us have environments made by a script in
`scripts/`, which writes `MARK` last, so that an incomplete one does not count.

Machine facts that must agree before two runs are compared: processor, kernel, versions.

`--isa` holds torch to a smaller instruction set, as an older processor has it, by the libraries'
own environment variables, read as they load. ONNX Runtime has none; bitsandbytes follows torch's.
With it our planner is offered float32 alone.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from smidgen.edge_client.bases.base import EMBEDDED, Base, BaseError, open_base
from smidgen.edge_client.bases.gguf.header import is_gguf
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.metering.machine import governor, power_mode
from smidgen.edge_client.metering.memory import number, text
from smidgen.edge_client.outputs import home_folder
from smidgen.edge_client.planning.resources import cpu_flags, usable_cores
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.profiling.records.record import Conditions

BITS = (4, 8, 16)
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
# Label words; the first four that are single tokens of a base's vocabulary are taken.
WORDS = (
    *("world", "sports", "business", "science", "technology", "news"),
    *("good", "bad", "great", "terrible", "yes", "no", "a", "b", "c", "d"),
)
LABELS = 4


class BenchmarkError(WrongInput):
    """A benchmark that cannot be run as it was asked for."""


def demand_between(values: Mapping[str, tuple[int, int, int]]) -> None:
    """Refuse an option's value that is out of its range.

    Args:
        values: Option -> the least value, the one given, the greatest.

    Raises:
        BenchmarkError: Names the first one.
    """
    for name, (least, value, most) in values.items():
        demand(value >= least, f"--{name} {value} is less than {least}", BenchmarkError)
        demand(value <= most, f"--{name} {value} is more than {most}", BenchmarkError)


def cache_folder() -> Path:
    """Where packs and checkpoints are kept: `$XDG_CACHE_HOME/smidgen`.

    Raises:
        OutputError: It is not set, and the user has no home.
    """
    if chosen := os.environ.get("XDG_CACHE_HOME", ""):
        return Path(chosen) / "smidgen"
    return home_folder("set XDG_CACHE_HOME or HOME") / ".cache" / "smidgen"


def find_base(name: str, is_random: bool, bits: int | None, seed: int) -> Base:
    """A base in the bits asked for; packed first where the cache has no such pack.

    Args:
        name: A shape that `smidgen pack --random` knows; or a pack, a Hugging Face folder,
            `embedded`, a hub name.
        is_random: Whether `name` is such a shape.
        bits: 4, 8 or 16; None for the base's own, of a random one 4.
        seed: Root seed of the random weights.

    Raises:
        BenchmarkError: No such base, or it cannot be packed.
    """
    demand(bits in (None, *BITS), f"--bits {bits} is not one of 4, 8 and 16", BenchmarkError)
    if is_random:
        folder = cache_folder() / "packs" / f"random-{name}-{bits or 4}-{seed}"
        return _packed(name, bits or 4, folder, ["--random", "--seed", str(seed)])
    base = _opened(name)
    if bits in (None, base.bits):
        return base
    if base.manifest is not None:
        raise BenchmarkError(
            f"base {name} is packed with {base.bits} bits already; give the model it was made "
            f"from, or leave --bits {bits} out"
        )
    return _packed(name, int(bits), cache_folder() / "packs" / f"{base.base_id[:16]}-{bits}", [])


def _packed(name: str, bits: int, folder: Path, more: Sequence[str]) -> Base:
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        pack = ["smidgen", "pack", name, "--bits", str(bits), "--out", str(folder), *more]
        make([sys.executable, "-m", *pack], {})
    return _opened(str(folder))


def _opened(name: str) -> Base:
    try:
        return open_base(name)
    except BaseError as error:
        raise BenchmarkError(str(error)) from error


def is_shape(name: str) -> bool:
    return name != EMBEDDED and not is_gguf(name) and not Path(name).is_dir()


def find_checkpoint(base: Base, kind: str) -> Path:
    """A peer's checkpoint of a base's weights; made first where the cache has none.

    Args:
        base: The base.
        kind: `float32` or `nf4`.

    Raises:
        BenchmarkError: It cannot be made.
    """
    demand(
        not base.is_gguf,
        f"base {base.name} is a GGUF file, which no peer reads; leave peers out",
        BenchmarkError,
    )
    folder = cache_folder() / "peers" / f"{base.base_id[:16]}-{kind}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = ["smidgen.profiling.peers.torch_checkpoint", str(base.folder), str(folder), kind]
        make([sys.executable, "-m", *command], OFFLINE)
    return folder


def make(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a process that makes something; its last words become the error.

    Raises:
        BenchmarkError: It failed.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment, check=False
    )
    if done.returncode:
        rows = done.stderr.strip().splitlines() or ["it said nothing"]
        raise BenchmarkError(rows[-1].removeprefix("smidgen pack: "))


def label_words(base: Base) -> dict[str, int]:
    """Four words that are one token each in this base's vocabulary, with their token ids.

    Raises:
        BenchmarkError: The vocabulary has no four of them.
    """
    try:
        tokens = open_tokens(base)
    except TaskError as error:
        raise BenchmarkError(f"base {base.name}: {error}") from error
    found, before = dict[str, int](), len(tokens.encode("a"))
    unknown = tokens.encode("a \N{SNOWMAN}")[before:]
    for word in WORDS:
        ids = tokens.encode(f"a {word}")[before:]
        if len(ids) == 1 and ids != unknown and ids[0] not in found.values():
            found[word] = ids[0]
    if len(found) < LABELS:
        raise BenchmarkError(
            f"base {base.name} has only {len(found)} of the label words {', '.join(WORDS)} as "
            "single tokens; four are needed"
        )
    return dict(list(found.items())[:LABELS])


MARK = ".installed"
ROOT = Path(__file__).parents[3]  # that `smidgen` lies in
# Our packages come last on the path: beside them may lie libraries of another environment.
LAUNCH = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def folder_of(name: str, variable: str) -> Path:
    """Where an environment is looked for: as the variable says, else in the cache folder."""
    chosen = os.environ.get(variable, "")
    return Path(chosen) if chosen else cache_folder() / name


def why_missing(folder: Path, script: str) -> str | None:
    if (folder / MARK).is_file():
        return None
    return f"there is no environment for it at {folder}; {script} makes one"


def command_in(folder: Path, module: str, *arguments: str) -> list[str]:
    return [str(folder / "bin" / "python"), "-c", LAUNCH, str(ROOT), module, *arguments]


# What the engines' matrix products choose their code by, on x86-64 and on ARM.
INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)


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
    for name in ("numpy", "torch", "transformers", "peft", "bitsandbytes", "onnxruntime"):
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
    demand(isa in ISAS, f"--isa {isa} is not one of {', '.join(ISAS)}", BenchmarkError)
    machine = this_machine()
    if ISAS[isa][0] not in machine.instruction_sets:
        processor = machine.processor or platform.machine()
        raise BenchmarkError(f"--isa {isa}: this processor ({processor}) has none; leave it out")

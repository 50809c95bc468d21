"""The CUDA device: whether one is usable, its properties, and the memory torch takes of it.

`--device cuda` is the first one torch sees (CUDA_VISIBLE_DEVICES chooses another). The CUDA
context, some hundreds of megabytes that the driver takes first, is in no figure here: free memory
is read after it exists, and torch's allocator does not count it.
"""

import platform
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.engine.torch_backend.matrices import nf4_dense_by_bitsandbytes
from smidgen.edge_client.errors import installing
from smidgen.edge_client.planning.budget import Guard, is_allocation_failure
from smidgen.edge_client.planning.cuda_memory import CUDA, Accelerator, DevicePeak
from smidgen.edge_client.planning.resources import ARM

REFUSED = "--device cuda: torch sees no CUDA device here"
ELSE = "use --device cpu"
JETSON = (
    "the GPUs of Jetson TX2 and Nano have no CUDA that PyTorch 2 computes with, Orin needs a build "
    "for its JetPack"
)
# What torch and bitsandbytes raise where they do not fit each other, the driver or the card.
UNFIT = (
    ImportError,
    OSError,
    RuntimeError,
    AttributeError,
    AssertionError,
    torch.cuda.DeferredCudaCallError,
)


def find_card(bits: int) -> Accelerator:
    """The CUDA device, tried out by a product and, for 4 bits, by bitsandbytes' kernel.

    Args:
        bits: Of the base's weights.

    Raises:
        EngineError: There is none, or it does not compute with what is installed.
    """
    with warnings.catch_warnings(record=True) as told:  # such as of a driver that is too old
        warnings.simplefilter("always")
        is_there = torch.cuda.is_available()
    if not is_there:
        said = _first_line(told[0].message) if told else ""
        version, built_for = torch.__version__, torch.version.cuda
        raise EngineError(refusal(version, built_for, platform.machine(), said))
    with _in_one_line("the CUDA device", "the CUDA device cannot be used"):
        properties = torch.cuda.get_device_properties(0)
    _try_product(properties.name)
    if bits == 4:
        _try_nf4(properties.name)
    with _in_one_line(properties.name, f"the memory of {properties.name} is unknown"):
        free_bytes, total_bytes = torch.cuda.mem_get_info(0)
    return Accelerator(
        name=properties.name,
        capability=(properties.major, properties.minor),
        processors=properties.multi_processor_count,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        is_unified=bool(properties.is_integrated),
    )


def refusal(version: str, built_for: str | None, machine: str, said: str = "") -> str:
    """Why there is no CUDA device, and what to do, in one line.

    Args:
        version: torch's.
        built_for: The CUDA that torch was built for, or None.
        machine: Processor architecture.
        said: What torch warned of when it looked.
    """
    is_arm = machine in ARM
    if built_for is None:
        remedy = JETSON if is_arm else f"uninstall it, then {installing('gpu')}"
        return f"{REFUSED} (torch {version} is a build without CUDA; {remedy}); {ELSE}"
    reason = f": {said}" if said else ""
    jetson = f"; {JETSON}" if is_arm else ""
    return (
        f"{REFUSED} (torch {version} is built for CUDA {built_for} and finds no driver or no "
        f"card{reason}{jetson}); {ELSE}"
    )


@contextmanager
def _in_one_line(name: str, claim: str, remedy: str = ELSE) -> Iterator[None]:
    """Let what goes wrong inside end as one line.

    Args:
        name: The card's.
        claim: What it means; but memory that ran out is told as that.
        remedy: What to do.

    Raises:
        EngineError: Something went wrong inside.
    """
    try:
        yield
    except UNFIT as error:
        is_full = is_allocation_failure(error) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error)
        told = f"{name} is full" if is_full else claim
        raise EngineError(f"--device cuda: {told}: {_first_line(error)}; {remedy}") from error


def _try_product(name: str) -> None:
    kinds = ", ".join(torch.cuda.get_arch_list())
    claim = f"torch {torch.__version__} (for {kinds}) does not compute on {name}"
    with _in_one_line(name, claim):
        ones = torch.ones(16, 16, device=CUDA)
        (ones @ ones).sum().item()


def _try_nf4(name: str) -> None:
    """Dequantize one block of zeros, which stand for -1."""
    other = f"take a base of 8 or 16 bits, or {ELSE}"
    if find_spec("bitsandbytes") is None:
        raise EngineError(
            "--device cuda reads a base of 4 bits by bitsandbytes, which is not installed; pip "
            f"install 'smidgen[gpu]', {other}"
        )
    with _in_one_line(name, f"bitsandbytes does not compute on {name}", other):
        data = torch.zeros(1, 32, dtype=torch.uint8, device=CUDA)
        dense = nf4_dense_by_bitsandbytes(data, torch.ones(1, 1, device=CUDA), torch.float32)
        is_right = bool((dense == -1).all())
    if not is_right:
        raise EngineError(f"--device cuda: bitsandbytes computes wrongly on {name}; {other}")


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


class CardGuard:
    """The peak that torch reserved of the card since the last reset, held against a budget.

    On unified memory the process's own peak is added: the budget is of one store. The two need not
    fall together, so their sum is the most it can have been.

    Args:
        budget_bytes: What may be reserved.
        is_unified: Whether the card shares the processor's memory.
    """

    def __init__(self, budget_bytes: int, is_unified: bool) -> None:
        self.budget_bytes = budget_bytes
        self._process = Guard(budget_bytes) if is_unified else None
        self._highest = DevicePeak(0, 0, is_unified)

    def peak_bytes(self) -> int | None:
        """The peak (measured by torch's allocator); None where the process's is not known."""
        reserved = torch.cuda.max_memory_reserved()
        if self._process is None:
            return reserved
        resident = self._process.peak_bytes()
        return None if resident is None else reserved + resident

    def reset(self) -> bool:
        """Forget the peak so far; what is cached and not used goes back first."""
        self._highest = self.device_peak()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return self._process is None or self._process.reset()

    def is_over(self) -> bool:
        """Whether the peak has passed the budget since the last reset."""
        return (self.peak_bytes() or 0) > self.budget_bytes

    def device_peak(self) -> DevicePeak:
        """The highest since the guard was made, resets or not."""
        return DevicePeak(
            max(self._highest.allocated_bytes, torch.cuda.max_memory_allocated()),
            max(self._highest.reserved_bytes, torch.cuda.max_memory_reserved()),
            self._highest.is_unified,
        )


def finish(ceiling_bytes: int | None) -> None:
    """Wait for what was started; then give back what is cached, above a ceiling if there is one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if ceiling_bytes is not None:
        give_back(ceiling_bytes)


def give_back(above_bytes: int = 0) -> None:
    """Give what torch has cached of the card back, if it has reserved more than that."""
    if torch.cuda.memory_reserved() > above_bytes:
        torch.cuda.empty_cache()


def measured_flops(size: int = 2048, repeats: int = 5) -> float:
    """Operations per second of float32 products on the card, measured; median of `repeats`."""
    a = torch.ones(size, size, device=CUDA)
    out = a @ a
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        torch.matmul(a, a, out=out)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / max(statistics.median(times), 1e-9)

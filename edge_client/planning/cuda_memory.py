"""Memory of a training step on a GPU, by formula, and the time that copying weights to it takes.

`torch_backend.card` reads the facts about a device. They are plain data, so that plans for a GPU
are tested on machines without one.

The moments of a step are those of `planning.torch_memory`, except that nothing is memory-mapped on
a GPU: stored weights are copied there, all of them or one at a time, and a dense weight is new at
each use. On unified memory the process's own memory is added, since both share one store. The
formulas have not been compared with a GPU yet; only their parts were, on a CPU.
"""

from dataclasses import dataclass

from smidgen.edge_client.bases.families import family_of, has_embedding_map
from smidgen.edge_client.planning.layer_cost import linear_sizes
from smidgen.edge_client.planning.plan import Plan, Workload
from smidgen.edge_client.planning.step_cost import Rates, layer_calls, step_seconds
from smidgen.edge_client.planning.torch_memory import (
    DTYPE_BYTES,
    MemoryEstimate,
    adapter_bytes,
    elements,
    layer_pages,
    moments,
    stored_bytes,
    vector_elements,
)

CPU, CUDA = "cpu", "cuda"  # what `--device` takes
UNIFIED = "unified"  # a CUDA device that shares the processor's memory, such as a Jetson's

# What one multiprocessor computes in a second, float32, by compute capability: two operations in
# each of its lanes at 1.4 GHz, of which half is counted on. Typical figures, none measured here;
# plans are compared by them.
_LANES = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_LANE_FLOPS = 0.5 * 2 * 1.4e9
_TENSOR_CORES = 4.0  # times float32's rate in 16 bits, the least of those that have them
_DENSE_BYTES_PER_S = {CUDA: 100e9, UNIFIED: 20e9}  # of dequantizing: bound by the card's memory
_LAYER_CALL_S = 5e-4  # about fifty kernels, started one by one


@dataclass(frozen=True)
class DevicePeak:
    """The most that torch took of a CUDA device's memory, measured by its allocator.

    Attributes:
        allocated_bytes: In tensors.
        reserved_bytes: Held from the driver for them; what another process cannot have.
        is_unified: Whether that memory is the processor's too.
    """

    allocated_bytes: int
    reserved_bytes: int
    is_unified: bool = False


@dataclass(frozen=True)
class Accelerator:
    """A CUDA device.

    Attributes:
        name: What its driver calls it.
        capability: Compute capability, major and minor.
        processors: Its multiprocessors.
        total_bytes: Its memory; of a unified one the machine's.
        free_bytes: What nobody holds of it now, this process's CUDA context being there already.
        is_unified: Whether it has no memory of its own but shares the processor's.
    """

    name: str
    capability: tuple[int, int]
    processors: int
    total_bytes: int
    free_bytes: int
    is_unified: bool = False

    @property
    def device(self) -> str:
        return UNIFIED if self.is_unified else CUDA

    @property
    def dtypes(self) -> tuple[str, ...]:
        """16-bit types that it computes faster than float32; the safer one where it has both."""
        if self.capability >= (8, 0):
            return ("bfloat16",)
        return ("float16",) if self.capability >= (7, 0) else ()

    @property
    def nominal(self) -> Rates:
        """Typical rates of its kind; equal cards, equal rates."""
        lanes = _LANES.get(self.capability, 128)
        single = self.processors * lanes * _LANE_FLOPS
        flops = {"float32": single} | dict.fromkeys(self.dtypes, _TENSOR_CORES * single)
        dense = dict.fromkeys((4, 8, 16, 32), _DENSE_BYTES_PER_S[self.device])
        return Rates(flops, dense, _LAYER_CALL_S)


# The next two are guesses until somebody has measured.
FIXED_BYTES = 96 << 20  # cuBLAS's workspaces, and what the allocator's segments are rounded up by
HOLES = 0.15  # reserved for nothing, between what is held


def estimate(work: Workload, plan: Plan, runtime_bytes: int) -> MemoryEstimate:
    """Estimate a plan's peak: what torch reserves of the card, its CUDA context left out.

    A smaller micro-batch, more recomputed layers, a smaller depth or streamed weights never give a
    larger total.

    Args:
        work: What is trained.
        plan: How.
        runtime_bytes: Resident bytes of the process before the base is opened; they count on
            unified memory alone.
    """
    peak = max(moments(work, plan), key=lambda moment: moment.kept + moment.transient)
    weights, scratch = weight_bytes(work, plan), dense_bytes(work, plan)
    is_one_store = work.device == UNIFIED
    holes = round(HOLES * (peak.kept + peak.transient + scratch))
    return MemoryEstimate(
        runtime=runtime_bytes if is_one_store else 0,
        adapter=adapter_bytes(work, plan),
        vectors=4 * vector_elements(work.shape),
        scratch=scratch,
        weights=weights,
        kept=peak.kept,
        transient=peak.transient,
        slack=FIXED_BYTES + holes + (host_bytes(work) if is_one_store else 0),
    )


def host_bytes(work: Workload) -> int:
    """Estimated bytes that the process adds to its libraries: the tokenizer and mapped pages."""
    found = work.tokenizer_bytes
    return max(found.held + layer_pages(work), found.loading)


def other_matrices(work: Workload) -> list[tuple[int, int]]:
    """Sizes of the matrices outside the layers: behind the embeddings, and the head's dense."""
    shape, found = work.shape, list[tuple[int, int]]()
    family = family_of(shape.architecture)
    if has_embedding_map(shape):
        found.append((shape.hidden, shape.embedding))
    if family.head_dense and not work.spec.head:
        found.append((shape.embedding, shape.hidden))
    return found


def weight_bytes(work: Workload, plan: Plan) -> int:
    """Bytes of the stored weights on the card; streamed: of the largest alone."""
    layer = [stored_bytes(size, work.bits) for size in linear_sizes(work.shape).values()]
    others = [stored_bytes(size, work.bits) for size in other_matrices(work)]
    if plan.is_streamed:
        return max(*layer, *others)
    return work.shape.stored_layers * sum(layer) + sum(others)


def dense_bytes(work: Workload, plan: Plan) -> int:
    """Bytes of the largest weight in the form it is used in; 0 where it is stored in it."""
    if (work.bits, plan.dtype) in ((16, "bfloat16"), (32, "float32")):
        return 0
    sizes = [*linear_sizes(work.shape).values(), *other_matrices(work)]
    return max(elements(size) for size in sizes) * DTYPE_BYTES[plan.dtype]


# From memory that is not pinned, over PCI Express or within one store; typical, not measured here.
COPY_BYTES_PER_S = {CUDA: 6e9, UNIFIED: 10e9}


def copied_bytes(work: Workload, plan: Plan) -> int:
    """Bytes copied to the card in one step: nothing, or a layer's weights at each pass."""
    if not plan.is_streamed:
        return 0
    layer = sum(stored_bytes(size, work.bits) for size in linear_sizes(work.shape).values())
    return layer * layer_calls(work, plan)


def seconds(work: Workload, plan: Plan, rates: Rates) -> float:
    """Estimated seconds of one optimizer step, copies included."""
    copied = copied_bytes(work, plan)
    copying = copied / COPY_BYTES_PER_S[work.device] if copied else 0.0
    return step_seconds(work, plan, rates) + copying

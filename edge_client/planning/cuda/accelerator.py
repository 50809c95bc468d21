"""Facts about a CUDA device, as the planner needs them; `torch_backend.card` reads them.

Plain data, so that plans for a GPU are tested on machines without one.
"""

from dataclasses import dataclass

from smidgen.edge_client.planning.step_cost import Rates

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

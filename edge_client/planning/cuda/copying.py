"""What copying weights to a card costs a step."""

from edge_client.planning.cuda.accelerator import CUDA, UNIFIED
from edge_client.planning.layer_cost import linear_sizes
from edge_client.planning.plan import Plan, Workload
from edge_client.planning.step_cost import Rates, layer_calls, step_seconds
from edge_client.planning.torch_memory import stored_bytes

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

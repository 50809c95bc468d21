"""What a device is handed that takes less rank than the run has."""

from coordinator.rounds.learning.exact import at_rank
from coordinator.rounds.learning.products import LORA_A, lora_modules
from edge_client.adapters.spec import at_most, parse_adapter
from edge_client.wire.tensors import AdapterState


def spec_at_rank(adapter_spec: str, rank: int) -> str:
    """The name of a run's adapter as a device of at most this rank trains it.

    Args:
        adapter_spec: The run's, as it was named.
        rank: 1 or more.
    """
    spec = parse_adapter(adapter_spec)
    lower = at_most(spec, rank)
    return adapter_spec if lower is spec else str(lower)


def handed(adapter: AdapterState, adapter_spec: str) -> AdapterState:
    """A run's adapter as a device gets it that trains it under a name; the run's own as it is.

    Args:
        adapter: The run's.
        adapter_spec: The name (`spec_at_rank`).
    """
    ranks = [len(adapter[module + LORA_A]) for module in lora_modules(adapter)]
    rank = parse_adapter(adapter_spec).largest_rank if ranks else 0
    return at_rank(adapter, rank) if rank and rank < max(ranks) else adapter

"""Whether an adapter's tensors are those that a base wants, told before they are used."""

from pathlib import Path

from edge_client.adapters.initial import initial_adapter
from edge_client.adapters.spec import AdapterError, AdapterSpec
from edge_client.bases.base import Base
from edge_client.wire.tensors import AdapterState


def fitting(
    folder: Path, spec: AdapterSpec, base: Base, num_labels: int, state: AdapterState
) -> AdapterState:
    """The tensors in our order.

    Args:
        folder: Where they come from, for messages.
        spec: The adapter.
        base: The base it is for.
        num_labels: Rows of a classification head.
        state: The tensors.

    Raises:
        AdapterError: One is missing, of another shape, or has no place in the base.
    """
    wanted = {name: t.shape for name, t in initial_adapter(spec, base, num_labels, 0).items()}
    for name, shape in wanted.items():
        if name not in state:
            raise AdapterError(f"{folder}: no tensor {name}, which base {base.name} wants")
        if state[name].shape != shape:
            raise AdapterError(
                f"{folder}: {name} is {state[name].shape}, base {base.name} wants {shape}"
            )
    if extra := sorted(set(state) - set(wanted)):
        raise AdapterError(f"{folder}: tensor {extra[0]} has no place in base {base.name}")
    return {name: state[name] for name in wanted}

"""Checks that an adapter's tensors fit a base, before they are used."""

from pathlib import Path

from edge_client.adapters.initial import check_asked, initial_adapter
from edge_client.adapters.spec import AdapterError, AdapterSpec
from edge_client.bases.base import Base
from edge_client.tasks.kind import kind_of
from edge_client.tasks.task import Task
from edge_client.wire.tensors import AdapterState


def fitting(
    folder: Path, spec: AdapterSpec, base: Base, task: Task, state: AdapterState
) -> AdapterState:
    """The tensors in our order.

    Args:
        folder: Where they come from, for messages.
        spec: The adapter.
        base: The base it is for.
        task: What it is to answer: says what a head reads, and tells apart.
        state: The tensors.

    Raises:
        AdapterError: It cannot answer such a task, or one of them is missing, of another shape, or
            has no place in the base.
    """
    check_asked(spec, task, base)
    head = kind_of(task).head(task)
    like = initial_adapter(spec, base, head.rows, 0, is_of_words=head.is_of_words)
    wanted = {name: tensor.shape for name, tensor in like.items()}
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

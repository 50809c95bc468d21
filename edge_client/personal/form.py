"""How the numbers that a device trains for itself become an adapter, and gradients theirs.

The engine knows LoRA's A and B alone. Whoever trains something that these are made of, such as a
factor for every rank, gives the engine an adapter and takes its gradients back by the chain rule:
one form in numpy serves both engines.

    engine.put(form.adapter(numbers))
    loss, gradients = engine.gradients(batch)
    pulled = form.pull(numbers, gradients, num_examples)
"""

from collections.abc import Sequence
from typing import Protocol

from edge_client.adapters.stacks import Stack
from edge_client.wire.tensors import AdapterState


class Form(Protocol):
    """A way to write an adapter; numbers are float32 by name, as adapters are."""

    def adapter(self, numbers: AdapterState) -> AdapterState:
        """What the engine computes with."""

    def pull(
        self, numbers: AdapterState, gradients: AdapterState, num_examples: int
    ) -> AdapterState:
        """Gradients of the numbers: the chain rule, and what the form itself asks of them.

        Args:
            numbers: Where they stand.
            gradients: Of the adapter, as `Engine.gradients` gives them.
            num_examples: Texts trained on, all batches together.
        """

    def scales(self, numbers: AdapterState) -> frozenset[str]:
        """Names of the numbers that scale ranks; they learn at a rate of their own."""

    def settle(self, numbers: AdapterState, step: int, steps: int) -> None:
        """Called after each step, counted from 1, of so many; may change numbers in place."""


class Plain:
    """LoRA as it is: the numbers are the adapter."""

    def adapter(self, numbers: AdapterState) -> AdapterState:
        return numbers

    def pull(
        self, numbers: AdapterState, gradients: AdapterState, num_examples: int
    ) -> AdapterState:
        return gradients

    def scales(self, numbers: AdapterState) -> frozenset[str]:
        return frozenset()

    def settle(self, numbers: AdapterState, step: int, steps: int) -> None:
        """Nothing to settle."""


class Above:
    """Another form's adapter above a shared one, which stays as it is.

    Law: pulled gradients are those that the other form has of its own part alone.

    Args:
        form: Of one's own.
        stack: Joins the two.
        shared: The shared adapter. Where there are several, it changes while one's own is trained:
            each but the last lies below for an equal part of the steps, and the last in the end.
    """

    def __init__(self, form: Form, stack: Stack, shared: Sequence[AdapterState]) -> None:
        self._form, self._stack, self._shared, self._at = form, stack, shared, 0

    def adapter(self, numbers: AdapterState) -> AdapterState:
        return self._stack.joined(self._form.adapter(numbers), self._shared[self._at])

    def pull(
        self, numbers: AdapterState, gradients: AdapterState, num_examples: int
    ) -> AdapterState:
        return self._form.pull(numbers, self._stack.own(gradients), num_examples)

    def scales(self, numbers: AdapterState) -> frozenset[str]:
        return self._form.scales(numbers)

    def settle(self, numbers: AdapterState, step: int, steps: int) -> None:
        """See `Form`; and what lies below is the one whose turn comes."""
        self._form.settle(numbers, step, steps)
        self._at = step * (len(self._shared) - 1) // steps

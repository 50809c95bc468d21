"""RoLoRA: LoRA's A and B are trained in turn, one in each round.

Chen et al. 2025 (arXiv:2409.02346): in odd rounds A rests and B is trained, in even ones B rests.
What rests is the same on every device, so the mean of B A is exact in each round, and half of
LoRA's numbers travel. B comes first, for it starts at zero, where A's gradient is zero.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from edge_client.codecs.codec import Shapes
from edge_client.updates.step import (
    Contribution,
    Correction,
    DeviceContext,
    ServerContext,
    UpdateStep,
)
from edge_client.wire.tensors import Update


class RoLora(UpdateStep):
    """See the module."""

    name = "rolora"

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        """With the tensors that rest."""
        resting = {name for name in correction.received if rests(name, context.round_index)}
        return replace(correction, frozen=correction.frozen | resting)

    def outgoing(self, update: Update, context: DeviceContext) -> Update:
        """Without them."""
        delta = update.delta
        kept = {name: one for name, one in delta.items() if not rests(name, context.round_index)}
        return replace(update, delta=kept)

    def shapes(self, shapes: Shapes, round_index: int) -> Shapes:
        """Without them."""
        return {name: shape for name, shape in shapes.items() if not rests(name, round_index)}

    def incoming(
        self, cohort: Iterable[Contribution], context: ServerContext
    ) -> Iterator[Contribution]:
        """With zeros for them."""
        resting = {
            name: np.zeros(shape, np.float32)
            for name, shape in context.shapes.items()
            if rests(name, context.round_index)
        }
        for one in cohort:
            yield replace(one, delta=one.delta | resting)


def rests(tensor: str, round_index: int) -> bool:
    """Whether a tensor is not trained in a round: A in odd ones, B in even ones."""
    return f".lora_{'A' if round_index % 2 else 'B'}." in tensor

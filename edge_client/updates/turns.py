"""LoRA's factors take turns: in each round A rests or what stands to the left of it does.

What rests is the same on every device, so the mean of B A is exact in each round, and half of
LoRA's numbers or less are sent. A begins: it starts at zero beside a drawn B, so that the first
mean of A spans what B^T G has, G being the gradient of the whole weights. That mean's orthogonal
rows are the A that later rounds keep; a drawn A leaves most of G out, as LoRA-SB says of its fixed
factors (Ponkshe et al. 2024, arXiv:2411.19557).

    ffa, core    A in round 1, from then on B or the core      (FFA-LoRA, arXiv:2403.12313; Fed-SB)
    rolora       A in odd rounds, B in even ones               (RoLoRA, arXiv:2409.02346)
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from edge_client.codecs.codec import Shapes
from edge_client.updates.forms import LORA_A, drawn_rows, is_left, left_of
from edge_client.updates.step import (
    Contribution,
    Correction,
    DeviceContext,
    ServerContext,
    UpdateStep,
)
from edge_client.wire.tensors import AdapterState, Update, shapes_of


class Turns(UpdateStep):
    """One of two factors rests in each round, and is not sent.

    Args:
        form: The adapter's, of `updates.forms.FORMS`.
    """

    name = "turns"

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def _rests(self, tensor: str, round_index: int) -> bool:
        is_a_s = round_index == 1 or (self._form == "rolora" and round_index % 2 == 1)
        return is_left(tensor) if is_a_s else tensor.endswith(LORA_A)

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        resting = {one for one in correction.received if self._rests(one, context.round_index)}
        return replace(correction, frozen=correction.frozen | resting)

    def outgoing(self, update: Update, context: DeviceContext) -> Update:
        sent = self.shapes(shapes_of(update.delta), context.round_index)
        return replace(update, delta={name: update.delta[name] for name in sent})

    def shapes(self, shapes: Shapes, round_index: int) -> Shapes:
        return {name: one for name, one in shapes.items() if not self._rests(name, round_index)}

    def incoming(
        self, cohort: Iterable[Contribution], context: ServerContext
    ) -> Iterator[Contribution]:
        """With zeros for what rests."""
        resting = {
            name: np.zeros(shape, np.float32)
            for name, shape in context.shapes.items()
            if self._rests(name, context.round_index)
        }
        for one in cohort:
            yield replace(one, delta=one.delta | resting)

    def settled(self, adapter: AdapterState, context: ServerContext) -> AdapterState:
        """After round 1 A = L Q (polar decomposition) is written as Q, and L goes to its left.

        The rows of Q are as long as those of a drawn A. An A that nothing has moved and that gets
        no other turn is drawn, and what stands to its left is zero then: the adapted model is the
        same in both cases.
        """
        after = dict(adapter)
        for name in (name for name in adapter if name.endswith(LORA_A)):
            left, a = left_of(name, adapter), adapter[name].astype(np.float64)
            if not a.any() and self._form != "rolora":
                after[name] = drawn_rows(name, a.shape)
                after[left] = np.zeros_like(adapter[left])
            elif a.any() and context.round_index == 1:
                u, s, v = np.linalg.svd(a, full_matrices=False)
                after[name] = (u @ v / np.sqrt(3.0)).astype(np.float32)
                moved = adapter[left] @ (u * s) @ u.T * np.sqrt(3.0)
                after[left] = moved.astype(np.float32)
        return after

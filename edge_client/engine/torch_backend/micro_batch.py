"""State of one micro-batch on its way through the torch engine's layers."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from smidgen.edge_client.bases.architectures import Answers
from smidgen.edge_client.engine.frozen_base import FrozenBase
from smidgen.edge_client.engine.torch_backend.layers import Context, additive_mask, rotary_angles
from smidgen.edge_client.texts.batches import Batch


@dataclass(frozen=True)
class Pass:
    """One micro-batch on its way through the layers.

    Attributes:
        ids: Token ids, (B, T).
        attention: 1 for real tokens, prompt included, (B, P + T).
        context: What every layer sees.
        dtype: What is computed in.
        places: Rows of the top layer's states that the head reads, (answers,); None: all it has.
        segments: See `Batch`; read before the first layer.
        is_of_mean: Whether the head reads the mean of a text's states.
    """

    ids: Tensor
    attention: Tensor
    context: Context
    dtype: torch.dtype
    places: Tensor | None = None
    segments: np.ndarray | None = None
    is_of_mean: bool = False

    def mean(self, states: Tensor) -> Tensor:
        """Of each text's states, (B, P + T, H), without its padding, (B, H)."""
        real = self.attention.to(states.dtype)  # (B, P + T)
        return (real[:, None] @ states).squeeze(1) / real.sum(1, keepdim=True)

    def some(self, rows: np.ndarray) -> "Pass":
        """The pass restricted to some texts; an encoder's alone."""
        assert self.places is None, "texts of several answers go all the way"
        mask, answers = (
            None if part is None else part[rows]
            for part in (self.context.mask, self.context.answers)
        )
        attention = self.attention[rows]
        own, starts = _laid_out(attention, is_unpadded=self.context.own is not None)
        context = replace(self.context, mask=mask, answers=answers, own=own, starts=starts)
        return replace(self, ids=self.ids[rows], attention=attention, context=context)


def _laid_out(attention: Tensor, *, is_unpadded: bool) -> tuple[Tensor | None, Tensor]:
    """`own` and `starts` of a `Context`, of states (N, H) if unpadded, else (B, T, H)."""
    texts, tokens = attention.shape
    if not is_unpadded:
        return None, torch.arange(texts, device=attention.device) * tokens
    lengths = attention.sum(1)
    return attention.flatten().nonzero().squeeze(1), lengths.cumsum(0) - lengths


def open_pass(
    batch: Batch, base: FrozenBase, prompt: int, device: torch.device, dtype: torch.dtype
) -> Pass:
    """The layers' view of a micro-batch.

    Args:
        batch: Encoded texts.
        base: The base.
        prompt: P, tokens of a soft prompt.
        device: Where it is computed.
        dtype: Computed in.
    """
    shape = base.shape
    ids = torch.from_numpy(batch.ids).to(device)
    attention = torch.from_numpy(batch.attention).to(device)
    attention = functional.pad(attention, (prompt, 0), value=1)
    # A decoder's padding lies behind its text, where nobody sees it.
    mask = None if shape.is_decoder else additive_mask(attention, dtype)
    if (bias := base.score_bias(attention.shape[1])) is not None:
        added = torch.from_numpy(bias).to(device, dtype).expand(len(ids), *bias.shape)
        mask = added if mask is None else added + mask
    rotary = {
        is_local: rotary_angles(shape, is_local, attention.shape[1], device, dtype)
        for is_local in shape.turned_kinds
    }
    answers = torch.from_numpy(batch.mask_positions).to(device) + prompt
    own, starts = _laid_out(attention, is_unpadded=not bool(attention.all()))
    is_short = batch.texts is None and base.family.has(Answers)
    layout = own, starts, attention.shape[1]
    context = Context(mask, answers if is_short else None, rotary, *layout)
    of = slice(None) if batch.texts is None else torch.from_numpy(batch.texts).to(device)
    places = None if is_short else answers + starts[of]
    return Pass(ids, attention, context, dtype, places, batch.segments)

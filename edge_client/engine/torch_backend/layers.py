"""Layers over frozen memory-mapped weights, as plain functions of tensors.

A frozen linear saves nothing for backward: not its weight, which is dequantized where it is used
and dropped, nor its input, unless an adapter needs it. Attention saves queries, keys and values,
never the (heads, tokens, tokens) scores. So a layer holds only what the adapter's exact gradient
needs, the idea that MeBP and MeSP apply to decoders.

Shapes: B texts, T tokens, H hidden, F intermediate, A heads, D width of a head.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from smidgen.edge_client.bases import architectures as ops
from smidgen.edge_client.bases.architectures import Block, Shape, dying_registers
from smidgen.edge_client.engine.frozen_base import scaled_frequencies
from smidgen.edge_client.engine.torch_backend.matrices import FrozenMatrix
from smidgen.edge_client.planning.layer_cost import SCORES, window_blocks, window_of


class _Frozen(torch.autograd.Function):
    """A frozen linear; backward needs the weight alone and dequantizes it anew."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, matrix: FrozenMatrix, bias: Tensor | None, is_value_needed: bool
    ) -> Tensor:
        ctx.matrix = matrix
        if not is_value_needed:
            return x.new_zeros(1).expand(*x.shape[:-1], matrix.shape[0])
        return matrix.times(x, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.matrix.times_transposed(grads[0]), None, None, None


@dataclass
class Linear:
    """A frozen linear with what is trained beside it.

    Attributes:
        matrix: The frozen weight.
        bias: float32 (rows,); a leaf that requires gradient in a bias adapter.
        lora_a: float32 (rank, columns), or None.
        lora_b: float32 (rows, rank), or None.
        scaling: LoRA's alpha / rank.
        rows: Which rows of a trained bias and of `lora_b` are this linear's; None: all.
    """

    matrix: FrozenMatrix
    bias: Tensor | None = None
    lora_a: Tensor | None = None
    lora_b: Tensor | None = None
    scaling: float = 0.0
    rows: slice | None = None

    def __call__(self, x: Tensor, is_value_needed: bool = True) -> Tensor:
        """W x + bias + scaling B A x.

        Without `is_value_needed` the frozen product is left out: for a recomputation whose result
        nobody reads, since no gradient here depends on it.
        """
        is_bias_trained = self.bias is not None and self.bias.requires_grad
        fixed = None if is_bias_trained else self.bias
        y: Tensor = _Frozen.apply(x, self.matrix, fixed, is_value_needed)
        if is_bias_trained and self.bias is not None:
            y = y + self._own(self.bias).to(y.dtype)
        if self.lora_a is not None and self.lora_b is not None:
            low = functional.linear(x, self.lora_a.to(x.dtype))  # (..., rank)
            y = y + functional.linear(low, self._own(self.lora_b).to(x.dtype)) * self.scaling
        return y

    def _own(self, trained: Tensor) -> Tensor:
        return trained if self.rows is None else trained[self.rows]


@dataclass
class Norm:
    """Layer normalization, or root-mean-square normalization.

    Attributes:
        weight: float32 (H,).
        bias: float32 (H,), or None; a leaf that requires gradient in a bias adapter.
        eps: Added to the variance.
        is_rms: Whether by the root mean square.
    """

    weight: Tensor
    bias: Tensor | None
    eps: float
    is_rms: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        if not self.is_rms:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return functional.layer_norm(x, weight.shape, weight, bias, self.eps)
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.square().mean(-1, True) + self.eps)).to(x.dtype)


class _Attention(torch.autograd.Function):
    """softmax(q k.T / sqrt(D) + mask) v; scores are recomputed in backward, chunk by chunk.

    A softmax's gradient takes the mean off what comes back. Values are centered before, so that
    little is left to take off: the worst gradients, those of queries and keys, come two to three
    times nearer to the exact ones (float32, measured), at no cost.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        window: int | None,
        is_causal: bool,
    ) -> Tensor:
        # q: (B, A, T, D); k, v: (B, K, S, D)
        ctx.save_for_backward(q, k, v)
        ctx.mask, ctx.window, ctx.is_causal = mask, window, is_causal
        out = torch.empty_like(q)
        for part, keys in _chunks(q, k, window, is_causal):
            added = _mask_of(mask, part, keys, window, is_causal, q)
            p = _probabilities(q[part], k[keys], added)
            if window is None and p.shape[1] == q.shape[1]:
                torch.matmul(p, v[keys], out=out[part])
            else:
                out[part] = (p @ v[keys]).view(q[part].shape)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v = ctx.saved_tensors
        whole = ctx.window is None and k.shape[1] == q.shape[1]
        empty = torch.empty_like if whole else torch.zeros_like  # keys of a window come again
        dq, dk, dv = torch.empty_like(q), empty(k), empty(v)
        for part, keys in _chunks(q, k, ctx.window, ctx.is_causal):
            added = _mask_of(ctx.mask, part, keys, ctx.window, ctx.is_causal, q)
            p = _probabilities(q[part], k[keys], added)
            g = _grouped(grads[0][part], k)  # p: (b, A, T, S), or (b, K, A / K * T, S)
            if whole:
                torch.matmul(p.transpose(-1, -2), g, out=dv[keys])
            else:
                dv[keys] += p.transpose(-1, -2) @ g
            centered = v[keys] - v[keys].mean(2, keepdim=True)
            ds = g @ centered.transpose(-1, -2)
            ds = torch._softmax_backward_data(ds, p, -1, p.dtype).mul_(q.shape[-1] ** -0.5)
            if whole:
                torch.matmul(ds, k[keys], out=dq[part])
                torch.matmul(ds.transpose(-1, -2), q[part], out=dk[keys])
            else:
                dq[part] = (ds @ k[keys]).view(q[part].shape)
                dk[keys] += ds.transpose(-1, -2) @ _grouped(q[part], k)
        return dq, dk, dv, None, None, None


def _grouped(q: Tensor, k: Tensor) -> Tensor:
    """Queries of a group one under the other, (b, K, A / K * T, D): keys are not repeated."""
    return q if q.shape[1] == k.shape[1] else q.reshape(len(q), k.shape[1], -1, q.shape[-1])


def _probabilities(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """(b, A, T, S), or (b, K, A / K * T, S) where heads share their keys."""
    scores = (_grouped(q, k) @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5)
    if mask is not None:
        scores.view(*q.shape[:3], -1).add_(mask)
    return torch.softmax(scores, dim=-1)


Part = tuple[slice, slice, slice]  # texts, all heads, tokens
ALL = slice(None)


def _mask_of(
    mask: Tensor | None, part: Part, keys: Part, window: int | None, is_causal: bool, q: Tensor
) -> Tensor | None:
    """What is added to the scores of a part; where neither is seen, the lowest number once."""
    if mask is not None:
        mask = mask if len(mask) == 1 else mask[part[0]]
    if mask is not None and window is not None:
        mask = mask[..., part[2] if mask.shape[2] > 1 else ALL, keys[2]]
    if not is_causal and (window is None or window >= q.shape[2]):
        return mask
    places = torch.arange(q.shape[2], device=q.device)
    rows, columns = places[part[2], None], places[keys[2]]
    near = q.shape[2] if window is None else window
    return near_mask(rows, columns, near, mask, q.dtype, is_causal)


def near_mask(
    rows: Tensor,
    columns: Tensor,
    window: int,
    mask: Tensor | None,
    dtype: torch.dtype,
    is_causal: bool = False,
) -> Tensor:
    """The mask, and the type's lowest number where a column is further than the window.

    Causal: where it is behind the row, too.
    """
    seen = mask if mask is not None else torch.zeros((), dtype=dtype, device=rows.device)
    is_near = (rows - columns).abs() <= window
    is_near = is_near & (columns <= rows) if is_causal else is_near
    return torch.where(is_near, seen, torch.finfo(dtype).min)


def _chunks(q: Tensor, k: Tensor, window: int | None, is_causal: bool) -> list[tuple[Part, Part]]:
    """Queries that are computed together, and the keys that they see."""
    texts, heads, queries, _ = q.shape
    blocks = [(ALL, ALL)] if window is None else window_blocks(queries, window, is_causal)
    found: list[tuple[Part, Part]] = []
    for rows, keys in blocks:
        scores = len(range(queries)[rows]) * len(range(k.shape[2])[keys])
        step = max(1, SCORES // (heads * scores))
        for start in range(0, texts, step):
            part = slice(start, start + step)
            found.append(((part, ALL, rows), (part, ALL, keys)))
    return found


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    window: int | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Attention with shared heads of keys and values.

    Args:
        q: (B, A, T, D).
        k: (B, K, S, D) with K that divides A.
        v: (B, K, S, D).
        mask: Added to the scores; (B or 1, A or 1, T or 1, S), or None.
        window: Tokens seen on either side of each, of as many queries as keys; None: all.
        is_causal: Whether a token sees none behind it, of as many queries as keys.

    Returns:
        (B, T, A * D).
    """
    if q.shape[2] == k.shape[2]:
        window = window_of(q.shape[2], window, is_causal)
    parts = (x.contiguous() for x in (q, k, v))
    out: Tensor = _Attention.apply(*parts, mask, window, is_causal)  # (B, A, T, D)
    return out.transpose(1, 2).flatten(2)


def split_heads(x: Tensor, width: int) -> Tensor:
    """A view with one row of states per head: (B, T, A * D) -> (B, A, T, D)."""
    return x.view(*x.shape[:2], -1, width).transpose(1, 2)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


@dataclass
class Layer:
    """One transformer layer, whichever family.

    Attributes:
        linears: By short name, as the operations name them.
        norms: By name: `attention_norm`, and `output_norm`.
        activation: One of `ACTIVATIONS`.
        head_dim: D.
        is_causal: Whether a token sees none behind it.
    """

    linears: dict[str, Linear]
    norms: dict[str, Norm]
    activation: str
    head_dim: int
    is_causal: bool = False


class _Padded(torch.autograd.Function):
    """(N, H) -> (places, H), zero elsewhere; keeps no (N, H), as torch's `index_copy` does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Tensor, places: int) -> Tensor:
        ctx.own = own
        return x.new_zeros((places, x.shape[1])).index_copy_(0, own, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].index_select(0, ctx.own), None, None


@dataclass(frozen=True)
class Context:
    """What all layers of one pass share.

    Attributes:
        mask: Added to the scores, (B or 1, A or 1, T or 1, T); None where nothing is.
        answers: (B,) positions where the top layer's result is read, or None for all.
        rotary: Cosine and sine, each (T, D), by whether they are of local layers.
        own: Where of B * T places a token is, (N,), where states are (N, H) outside attention;
            None: everywhere, and they are (B, T, H).
        starts: Each text's first row of (N, H), (B,).
        tokens: T.
    """

    mask: Tensor | None
    answers: Tensor | None
    rotary: Mapping[bool, tuple[Tensor, Tensor]]
    own: Tensor | None
    starts: Tensor
    tokens: int

    def padded(self, x: Tensor) -> Tensor:
        """(N, H) -> (B, T, H), zero where no token is; other states as they are."""
        if self.own is None or x.dim() == 3:
            return x
        texts = len(self.starts)
        whole: Tensor = _Padded.apply(x, self.own, texts * self.tokens)
        return whole.view(texts, self.tokens, -1)

    def unpadded(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (N, H) where states are so; one row of each text, (B, 1, H), as it is."""
        if self.own is None or x.shape[1] < self.tokens:
            return x
        return x.flatten(0, 1).index_select(0, self.own)

    def at(self, x: Tensor, positions: Tensor) -> Tensor:
        """One row per text: (N, H) or (B, T, H) -> (B, 1, H)."""
        return x.reshape(-1, x.shape[-1])[self.starts + positions].unsqueeze(1)


@dataclass(frozen=True)
class Place:
    """Where a layer stands among the computed ones.

    Attributes:
        block: Its operations.
        short: Those where only the rows at `Context.answers` go on after keys and values.
        below: The layer below; None for the lowest.
        is_turned: Whether it has rotary positions.
        window: Tokens that it sees on either side of each; None: all.
    """

    block: Block
    short: Block
    below: Layer | None
    is_turned: bool
    window: int | None = None


def run_layer(
    layer: Layer, place: Place, x: Tensor, context: Context, is_value_needed: bool = True
) -> Tensor:
    """Interpret a layer's operations; a register is dropped after its last reader.

    Args:
        layer: Its weights.
        place: Its operations, and what they need of the layers around.
        x: (B, T, H), or (N, H).
        context: Mask and positions.
        is_value_needed: Whether the last product is; see `Linear`.

    Returns:
        The same, or (B, 1, H) of the top layer.
    """
    values = {"x": x}
    block = place.block if context.answers is None else place.short
    for op, dying in zip(block, dying_registers(block), strict=True):
        match op:
            case ops.Norm():
                owner = place.below if op.is_below else layer
                assert owner is not None
                y = owner.norms[op.module](values[op.of])
                values[op.into] = y + values[op.plus] if op.plus else y
            case ops.Linears():
                _run_linears(op, layer, values, context, is_value_needed or op.into != "out")
            case ops.Answers():
                assert context.answers is not None
                values[op.into] = context.at(values[op.of], context.answers)
            case ops.Rotary():
                for name in op.of if place.is_turned else ():
                    values[name] = rotate(values[name], _angles(values[name], place, context))
            case ops.Attend():
                values["context"] = _run_attend(values, layer, place, context)
            case ops.Activate():
                values[op.into] = ACTIVATIONS[layer.activation](values[op.of])
            case ops.Gate():
                gate = ACTIVATIONS[layer.activation](values[op.of])
                values[op.into] = gate * values[op.by]
        for name in dying:
            values.pop(name, None)
    return values["out"]


def _run_linears(
    op: ops.Linears,
    layer: Layer,
    values: dict[str, Tensor],
    context: Context,
    is_value_needed: bool,
) -> None:
    for name, result in zip(op.names, op.results, strict=True):
        y = layer.linears[name](values[op.of], is_value_needed)
        y = y + values[op.plus] if op.plus else y
        is_by_head = name in ("q", "k", "v")
        values[result] = split_heads(context.padded(y), layer.head_dim) if is_by_head else y


def _run_attend(values: dict[str, Tensor], layer: Layer, place: Place, context: Context) -> Tensor:
    q, k, v = (values.pop(name) for name in "qkv")  # each (B, heads, T or 1, D)
    mask, window = context.mask, place.window
    if mask is not None and mask.shape[2] > q.shape[2] and context.answers is not None:
        texts = torch.arange(len(q), device=q.device)
        mask = mask[texts, :, context.answers].unsqueeze(2)  # (B, A, 1, T)
    if window is not None and context.answers is not None and q.shape[2] < k.shape[2]:
        columns = torch.arange(k.shape[2], device=k.device)
        mask = near_mask(context.answers[:, None, None, None], columns, window, mask, q.dtype)
        window = None
    return context.unpadded(attend(q, k, v, mask, window, layer.is_causal))


def _angles(x: Tensor, place: Place, context: Context) -> tuple[Tensor, Tensor]:
    """Those of a register's rows: all positions, or the answers' alone, (B, 1, 1, D)."""
    cosine, sine = context.rotary[place.window is not None]
    if x.shape[2] == len(cosine) or context.answers is None:
        return cosine, sine
    return cosine[context.answers, None, None], sine[context.answers, None, None]


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864), halves as Hugging Face pairs them."""
    cosine, sine = rotary
    if cosine.shape[-1] < x.shape[-1]:  # a head's first columns alone are turned
        x, rest = x.split((cosine.shape[-1], x.shape[-1] - cosine.shape[-1]), dim=-1)
        return torch.cat((rotate(x, rotary), rest), dim=-1)
    first, second = x.chunk(2, dim=-1)  # each (B, A, T, D / 2)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def rotary_angles(
    shape: Shape, is_local: bool, tokens: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine for positions 0 .. tokens - 1, times their magnitude, each (tokens, D)."""
    steps = torch.arange(0, shape.turned, 2, device=device, dtype=torch.float32) / shape.turned
    theta = shape.local_rope_theta if is_local else shape.rope_theta
    scaled = scaled_frequencies((theta**-steps).cpu().numpy(), shape, is_local)
    frequencies = torch.from_numpy(scaled).to(device)
    angles = torch.outer(torch.arange(tokens, device=device).float(), frequencies)  # (T, D / 2)
    both = torch.cat((angles, angles), dim=-1)
    magnitude = shape.rope_magnitude
    return (both.cos() * magnitude).to(dtype), (both.sin() * magnitude).to(dtype)


def additive_mask(attention: Tensor, dtype: torch.dtype) -> Tensor | None:
    """0 where a token is seen and the type's lowest number where not; None: all are.

    Args:
        attention: (B, T), 1 for real tokens.
        dtype: The scores' own.
    """
    if bool(attention.all()):
        return None
    seen = attention.bool()[:, None, None, :]  # (B, 1, 1, T)
    zero = torch.zeros((), dtype=dtype, device=attention.device)
    return torch.where(seen, zero, torch.finfo(dtype).min)


def streamed_cross_entropy(
    h: Tensor,
    targets: Tensor,
    rows: Callable[[int, int], Tensor],
    vocabulary: int,
    together: int,
    bias: Tensor | None = None,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cross-entropies over a whole vocabulary without ever holding (N, vocabulary) logits.

    In one pass: what is summed so far, of exponentials and of words by them, is scaled down
    whenever a higher logit comes (Milakov & Gimelshein 2018, arXiv:1805.02867).

    Args:
        h: (N, H), any float type.
        targets: (N,) token ids.
        rows: Gives the head's rows [start, end) as (end - start, H) in h's type.
        vocabulary: Rows in all.
        together: Rows whose logits are held together.
        bias: Added to the logits, (vocabulary,); None: nothing.
        weights: Each row's weight, (N,); None: all have 1.

    Returns:
        The weighted losses in nats, (N,), and their mean's gradient with respect to `h`.
    """
    most = torch.full((len(h),), -math.inf, device=h.device)
    sums, right = torch.zeros_like(most), torch.zeros_like(most)
    grad, own = (torch.zeros(h.shape, device=h.device) for _ in range(2))  # own: right words' rows
    for start in range(0, vocabulary, together):
        end = min(start + together, vocabulary)
        weight = rows(start, end)
        logits = functional.linear(h, weight).float()  # (N, together)
        logits = logits if bias is None else logits.add_(bias[start:end])
        inside = (targets >= start) & (targets < end)
        right[inside] = logits[inside, targets[inside] - start]
        own[inside] = weight[targets[inside] - start].float()
        highest = torch.maximum(most, logits.amax(-1))
        shrunk, most = (most - highest).exp_(), highest
        p = logits.sub_(most[:, None]).exp_()
        sums = sums * shrunk + p.sum(-1)
        grad = grad.mul_(shrunk[:, None]).add_(p.to(h.dtype) @ weight)  # (N, H)
    losses, grad = most + sums.log() - right, grad.div_(sums[:, None]).sub_(own)
    if weights is not None:
        losses, grad = losses * weights, grad.mul_(weights[:, None])
    return losses, grad.div_(len(h)).to(h.dtype)

from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.bases.quantization import Stored, quantize_int8, quantize_nf4
from smidgen.edge_client.planning.layer_cost import LONG_TEXT, SCORES
from tests.edge_client.bases.gguf.files import blocks

torch = pytest.importorskip("torch")
layers = pytest.importorskip("smidgen.edge_client.engine.torch_backend.layers")
matrices = pytest.importorskip("smidgen.edge_client.engine.torch_backend.matrices")

CPU = torch.device("cpu")
GENERATOR = np.random.Generator(np.random.PCG64(5))
WEIGHT = (0.05 * GENERATOR.standard_normal((96, 128))).astype(np.float32)


def matrix(kind: str) -> tuple[object, Any]:
    """A frozen matrix and what it stands for."""
    from smidgen.edge_client.bases.quantization import dequantize

    if kind == "nf4":
        stored = Stored(4, "nf4", (96, 128), *quantize_nf4(WEIGHT))
    elif kind == "int8":
        stored = Stored(8, "int8", (96, 128), *quantize_int8(WEIGHT))
    elif kind == "q5_1":
        order = GENERATOR.permutation(96)
        stored = Stored(5, kind, (96, 128), blocks(kind, 96, 128), order=order)
    else:
        stored = Stored(32, "float32", (96, 128), WEIGHT, None)
    matrix = matrices.FrozenMatrix(stored, CPU, matrices.Scratch())
    return matrix, torch.from_numpy(dequantize(stored))


@pytest.mark.parametrize("kind", ["nf4", "int8", "float32", "q5_1"])
def test_a_frozen_linear_is_the_linear_of_its_dequantized_weight(kind: str) -> None:
    frozen, dense = matrix(kind)
    bias = torch.linspace(-1, 1, 96)
    ours, theirs = (torch.linspace(-2, 2, 5 * 128).view(5, 128).requires_grad_() for _ in "ab")
    y = layers.Linear(frozen, bias)(ours)
    reference = torch.nn.functional.linear(theirs, dense, bias)
    torch.testing.assert_close(y, reference, rtol=1e-5, atol=1e-5)
    upstream = torch.sin(torch.arange(5 * 96.0)).view(5, 96)
    y.backward(upstream)
    reference.backward(upstream)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)


def test_a_frozen_linear_keeps_neither_input_nor_weight() -> None:
    frozen, _ = matrix("nf4")
    kept: list[Any] = []

    def keep(tensor: Any) -> Any:
        kept.append(tensor)
        return tensor

    x = torch.ones(5, 128, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        layers.Linear(frozen, torch.zeros(96))(x).sum()
    assert not kept


def test_padding_inside_attention_keeps_nothing_and_gives_zeros() -> None:
    kept: list[Any] = []

    def keep(tensor: Any) -> Any:
        kept.append(tensor)
        return tensor

    own = torch.tensor([0, 1, 2, 3, 4])  # texts of 3 and 2 tokens
    context = layers.Context(None, None, {}, own, torch.tensor([0, 3]), 3)
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        whole = context.padded(x)
    assert not kept
    assert torch.equal(whole[0], x[:3]) and torch.equal(whole[1, :2], x[3:])
    assert not whole[1, 2].any() and torch.equal(context.unpadded(whole), x)
    assert torch.autograd.gradcheck(context.padded, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nf4_by_table_and_by_bitsandbytes_kernel_are_the_same_weight(dtype: Any) -> None:
    pytest.importorskip("bitsandbytes")
    data, scale = (torch.from_numpy(array) for array in quantize_nf4(WEIGHT))
    ours = matrices.nf4_dense(data, scale, dtype, matrices.Scratch())
    theirs = matrices.nf4_dense_by_bitsandbytes(data, scale, dtype)
    # In 16 bits the table rounds code and scale before the product, the kernel after it.
    rtol = 0.0 if dtype == torch.float32 else 2.0**-6
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-7)


@pytest.mark.few
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("tokens", "scores"), [(7, 1), (7, SCORES), (LONG_TEXT + 9, SCORES)])
def test_attention_is_torchs_own(
    monkeypatch: pytest.MonkeyPatch, kv_heads: int, is_causal: bool, tokens: int, scores: int
) -> None:
    monkeypatch.setattr(layers, "SCORES", scores)  # one text a chunk, or all
    torch.manual_seed(0)
    q = torch.randn(3, 4, tokens, 8)
    k, v = (torch.randn(3, kv_heads, tokens, 8) for _ in "kv")
    attention = torch.ones(3, tokens, dtype=torch.long)
    attention[1, tokens - 2 :] = 0
    mask = layers.additive_mask(attention, torch.float32)
    grads = []
    both: list[Any] = [layers.attend, reference_attention]
    for attend in both:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attend(*leaves, mask, None, is_causal)
        out.square().sum().backward()
        grads.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def reference_attention(q: Any, k: Any, v: Any, mask: Any, window: None, is_causal: bool) -> Any:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    if is_causal:
        square = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        mask = torch.where(square, mask, torch.finfo(q.dtype).min)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    return out.transpose(1, 2).reshape(len(q), q.shape[2], -1)


def test_the_streamed_loss_is_cross_entropy_over_the_whole_vocabulary() -> None:
    torch.manual_seed(0)
    weight, targets = torch.randn(20_000, 8), torch.randint(0, 20_000, (11,))
    h = torch.randn(11, 8).double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(h @ weight.double().T, targets)
    loss.backward()
    losses, grad = layers.streamed_cross_entropy(
        h.detach().float(), targets, lambda start, end: weight[start:end], 20_000, 3_000
    )
    torch.testing.assert_close(losses.mean().double(), loss.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad.double(), h.grad, rtol=1e-5, atol=1e-6)

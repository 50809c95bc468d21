"""Every graph of the onnx engine against torch's autograd in float64.

The graphs compute in float32, so each result is off by a few roundings of the numbers it is summed
from: 1e-6 of the largest at the sizes here. A gradient written where the one it came from was is
compared bit by bit with one that has a place of its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.bases.quantization import quantize_int8
from smidgen.edge_client.engine.onnx_backend import graphs
from smidgen.edge_client.engine.onnx_backend.head import cross_entropy, log_softmax
from smidgen.edge_client.engine.onnx_backend.model import Graph
from smidgen.edge_client.engine.onnx_backend.operators import LOWEST, Attention
from smidgen.edge_client.engine.onnx_backend.runtime import Runtime
from smidgen.edge_client.engine.onnx_backend.workspace import open_bench
from smidgen.edge_client.planning.layer_cost import SCORES
from tests.edge_client.engine.engines import needs_int8
from tests.edge_client.engine.onnx_backend.graphs import ACTIVATIONS

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.few
functional = torch.nn.functional

REFERENCES: dict[str, Callable[[Any], Any]] = {
    "gelu": functional.gelu,
    **dict.fromkeys(graphs.TANH_GELUS, lambda x: functional.gelu(x, approximate="tanh")),
    "relu": torch.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


def run(graph: Graph, **inputs: np.ndarray) -> list[np.ndarray]:
    """A graph's outputs in their order, for inputs in float32."""
    given = {name: np.ascontiguousarray(array, np.float32) for name, array in inputs.items()}
    made: list[np.ndarray] = Runtime(threads=2).open(graph.model()).run(None, given)
    return made


def draw(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    generator = np.random.Generator(np.random.PCG64([seed, *shape]))
    return size * generator.standard_normal(shape, dtype=np.float32)


def leaf(array: np.ndarray) -> Any:
    return torch.from_numpy(array).double().requires_grad_()


def check_close(ours: np.ndarray, exact: Any, limit: float = 1e-6) -> None:
    """Demand errors within `limit` of the largest number."""
    wanted = exact.detach().numpy()
    assert ours.shape == wanted.shape and wanted.any()
    assert np.abs(ours - wanted).max() <= limit * np.abs(wanted).max()


# Linears


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("has_rest", [False, True])
@pytest.mark.parametrize("has_lora", [False, True])
def test_a_linear_and_its_gradient_are_torchs(has_lora: bool, has_rest: bool, rows: int) -> None:
    x, weight, bias = draw(rows, 24), draw(18, 24), draw(18)
    factors = {"lora_a": draw(3, 24), "lora_b": draw(18, 3)} if has_lora else {}
    rest, g, skip = draw(rows, 18, seed=1), draw(rows, 18, seed=2), draw(rows, 24, seed=3)
    leaves = {name: leaf(array) for name, array in {"x": x, **factors}.items()}
    y = functional.linear(leaves["x"], leaf(weight), leaf(bias))
    if has_lora:
        y = y + 2.5 * leaves["x"] @ leaves["lora_a"].T @ leaves["lora_b"].T
    y.backward(torch.from_numpy(g).double())
    below = {"rest": rest} if has_rest else {}
    (ours,) = run(
        graphs.linear(has_lora, has_rest, 2.5), x=x, weight=weight, bias=bias, **factors, **below
    )
    check_close(ours, y + torch.from_numpy(rest) if has_rest else y)
    above = {"rest": skip} if has_rest else {}
    (dx,) = run(graphs.linear_back(has_lora, has_rest, 2.5), g=g, weight=weight, **factors, **above)
    grad = leaves["x"].grad
    check_close(dx, grad + torch.from_numpy(skip) if has_rest else grad)
    if has_lora:
        found = run(graphs.lora_gradient(2.5), x=x, g=g, **factors)
        for ours, name in zip(found, factors, strict=True):
            check_close(ours, leaves[name].grad)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_a_gate_and_its_gradients_are_torchs(kind: str) -> None:
    x, by, g = draw(17, 9), draw(17, 9, seed=1), draw(17, 9, seed=2)
    leaves = leaf(x), leaf(by)
    y = REFERENCES[kind](leaves[0]) * leaves[1]
    y.backward(torch.from_numpy(g).double())
    check_close(run(graphs.gate(kind), x=x, by=by)[0], y)
    dby, dx = run(graphs.gate_back(kind), x=x, by=by, g=g)
    check_close(dx, leaves[0].grad)
    check_close(dby, leaves[1].grad)


def test_turned_positions_are_torchs_and_turn_back() -> None:
    x, angles = draw(7, 24), draw(7, 3)
    halves = leaf(x).view(7, 4, 6).chunk(2, dim=-1)
    cosine, sine = (f(leaf(angles))[:, None] for f in (torch.cos, torch.sin))
    first, second = halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine
    (ours,) = run(graphs.rotary(6, 6, 24), x=x, cosine=np.cos(angles), sine=np.sin(angles))
    check_close(ours, torch.cat((first, second), dim=-1).view(7, 24))
    (back,) = run(graphs.rotary(6, 6, 24), x=ours, cosine=np.cos(angles), sine=-np.sin(angles))
    np.testing.assert_allclose(back, x, atol=1e-6)


def test_the_gradients_of_a_weight_and_a_bias_are_torchs() -> None:
    x, g, weight, bias = draw(29, 8), draw(29, 6), leaf(draw(6, 8)), leaf(draw(6))
    functional.linear(leaf(x), weight, bias).backward(torch.from_numpy(g).double())
    check_close(run(graphs.weight_gradient(), x=x, g=g)[0], weight.grad)
    check_close(run(graphs.bias_gradient(), g=g)[0], bias.grad)


@needs_int8
@pytest.mark.parametrize("has_rest", [False, True])
@pytest.mark.parametrize("has_lora", [False, True])
def test_a_linear_in_int8_is_off_by_half_a_step_of_each_element_at_most(
    has_lora: bool, has_rest: bool
) -> None:
    x, (codes, scale) = draw(7, 24), quantize_int8(draw(18, 24))
    x[2], x[3, 5] = 0, 1000  # a row of zeros; one large element among small ones
    given = {"x": x, "scale": scale.ravel(), "bias": draw(18)}
    given |= {"lora_a": draw(3, 24), "lora_b": draw(18, 3)} if has_lora else {}
    given |= {"rest": draw(7, 18, seed=1)} if has_rest else {}
    session = Runtime(threads=2).open(graphs.linear_int8(has_lora, has_rest, 2.5).model())
    ours = session.run(None, given | {"codes": codes})[0]
    del given["scale"]
    (plain,) = run(graphs.linear(has_lora, has_rest, 2.5), weight=codes * scale, **given)
    half_step = np.abs(x).max(axis=1, keepdims=True) / (127 * 256) / 2
    bound = half_step * np.abs(codes * scale).sum(axis=1) + 1e-5 * np.abs(plain)
    assert (np.abs(ours - plain) <= bound).all()


# Normalization


@pytest.mark.parametrize("hidden", [1, 5, 24, 384])
@pytest.mark.parametrize("eps", [1e-12, 1e-5])
def test_a_normalization_and_its_gradient_are_torchs(eps: float, hidden: int) -> None:
    x, g = draw(13, hidden, size=3.0) + 2, draw(13, hidden, seed=1)
    weight, bias = 1 + draw(hidden, size=0.1), draw(hidden)
    given = leaf(x)
    y = functional.layer_norm(given, (hidden,), leaf(weight), leaf(bias), eps)
    y.backward(torch.from_numpy(g).double())
    (ours,) = run(graphs.norm(eps), x=x, weight=weight, bias=bias)
    check_close(ours, y, 3e-6)  # a deviation divides what is left of a difference
    (dx,) = run(graphs.norm_back(eps, hidden), x=x, g=g, weight=weight)
    if hidden == 1:
        assert not dx.any()  # one number is always its own mean
    else:
        check_close(dx, given.grad, 3e-6)


# Activations


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_an_activation_and_its_gradient_are_torchs(kind: str) -> None:
    few = np.array([0, -0.0, 1e-30, -1e-30, 50, -50, 1e4, -1e4], np.float32)
    x = np.concatenate([few, np.linspace(-12, 12, 4992, dtype=np.float32)]).reshape(20, 250)
    g, given = draw(20, 250), leaf(x)
    y = REFERENCES[kind](given)
    y.backward(torch.from_numpy(g).double())
    (ours,) = run(graphs.activation(kind), x=x)
    # The runtime's sigmoid and tanh are off by 1e-7, which x multiplies; a slope of tanh squares
    # it and multiplies by x three times.
    np.testing.assert_allclose(ours, y.detach().numpy(), rtol=1e-6, atol=2e-6)
    (dx,) = run(graphs.activation_back(kind), x=x, g=g)
    np.testing.assert_allclose(dx, given.grad.numpy(), rtol=1e-6, atol=1e-5)


# Writing where the gradient was


def check_in_place(build: Callable[[], Graph], inputs: Mapping[str, np.ndarray]) -> None:
    """`dx` where `g` is, against `dx` in a place of its own, some rows at a time."""
    runtime = Runtime(threads=2)
    rows = len(inputs["g"])
    for step in {1, 2, 3, 7, rows // 2 + 1, rows}:
        apart, there = np.empty_like(inputs["g"]), inputs["g"].copy()
        for start in range(0, rows, step):
            part = slice(start, start + step)
            given = {name: a[part] if a.ndim == 2 else a for name, a in inputs.items()}
            runtime.run("g", build, given, {"dx": apart[part]})
            runtime.run("g", build, given | {"g": there[part]}, {"dx": there[part]})
        assert apart.any() and (apart.view(np.uint32) == there.view(np.uint32)).all()


@pytest.mark.parametrize("shape", [(5, 1), (23, 3), (40, 129), (64, 3072)])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_an_activations_gradient_may_lie_where_the_one_above_was(
    kind: str, shape: tuple[int, int]
) -> None:
    inputs = {"x": draw(*shape, size=2.0), "g": draw(*shape, seed=1)}
    check_in_place(lambda: graphs.activation_back(kind), inputs)


@pytest.mark.parametrize("shape", [(23, 3), (40, 129), (512, 1024)])
def test_a_normalizations_gradient_may_lie_where_the_one_above_was(shape: tuple[int, int]) -> None:
    inputs = {"x": draw(*shape), "g": draw(*shape, seed=1), "weight": draw(shape[1])}
    check_in_place(lambda: graphs.norm_back(1e-5, shape[1]), inputs)


# Attention


@pytest.mark.parametrize(
    ("texts", "queries", "keys"), [(1, 1, 1), (3, 7, 7), (3, 1, 7), (2, 9, 4), (2, 521, 521)]
)
@pytest.mark.parametrize("mask_rows", [0, 1, None])  # none; the same for all queries; one of each
@pytest.mark.parametrize("scores", [1, SCORES])
def test_attention_and_its_gradients_are_torchs(
    monkeypatch: pytest.MonkeyPatch,
    texts: int,
    queries: int,
    keys: int,
    mask_rows: int | None,
    scores: int,
) -> None:
    monkeypatch.setattr(
        "smidgen.edge_client.engine.onnx_backend.operators.SCORES", scores
    )  # one text a chunk, or all
    hidden, head_dim = 24, 6
    q, k, v = (draw(texts, rows, hidden, seed=n) for n, rows in enumerate((queries, keys, keys)))
    mask = None
    if mask_rows != 0:
        mask = draw(texts, hidden // head_dim, mask_rows or queries, keys, seed=5)
        mask[-1, :, :, keys // 2 + 1 :] = LOWEST
    leaves = [leaf(array) for array in (q, k, v)]
    split = [a.view(texts, -1, hidden // head_dim, head_dim).transpose(1, 2) for a in leaves]
    added = None if mask is None else torch.from_numpy(mask).double()
    y = functional.scaled_dot_product_attention(*split, attn_mask=added)
    y = y.transpose(1, 2).reshape(texts, queries, hidden)
    g = draw(texts, queries, hidden, seed=9)
    y.backward(torch.from_numpy(g).double())
    bench = open_bench(2)
    attention = Attention(head_dim, bench)
    check_close(attention.forward(q, k, v, mask, np.empty_like(g)), y)
    outs = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    attention.backward(q, k, v, mask, g, outs)
    for ours, given in zip(outs, leaves, strict=True):
        if keys > 1 or given is leaves[2]:  # one key has all of the softmax, whatever it is
            check_close(ours, given.grad)
        else:
            assert np.abs(ours).max() < 1e-6
    bench.close()


# Forms of numbers, and the loss


def test_numbers_change_their_form_as_torch_changes_it() -> None:
    x = np.concatenate([draw(9, 7, size=10.0**power) for power in (-9, -5, 0, 4)])
    half = torch.from_numpy(x).half().numpy()
    open_session = Runtime(threads=2).open
    assert (open_session(graphs.narrow().model()).run(None, {"x": x})[0] == half).all()
    assert (open_session(graphs.widen().model()).run(None, {"x": half})[0] == half).all()
    codes, scale = quantize_int8(x)
    given = {"codes": codes, "scale": scale.ravel()}
    wide = torch.from_numpy(codes).float() * torch.from_numpy(scale)
    assert (open_session(graphs.dequantize().model()).run(None, given)[0] == wide.numpy()).all()


def test_the_loss_and_its_gradient_are_torchs() -> None:
    logits = np.concatenate([draw(4, 6), draw(3, 6, size=300.0)])
    labels = np.arange(7) % 6
    given = leaf(logits)
    loss = functional.cross_entropy(given, torch.from_numpy(labels))
    loss.backward()
    ours, g = cross_entropy(logits, labels)
    assert ours == pytest.approx(float(loss.detach()), rel=1e-6)
    np.testing.assert_allclose(g, given.grad.numpy(), atol=1e-7)
    rows = torch.log_softmax(given, dim=1).detach().numpy()
    np.testing.assert_allclose(log_softmax(logits), rows, rtol=1e-6, atol=1e-6)

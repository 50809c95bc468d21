"""ONNX graphs of a layer's forward and backward passes, without weights.

Weights, adapters and states are inputs, so one graph serves every layer of every base, and the
runtime has no constants to fold. Gradients are derived by hand; each is compared with PyTorch's
(`tests/parity/test_onnx_graphs.py`).

Sizes: n rows (tokens of all texts), h hidden, i inputs and o outputs of a linear, r rank, b texts,
t queries, s keys, A heads of width D.
"""

import math

import numpy as np

from smidgen.edge_client.engine.onnx_backend.model import Graph

F32 = "float32"


def linear(has_lora: bool, has_rest: bool, scaling: float, has_bias: bool = True) -> Graph:
    """x W.T [+ bias] [+ scaling (x A.T) B.T] [+ rest].

    A Gemm adds to what it is given, so neither the bias nor the rest takes a pass of its own.

    Args:
        has_lora: Whether `lora_a` (r, i) and `lora_b` (o, r) come in.
        has_rest: Whether `rest` (n, o) comes in, to be added.
        scaling: LoRA's.
        has_bias: Whether `bias` (o,) comes in.
    """
    graph = Graph("linear")
    x = graph.input("x", F32, ("n", "i"))
    weight = graph.input("weight", F32, ("o", "i"))
    start = graph.input("bias", F32, ("o",)) if has_bias else ""
    if has_rest:
        rest = graph.input("rest", F32, ("n", "o"))
        start = graph.node("Add", rest, start) if start else rest
    if has_lora:
        start = _lora(graph, x, start, scaling)
    return graph.output(graph.node("Gemm", x, weight, start, transB=1), "y", F32, ("n", "o"))


def _lora(graph: Graph, x: str, start: str, scaling: float) -> str:
    """start + scaling (x A.T) B.T."""
    low = graph.node("Gemm", x, graph.input("lora_a", F32, ("r", "i")), transB=1)
    lora_b = graph.input("lora_b", F32, ("o", "r"))
    return graph.node("Gemm", low, lora_b, start, transB=1, alpha=float(scaling))


def linear_int8(has_lora: bool, has_rest: bool, scaling: float, has_bias: bool = True) -> Graph:
    """As `linear`, with the weight's int8 codes multiplied as they are, in integers.

    Each row of x is rounded to 65,025 even steps about zero by its own largest element, and these
    are multiplied as two bytes: 256 high + low. One byte would do for most rows, but a row with
    one large element would lose the others: of a MiniLM's answers on news 3.6 % changed, with two
    bytes none (measured). Not exact: for inference alone.
    """
    graph = Graph("linear_int8")
    x, codes = graph.input("x", F32, ("n", "i")), graph.input("codes", "int8", ("o", "i"))
    largest = graph.node("ReduceMax", graph.node("Abs", x), axes=[-1], keepdims=0)  # (n,)
    coarse = graph.node("Mul", largest, _number(graph, 1 / 127))
    coarse = graph.node("Max", coarse, _number(graph, 1e-30))  # where a row is all zeros
    fine = graph.node("Mul", coarse, _number(graph, 1 / 256))
    middle = graph.constant(np.uint8(128))  # unsigned, as processors multiply fastest
    middles = graph.node("Expand", middle, graph.node("Shape", coarse))
    high = graph.node("QuantizeLinear", x, coarse, middles, axis=0)
    rough = graph.node("DequantizeLinear", high, coarse, middles, axis=0)
    low = graph.node("QuantizeLinear", graph.node("Sub", x, rough), fine, middles, axis=0)
    scale, columns = graph.input("scale", F32, ("o",)), graph.node("Transpose", codes, perm=[1, 0])
    parts = [
        graph.fused("MatMulIntegerToFloat", part, columns, _number(graph, worth), scale, middle)
        for part, worth in ((high, 256.0), (low, 1.0))
    ]
    axis = graph.constant(np.array([1], np.int64))
    y = graph.node("Mul", graph.node("Add", *parts), graph.node("Unsqueeze", fine, axis))
    start = graph.input("bias", F32, ("o",)) if has_bias else ""
    if has_lora:
        start = _lora(graph, x, start, scaling)
    if start:
        y = graph.node("Add", y, start)
    if has_rest:
        y = graph.node("Add", y, graph.input("rest", F32, ("n", "o")))
    return graph.output(y, "y", F32, ("n", "o"))


def linear_back(has_lora: bool, has_rest: bool, scaling: float) -> Graph:
    """The gradient at a linear's input: g W [+ scaling (g B) A] [+ rest]; see `linear`."""
    graph = Graph("linear_back")
    g = graph.input("g", F32, ("n", "o"))
    weight = graph.input("weight", F32, ("o", "i"))
    start = graph.input("rest", F32, ("n", "i")) if has_rest else ""
    if has_lora:
        low = graph.node("Gemm", g, graph.input("lora_b", F32, ("o", "r")), alpha=float(scaling))
        start = graph.node("Gemm", low, graph.input("lora_a", F32, ("r", "i")), start)
    return graph.output(graph.node("Gemm", g, weight, start), "dx", F32, ("n", "i"))


def lora_gradient(scaling: float) -> Graph:
    """The gradients of a linear's low-rank factors, from its input and its output's gradient."""
    graph = Graph("lora_gradient")
    x, g = graph.input("x", F32, ("n", "i")), graph.input("g", F32, ("n", "o"))
    lora_a = graph.input("lora_a", F32, ("r", "i"))
    lora_b = graph.input("lora_b", F32, ("o", "r"))
    low = graph.node("Gemm", x, lora_a, transB=1)  # (n, r)
    low_g = graph.node("Gemm", g, lora_b, alpha=float(scaling))  # (n, r)
    graph.output(graph.node("Gemm", low_g, x, transA=1), "lora_a_g", F32, ("r", "i"))
    lora_b_g = graph.node("Gemm", g, low, transA=1, alpha=float(scaling))
    return graph.output(lora_b_g, "lora_b_g", F32, ("o", "r"))


def weight_gradient() -> Graph:
    """The gradient of a linear's own weight, where a head is trained: g.T x."""
    graph = Graph("weight_gradient")
    x, g = graph.input("x", F32, ("n", "i")), graph.input("g", F32, ("n", "o"))
    return graph.output(graph.node("Gemm", g, x, transA=1), "weight_g", F32, ("o", "i"))


def bias_gradient() -> Graph:
    """The gradient of a bias: the sum of g over its rows."""
    graph = Graph("bias_gradient")
    g = graph.input("g", F32, ("n", "o"))
    axis = graph.constant(np.array([0], np.int64))
    return graph.output(graph.node("ReduceSum", g, axis, keepdims=0), "bias_g", F32, ("o",))


def norm(eps: float, is_rms: bool = False) -> Graph:
    """A layer normalization, or one by the root mean square (Zhang & Sennrich 2019,
    arXiv:1910.07467), which has no bias."""
    graph = Graph("norm")
    x, weight = graph.input("x", F32, ("n", "h")), graph.input("weight", F32, ("h",))
    if is_rms:
        y = graph.node("Mul", graph.node("Mul", x, _inverse_root(graph, x, eps)), weight)
    else:
        bias = graph.input("bias", F32, ("h",))
        y = graph.node("LayerNormalization", x, weight, bias, epsilon=float(eps))
    return graph.output(y, "y", F32, ("n", "h"))


def _inverse_root(graph: Graph, x: str, eps: float) -> str:
    """1 / sqrt(mean(x^2) + eps) of each row, (n, 1)."""
    mean = graph.node("ReduceMean", graph.node("Mul", x, x), axes=[-1])
    return graph.node(
        "Reciprocal", graph.node("Sqrt", graph.node("Add", mean, _number(graph, eps)))
    )


def norm_back(eps: float, hidden: int, has_rest: bool = False, is_rms: bool = False) -> Graph:
    """The gradient at a normalization's input [+ rest].

    With z the normalized input and d its deviation: (gw - mean(gw) - z mean(gw z)) / d; by the root
    mean square d is that, and nothing is taken off in the mean: (gw - z mean(gw z)) / d.
    """
    graph = Graph("norm_back")
    x, g = graph.input("x", F32, ("n", hidden)), graph.input("g", F32, ("n", hidden))
    if is_rms:
        inverse = _inverse_root(graph, x, eps)
        z = graph.node("Mul", x, inverse)
    else:
        ones = graph.constant(np.ones(hidden, np.float32))
        z, _, inverse = graph.nodes("LayerNormalization", 3, x, ones, epsilon=float(eps))
    gw = graph.node("Mul", g, graph.input("weight", F32, (hidden,)))
    slope = graph.node("ReduceMean", graph.node("Mul", gw, z), axes=[-1])
    inner = gw if is_rms else graph.node("Sub", gw, graph.node("ReduceMean", gw, axes=[-1]))
    inner = graph.node("Sub", inner, graph.node("Mul", z, slope))
    dx = graph.node("Mul", inner, inverse)
    if has_rest:
        dx = graph.node("Add", dx, graph.input("rest", F32, ("n", hidden)))
    return graph.output(dx, "dx", F32, ("n", hidden))


# Activations


def activation(kind: str) -> Graph:
    """`gelu` (exact), `gelu_new` (tanh), `relu`, `silu` or `tanh` of each element."""
    graph = Graph(kind)
    x = graph.input("x", F32, ("n", "o"))
    return graph.output(_active(graph, kind, x), "y", F32, ("n", "o"))


def _active(graph: Graph, kind: str, x: str) -> str:
    if kind == "gelu":
        return graph.fused("Gelu", x)
    if kind in TANH_GELUS:
        return graph.fused("FastGelu", x)
    if kind == "silu":
        return graph.node("Mul", x, graph.node("Sigmoid", x))
    return graph.node({"relu": "Relu", "tanh": "Tanh"}[kind], x)


def gate(kind: str) -> Graph:
    """An activation of each element, times `by`."""
    graph = Graph("gate")
    x, by = graph.input("x", F32, ("n", "o")), graph.input("by", F32, ("n", "o"))
    return graph.output(graph.node("Mul", _active(graph, kind, x), by), "y", F32, ("n", "o"))


def gate_back(kind: str) -> Graph:
    """The gradients at a gate's two inputs."""
    graph = Graph("gate_back")
    x, by, g = (graph.input(name, F32, ("n", "o")) for name in ("x", "by", "g"))
    graph.output(graph.node("Mul", g, _active(graph, kind, x)), "dby", F32, ("n", "o"))
    dx = _sloped(graph, kind, x, graph.node("Mul", g, by))
    return graph.output(dx, "dx", F32, ("n", "o"))


def rotary(head_dim: int, turned: int, hidden: int) -> Graph:
    """Each head's halves a, b turned by the rows' angles: a cos - b sin, b cos + a sin.

    Columns of a head from `turned` on stay.
    """
    graph = Graph("rotary")
    half, sizes = turned // 2, [turned // 2, turned // 2, head_dim - turned]
    sizes = sizes[: 2 + (turned < head_dim)]
    parts, heads, whole, apart = (
        graph.constant(np.array(numbers, np.int64))
        for numbers in (sizes, [-1, hidden // head_dim, head_dim], [-1, hidden], [-1, 1, half])
    )
    x = graph.node("Reshape", graph.input("x", F32, ("t", hidden)), heads)  # (t, A, head_dim)
    a, b, *rest = graph.nodes("Split", len(sizes), x, parts, axis=2)
    cosine, sine = (
        graph.node("Reshape", graph.input(name, F32, ("t", half)), apart)
        for name in ("cosine", "sine")
    )
    first = graph.node("Sub", graph.node("Mul", a, cosine), graph.node("Mul", b, sine))
    second = graph.node("Add", graph.node("Mul", b, cosine), graph.node("Mul", a, sine))
    y = graph.node("Reshape", graph.node("Concat", first, second, *rest, axis=2), whole)
    return graph.output(y, "y", F32, ("t", hidden))


def activation_back(kind: str) -> Graph:
    """The gradient at an activation's input; `dx` may be where `g` is."""
    graph = Graph(f"{kind}_back")
    x, g = graph.input("x", F32, ("n", "o")), graph.input("g", F32, ("n", "o"))
    return graph.output(_sloped(graph, kind, x, g), "dx", F32, ("n", "o"))


def _sloped(graph: Graph, kind: str, x: str, g: str) -> str:
    if kind == "relu":
        zero = _number(graph, 0.0)
        return graph.node("Where", graph.node("Greater", x, zero), g, zero)
    return graph.node("Mul", _SLOPES[kind](graph, x), g)


def _gelu_slope(graph: Graph, x: str) -> str:
    """P(x) + x p(x) with the normal distribution's P and p."""
    s = graph.node("Mul", x, _number(graph, math.sqrt(0.5)))
    half = _number(graph, 0.5)
    below = graph.node("Add", graph.node("Mul", graph.node("Erf", s), half), half)
    minus = graph.node("Neg", graph.node("Mul", s, s))
    scaled = graph.node("Mul", x, _number(graph, 1 / math.sqrt(2 * math.pi)))
    return graph.node("Add", below, graph.node("Mul", graph.node("Exp", minus), scaled))


def _tanh_gelu_slope(graph: Graph, x: str) -> str:
    """With t = tanh(c (x + a x^3)): (1 + t) / 2 + x / 2 (1 - t^2) c (1 + 3 a x^2)."""
    c, a = math.sqrt(2 / math.pi), 0.044715
    one, half = _number(graph, 1.0), _number(graph, 0.5)
    square = graph.node("Mul", x, x)
    inner = graph.node("Add", graph.node("Mul", square, _number(graph, c * a)), _number(graph, c))
    t = graph.node("Tanh", graph.node("Mul", x, inner))
    rise = graph.node(
        "Add", graph.node("Mul", square, _number(graph, 3 * c * a)), _number(graph, c)
    )
    flat = graph.node("Sub", one, graph.node("Mul", t, t))
    bend = graph.node("Mul", graph.node("Mul", x, flat), rise)
    return graph.node("Mul", graph.node("Add", graph.node("Add", t, one), bend), half)


def _silu_slope(graph: Graph, x: str) -> str:
    """s + x s (1 - s) with the sigmoid s."""
    s, one = graph.node("Sigmoid", x), _number(graph, 1.0)
    bend = graph.node("Mul", x, graph.node("Sub", one, s))
    return graph.node("Mul", s, graph.node("Add", bend, one))


def _tanh_slope(graph: Graph, x: str) -> str:
    """1 - tanh(x)^2."""
    t = graph.node("Tanh", x)
    return graph.node("Sub", _number(graph, 1.0), graph.node("Mul", t, t))


def _number(graph: Graph, value: float) -> str:
    return graph.constant(np.float32(value))


TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh")
_SLOPES = {
    "gelu": _gelu_slope,
    "silu": _silu_slope,
    "tanh": _tanh_slope,
    **dict.fromkeys(TANH_GELUS, _tanh_gelu_slope),
}


# Attention


def attention(head_dim: int, hidden: int, has_mask: bool, kv_width: int = 0) -> Graph:
    """softmax(q k.T / sqrt(D) + mask) v by heads.

    Args:
        head_dim: D.
        hidden: A * D, the width of `q` (b, t, h).
        has_mask: Whether `mask` (b or 1, A or 1, t or 1, s) comes in, to be added to the scores.
        kv_width: K * D, the width of `k` and `v` (b, s, K * D), of which each of the K heads
            answers A / K of the queries' (Ainslie et al. 2023, arXiv:2305.13245); 0: as `hidden`.
    """
    graph = Graph("attention")
    heads, few = (
        _Heads(graph, head_dim, hidden, kv_width),
        _Heads(graph, head_dim, kv_width or hidden),
    )
    q, k, v = heads.split("q", "t"), few.split("k", "s"), few.split("v", "s")
    p = _probabilities(graph, q, k, heads, has_mask)
    return graph.output(heads.join(graph.node("MatMul", p, v)), "y", F32, ("b", "t", hidden))


def attention_back(head_dim: int, hidden: int, has_mask: bool, kv_width: int = 0) -> Graph:
    """The gradients at queries, keys and values; the scores are recomputed.

    A softmax's gradient takes the mean off what comes back. Values are centered before, so that
    little is left to take off and little is lost (as `engine.torch_backend.layers` does).
    """
    graph = Graph("attention_back")
    heads, few = (
        _Heads(graph, head_dim, hidden, kv_width),
        _Heads(graph, head_dim, kv_width or hidden),
    )
    q, k, v = heads.split("q", "t"), few.split("k", "s"), few.split("v", "s")
    g, scale = heads.split("g", "t"), head_dim**-0.5
    p = _probabilities(graph, q, k, heads, has_mask)
    dv = graph.fused("FusedMatMul", p, g, transA=1)
    graph.output(few.join(dv), "dv", F32, ("b", "s", few.width))
    centered = graph.node("Sub", v, graph.node("ReduceMean", v, axes=[2]))
    weighted = graph.node("Mul", graph.fused("FusedMatMul", g, centered, transB=1), p)
    axis = graph.constant(np.array([-1], np.int64))
    ds = graph.node("Sub", weighted, graph.node("Mul", p, graph.node("ReduceSum", weighted, axis)))
    dq = graph.fused("FusedMatMul", ds, k, alpha=scale)
    graph.output(heads.join(dq), "dq", F32, ("b", "t", hidden))
    dk = graph.fused("FusedMatMul", ds, q, transA=1, alpha=scale)
    return graph.output(few.join(dk), "dk", F32, ("b", "s", few.width))


class _Heads:
    """(b, t, A * D) to (b, A, t, D) and back; of shared heads to (b, K, A / K * t, D).

    Queries of a group lie one under the other, so that keys and values are multiplied as they are,
    without copies of them for each head.
    """

    def __init__(self, graph: Graph, head_dim: int, width: int, shared_width: int = 0) -> None:
        self._graph, self.head_dim, self.width = graph, head_dim, width
        self.heads = width // head_dim
        self.group = width // (shared_width or width)
        apart = [0, 0, self.heads, head_dim]
        if self.group > 1:
            apart = [0, 0, self.heads // self.group, self.group, head_dim]
        self._apart = graph.constant(np.array(apart, np.int64))
        self._whole = graph.constant(np.array([0, 0, width], np.int64))

    def split(self, name: str, rows: str) -> str:
        graph = self._graph
        x = graph.node("Reshape", graph.input(name, F32, ("b", rows, self.width)), self._apart)
        if self.group == 1:
            return graph.node("Transpose", x, perm=[0, 2, 1, 3])
        x = graph.node("Transpose", x, perm=[0, 2, 3, 1, 4])  # (b, K, A / K, t, D)
        size = [0, self.heads // self.group, -1, self.head_dim]
        return graph.node("Reshape", x, graph.constant(np.array(size, np.int64)))

    def grouped(self, x: str) -> str:
        """(b, A, t, columns) -> (b, K, A / K * t, columns)."""
        return x if self.group == 1 else self._sized(x, self.heads // self.group)

    def apart(self, x: str) -> str:
        """(b, K, A / K * t, columns) -> (b, A, t, columns)."""
        return x if self.group == 1 else self._sized(x, self.heads)

    def _sized(self, x: str, heads: int) -> str:
        size = self._graph.constant(np.array([0, heads, -1, 0], np.int64))
        return self._graph.node("Reshape", x, size)

    def join(self, x: str) -> str:
        graph = self._graph
        if self.group == 1:
            rows = graph.node("Transpose", x, perm=[0, 2, 1, 3])
        else:
            size = np.array([0, 0, self.group, -1, self.head_dim], np.int64)
            rows = graph.node("Reshape", x, graph.constant(size))
            rows = graph.node("Transpose", rows, perm=[0, 3, 1, 2, 4])
        return graph.node("Reshape", rows, self._whole)


def _probabilities(graph: Graph, q: str, k: str, heads: _Heads, has_mask: bool) -> str:
    scores = graph.fused("FusedMatMul", q, k, transB=1, alpha=heads.head_dim**-0.5)
    if has_mask:
        mask = graph.input("mask", F32, ("m", "a", "r", "s"))
        scores = graph.node("Add", heads.apart(scores), mask)
        return heads.grouped(graph.node("Softmax", scores, axis=-1))
    return graph.node("Softmax", scores, axis=-1)


# Forms of numbers


def dequantize() -> Graph:
    """int8 codes (o, i) times one scale per row."""
    graph = Graph("dequantize")
    codes, scale = graph.input("codes", "int8", ("o", "i")), graph.input("scale", F32, ("o",))
    return graph.output(graph.node("DequantizeLinear", codes, scale, axis=0), "y", F32, ("o", "i"))


def widen() -> Graph:
    """float16 to float32."""
    return _cast("float16", "float32", 1)


def narrow() -> Graph:
    """float32 to the nearest float16."""
    return _cast("float32", "float16", 10)


def _cast(source: str, target: str, code: int) -> Graph:
    graph = Graph("cast")
    x = graph.input("x", source, ("n", "o"))
    return graph.output(graph.node("Cast", x, to=code), "y", target, ("n", "o"))

"""Held against the same sums by PyTorch, in float64 on the same dequantized weights."""

from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.bases import architectures as ops
from smidgen.edge_client.bases.gguf.blocks import BLOCKS
from smidgen.edge_client.bases.quantization import Stored, dequantize
from smidgen.edge_client.engine.onnx_backend.feed_forward import FeedForward
from smidgen.edge_client.engine.onnx_backend.operators import (
    Activation,
    FrozenMatrix,
    Gradients,
    Linear,
)
from smidgen.edge_client.engine.onnx_backend.workspace import Bench, open_bench
from smidgen.edge_client.planning.layer_cost import INNER_BLOCK, WORD_ELEMENTS, inner_parts
from tests.breadth import covering
from tests.edge_client.bases.gguf.files import blocks
from tests.edge_client.engine.onnx_backend.test_operators import draw, stored

ROWS, HIDDEN, INSIDE = 5, 2048, 2304  # three parts
GATED = ops.FeedForward(
    ops.Linears(("gate", "up"), "m"),
    ops.Gate("gate", "up", "active"),
    ops.Linears(("down",), "active", plus="middle", into="out"),
)
PLAIN = ops.FeedForward(
    ops.Linears(("up",), "m"),
    ops.Activate("up", "active"),
    ops.Linears(("down",), "active", plus="m", into="out"),
)


def drawn(kind: str, rows: int, columns: int) -> Stored:
    if kind in BLOCKS:
        return Stored(4, kind, (rows, columns), blocks(kind, rows, columns))
    return stored(kind, draw(rows, columns) / np.float32(columns**0.5))


def linears_of(
    op: ops.FeedForward, bench: Bench, kind: str, *, has_lora: bool, has_bias: bool
) -> tuple[dict[str, Linear], dict[str, np.ndarray]]:
    made: dict[str, Linear] = {}
    adapter: dict[str, np.ndarray] = {}
    for name in (*op.inner.names, *op.last.names):
        size = (HIDDEN, INSIDE) if name == "down" else (INSIDE, HIDDEN)
        if has_lora:
            adapter |= {f"{name}.lora_A.weight": draw(2, size[1]) / np.float32(size[1])}
            adapter |= {f"{name}.lora_B.weight": draw(size[0], 2)}
        if has_bias:
            adapter |= {f"{name}.bias": draw(size[0])}
        a, b = (adapter.get(f"{name}.lora_{factor}.weight") for factor in "AB")
        matrix = FrozenMatrix(drawn(kind, *size), bench)
        bias = adapter.get(f"{name}.bias")
        made[name] = Linear(name, matrix, bias, has_bias, a, b, 2.0, bench)
    return made, adapter


@pytest.mark.parametrize(
    ("kind", "op", "has_lora", "has_bias"),
    covering(
        ("nf4", "int8", "q4_k", "float32", "q4_1"), (GATED, PLAIN), (True, False), (False, True)
    ),
)
def test_parts_give_what_the_whole_gives(
    kind: str, op: ops.FeedForward, has_lora: bool, has_bias: bool
) -> None:
    torch = pytest.importorskip("torch")
    bench = open_bench(2)
    linears, adapter = linears_of(op, bench, kind, has_lora=has_lora, has_bias=has_bias)
    gated = isinstance(op.active, ops.Gate)
    parts = FeedForward(op, linears, Activation("silu" if gated else "gelu", bench), bench)
    x, rest, g = draw(ROWS, HIDDEN), draw(ROWS, HIDDEN), draw(ROWS, HIDDEN)
    # Blocks' weights are large: of sums as large, float32, torch's too, has no digits left near 0.
    x /= max(np.float32(1), (x @ dequantize(linears["up"].matrix._stored).T).std())
    out, dx, into = np.empty_like(x), np.empty_like(x), Gradients(bench, adapter)
    parts.forward(x, out, rest)
    parts.backward(x, g, dx, g, into)

    asked = {name: torch.tensor(array).double() for name, array in adapter.items()}
    given = torch.tensor(x).double()
    for tensor in (*asked.values(), given):
        tensor.requires_grad_()

    def linear(name: str, value: Any) -> Any:
        y = value @ torch.tensor(dequantize(linears[name].matrix._stored)).double().T
        if has_bias:
            y = y + asked[f"{name}.bias"]
        if has_lora:
            low = value @ asked[f"{name}.lora_A.weight"].T
            y = y + 2.0 * low @ asked[f"{name}.lora_B.weight"].T
        return y

    if gated:
        inside = torch.nn.functional.silu(linear("gate", given)) * linear("up", given)
    else:
        inside = torch.nn.functional.gelu(linear("up", given))
    whole = linear("down", inside)
    whole.backward(torch.tensor(g).double())
    assert given.grad is not None
    expected = {"out": (whole + torch.tensor(rest)).detach(), "x": given.grad + torch.tensor(g)}
    expected |= {name: tensor.grad for name, tensor in asked.items() if tensor.grad is not None}
    found = into.tensors | {"out": out, "x": dx}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        scale = float(tensor.abs().max())
        np.testing.assert_allclose(found[name], tensor, atol=1e-5 * scale, rtol=1e-4)
    bench.close()


def test_no_more_than_a_part_lies_inside_and_the_same_bytes_come_again() -> None:
    found = []
    for _ in range(2):
        bench = open_bench(2)
        draws = np.random.Generator(np.random.PCG64(3))
        weights = {
            name: draws.standard_normal(size, dtype=np.float32)
            for name, size in (
                ("gate", (INSIDE, HIDDEN)),
                ("up", (INSIDE, HIDDEN)),
                ("down", (HIDDEN, INSIDE)),
            )
        }
        linears = {
            name: Linear(
                name, FrozenMatrix(stored("nf4", w), bench), None, False, None, None, 1.0, bench
            )
            for name, w in weights.items()
        }
        parts = FeedForward(GATED, linears, Activation("silu", bench), bench)
        x, g = (draws.standard_normal((ROWS, HIDDEN), dtype=np.float32) for _ in range(2))
        out, dx = np.empty_like(x), np.empty_like(x)
        parts.forward(x, out, None)
        parts.backward(x, g, dx, None, Gradients(bench, {}))
        width = inner_parts(HIDDEN, INSIDE)[0].stop
        assert bench.rooms.bytes == 4 * (width * HIDDEN + 4 * ROWS * width)
        found.append(out.tobytes() + dx.tobytes())
        bench.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("hidden", [64, 576, 3072, 16384])
def test_parts_are_all_columns_in_whole_blocks(hidden: int) -> None:
    for inside in (256, 1536, 8192, 8192 + 64):
        parts = inner_parts(hidden, inside)
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == inside
        assert all(part.start % INNER_BLOCK == 0 for part in parts)
        assert parts[0].stop * hidden <= max(WORD_ELEMENTS, INNER_BLOCK * hidden)

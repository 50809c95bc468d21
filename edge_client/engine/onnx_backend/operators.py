"""Operators of a layer: linear, normalization, activation, attention; forward and backward.

Each is one small graph of `engine.onnx_backend.graphs`, run from arrays into arrays. A matrix is
dequantized where it is used, into a buffer that all matrices share, whole or, where the plan says
so, a slice at a time, which numpy multiplies; attention takes a few texts at a time.

Sizes: B texts, T tokens, N rows (tokens of all texts), H hidden. All states are float32.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.gguf.blocks import BLOCKS
from smidgen.edge_client.bases.quantization import PAIRS, Stored, fill
from smidgen.edge_client.engine.frozen_base import scaled_frequencies
from smidgen.edge_client.engine.onnx_backend import graphs
from smidgen.edge_client.engine.onnx_backend.model import Graph
from smidgen.edge_client.engine.onnx_backend.workspace import Bench, blas_on_one_thread
from smidgen.edge_client.planning.layer_cost import (
    PASS_ELEMENTS,
    SCORES,
    SLICE,
    is_large,
    slice_size,
    window_blocks,
    window_of,
)
from smidgen.edge_client.wire.tensors import AdapterState

CACHED = 1 << 18  # elements made dense at once, so that they stay in a core's cache
LOWEST = float(np.finfo(np.float32).min)  # added to the score of a token that is not seen
Part = tuple[slice, slice]  # texts, tokens
QUICK_ROWS = 256  # multiplied in int8 at once, which takes more room than float32 does


class FrozenMatrix:
    """A stored weight, made dense only where it is used.

    Args:
        stored: Views on the mapped file.
        bench: Shared by all matrices of a network, which take turns in one room.
        release: Gives the file's pages back, where matrices are in slices.
        is_part: Whether it is a slice itself.
    """

    def __init__(
        self,
        stored: Stored,
        bench: Bench,
        release: Callable[[], None] = lambda: None,
        is_part: bool = False,
    ) -> None:
        self._stored, self._bench, self.release = stored, bench, release
        self.shape, self._is_part = stored.shape, is_part
        self._kept: np.ndarray | None = None

    def keep(self) -> None:
        """Hold the dense weight from now on, for whoever uses it token by token."""
        self._kept = self.dense().copy()

    @property
    def is_sliced(self) -> bool:
        """Whether it is made dense a slice at a time; not one that is used where it lies."""
        is_dense = self._kept is not None or self._stored.kind == "float32"
        return self._bench.is_sliced and is_large(self.shape) and not (is_dense or self._is_part)

    def some(self, part: slice, axis: int) -> "FrozenMatrix":
        """Some of its rows, or of its columns (axis 1) by whole blocks."""
        stored = self._stored.some(part, axis)
        if self._kept is not None:
            kept = self._kept[part] if axis == 0 else self._kept[:, part]
            stored = Stored(32, "float32", (kept.shape[0], kept.shape[1]), kept)
        release = self.release if axis == 0 else lambda: None  # columns lie on pages of others
        return FrozenMatrix(stored, self._bench, release, is_part=True)

    def in_slices(self, axis: int, use: Callable[[slice, np.ndarray], None]) -> None:
        """Make some rows (axis 0) or columns (1) dense at a time and use them, until all were.

        Each thread takes one slice after the other: threads that wait for each other at every slice
        wait for the machine's other processes each time.

        Args:
            axis: Which.
            use: Gets a slice and its weights, (rows, columns); called on several threads.
        """
        self._read_ahead()
        threads = self._bench.threads
        step = slice_size(self.shape, axis, self._stored.block, threads)
        parts = iter(row_parts(self.shape[axis], step))  # which all threads take from
        size = step * self.shape[1 - axis]
        rooms = self._bench.rooms.take("dense", (max(1, min(threads, 2 * SLICE // size)), size))
        blas_on_one_thread()

        def work(thread: int) -> None:
            for part in parts if thread < len(rooms) else ():
                some = self._stored.some(part, axis)
                out = rooms[thread][: some.shape[0] * some.shape[1]].reshape(some.shape)
                fill_dense(some, slice(0, len(out)), out)
                use(part, out)

        self._bench.on_threads(work)
        self.release()

    @property
    def dense_bytes(self) -> int:
        """Bytes that `keep` takes."""
        return 0 if self._stored.kind == "float32" else 4 * self.shape[0] * self.shape[1]

    @property
    def codes(self) -> dict[str, np.ndarray] | None:
        """An int8 weight's codes (rows, columns) and scales (rows,); None for other weights."""
        stored = self._stored
        if stored.kind != "int8" or stored.scale is None:
            return None
        return {"codes": stored.data, "scale": stored.scale.reshape(-1)}

    def dense(self) -> np.ndarray:
        """The weight, (rows, columns); valid until another matrix of this bench is asked."""
        stored = self._stored
        if self._kept is not None:
            return self._kept
        self._read_ahead()
        is_gguf = stored.kind in BLOCKS or stored.order is not None
        if stored.kind == "float32" and not is_gguf:
            return np.ascontiguousarray(stored.data)  # of columns a copy
        out = self._bench.rooms.take("dense", self.shape)
        if self._is_part:
            self._by_rows(fill_dense, out)
        elif is_gguf:
            self._by_rows(fill, out)
        elif (codes := self.codes) is not None:
            self._bench.runtime.run("dequantize", graphs.dequantize, codes, {"y": out})
        elif stored.kind == "float16":
            self._bench.runtime.run("widen", graphs.widen, {"x": stored.data}, {"y": out})
        elif stored.kind == "bfloat16":
            wide = out.view(np.uint32)
            np.copyto(wide, stored.data)
            np.left_shift(wide, 16, out=wide)
        else:
            self._by_rows(nf4_dense, out)
        if self._bench.is_sliced:
            self.release()
        return out

    def _read_ahead(self) -> None:
        if self._bench.ahead is not None:
            self._bench.ahead.use(self._stored)

    def _by_rows(self, dense: Callable[[Stored, slice, np.ndarray], None], out: np.ndarray) -> None:
        """Dequantize some rows on each thread."""
        threads = self._bench.threads
        ends = [len(out) * part // threads for part in range(threads + 1)]
        parts = [slice(*span) for span in pairwise(ends)]
        self._bench.on_threads(lambda thread: dense(self._stored, parts[thread], out))


def fill_dense(stored: Stored, part: slice, out: np.ndarray) -> None:
    """Dequantize some rows of a matrix to where they are in `out`, on the calling thread."""
    if stored.kind == "nf4":
        nf4_dense(stored, part, out)
    elif stored.scale is not None:
        np.multiply(stored.data[part], stored.scale[part], out=out[part])
    else:
        fill(stored, part, out)


def nf4_dense(stored: Stored, part: slice, out: np.ndarray) -> None:
    """Dequantize a part of the rows, two values at a look-up, as much at once as a cache holds.

    By ONNX's own Gather it takes three times as long.
    """
    assert stored.scale is not None
    step, table = max(1, CACHED // stored.shape[1]), PAIRS.view(np.int64)[:, 0]
    for start in range(part.start, part.stop, step):
        rows = slice(start, min(start + step, part.stop))
        np.take(table, stored.data[rows], out=out[rows].view(np.int64), mode="clip")
        blocks = out[rows].reshape(*stored.scale[rows].shape, -1)
        np.multiply(blocks, stored.scale[rows][:, :, None], out=blocks)


@dataclass
class Linear:
    """A frozen linear with what is trained beside it; see `engine.torch_backend.layers.Linear`.

    Attributes:
        name: Its module's; its tensors in the adapter begin so.
        matrix: The frozen weight.
        bias: (rows,), the adapter's own array in a bias adapter; None: it has none.
        is_bias_trained: Whether `bias` is trained.
        lora_a: (rank, columns), or None.
        lora_b: (rows, rank), or None.
        scaling: LoRA's alpha / rank.
        bench: Where work is done.
        rows: Which rows of the module's tensors are this linear's; None: all.
        columns: Which columns; None: all.
    """

    name: str
    matrix: FrozenMatrix
    bias: np.ndarray | None
    is_bias_trained: bool
    lora_a: np.ndarray | None
    lora_b: np.ndarray | None
    scaling: float
    bench: Bench
    rows: slice | None = None
    columns: slice | None = None

    def some_rows(self, part: slice) -> "Linear":
        """What gives some of its results."""
        first = 0 if self.rows is None else self.rows.start
        return replace(
            self,
            matrix=self.matrix.some(part, 0),
            bias=None if self.bias is None else self.bias[part],
            lora_b=None if self.lora_b is None else self.lora_b[part],
            rows=slice(first + part.start, first + part.stop),
        )

    def some_columns(self, part: slice) -> "Linear":
        """What reads some of its input; the first part adds the bias."""
        lora_a = None if self.lora_a is None else np.ascontiguousarray(self.lora_a[:, part])
        bias = None if part.start else self.bias
        return replace(
            self,
            matrix=self.matrix.some(part, 1),
            bias=bias,
            is_bias_trained=self.is_bias_trained and not part.start,
            lora_a=lora_a,
            columns=part,
        )

    @property
    def is_input_needed(self) -> bool:
        return self.lora_a is not None

    @property
    def is_trained(self) -> bool:
        return self.is_bias_trained or self.is_input_needed

    def forward(
        self,
        x: np.ndarray,
        out: np.ndarray,
        rest: np.ndarray | None = None,
        is_quick: bool = False,
    ) -> np.ndarray:
        """W x + bias + scaling B A x + rest, (N, columns) -> `out` (N, rows), which is given back.

        `out` may not lie where `x` does. Quick: in int8 where the weight is stored so.
        """
        codes = self.matrix.codes if is_quick else None
        if codes is None and self.matrix.is_sliced:
            return self._in_slices(x, 0, out, rest)
        key = (self.lora_a is not None, rest is not None, self.scaling, self.bias is not None)
        fixed = self._factors() | ({} if self.bias is None else {"bias": self.bias})
        if codes is None:
            fixed["weight"], step = self.matrix.dense(), len(x)
            name, build = "linear", graphs.linear
        else:
            fixed, step = fixed | codes, QUICK_ROWS
            name, build = "linear_int8", graphs.linear_int8
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            inputs = fixed | {"x": x[rows]} | ({} if rest is None else {"rest": rest[rows]})
            self.bench.runtime.run((name, *key), lambda: build(*key), inputs, {"y": out[rows]})
        return out

    def _factors(self) -> dict[str, np.ndarray]:
        if self.lora_a is None or self.lora_b is None:
            return {}
        return {"lora_a": self.lora_a, "lora_b": self.lora_b}

    def backward(
        self, g: np.ndarray, out: np.ndarray, rest: np.ndarray | None = None
    ) -> np.ndarray:
        """The input's gradient, + rest: (N, rows) -> `out` (N, columns), which is given back."""
        if self.matrix.is_sliced:
            return self._in_slices(g, 1, out, rest)
        inputs = {"g": g, "weight": self.matrix.dense()} | self._factors()
        if rest is not None:
            inputs["rest"] = rest
        key = ("linear_back", self.lora_a is not None, rest is not None, self.scaling)
        self.bench.runtime.run(key, lambda: graphs.linear_back(*key[1:]), inputs, {"dx": out})
        return out

    def _in_slices(
        self, x: np.ndarray, axis: int, out: np.ndarray, rest: np.ndarray | None
    ) -> np.ndarray:
        """As `forward` (axis 0) or `backward` (1), the weight a slice at a time.

        No sum is split between slices, so that as many threads give the same bits whichever of them
        takes which. `rest` may lie where `out` does.
        """

        def multiply(part: slice, weight: np.ndarray) -> None:
            if rest is None:
                np.matmul(x, weight if axis else weight.T, out=out[:, part])
            else:
                out[:, part] = x @ (weight if axis else weight.T) + rest[:, part]

        self.matrix.in_slices(axis, multiply)
        for rows in chunks(out):
            if axis == 0 and self.bias is not None:
                out[rows] += self.bias
            if self.lora_a is not None and self.lora_b is not None:
                first, second = self.lora_a.T, self.lora_b.T
                if axis:
                    first, second = self.lora_b, self.lora_a
                out[rows] += np.float32(self.scaling) * (x[rows] @ first) @ second
        return out

    def gradients(self, x: np.ndarray | None, g: np.ndarray, into: "Gradients") -> None:
        """Add the gradients of the adapter's tensors beside this linear.

        Args:
            x: Its input, (N, columns); only where `is_input_needed`.
            g: The gradient at its output, (N, rows).
            into: Gradients by the adapter's names.
        """
        if self.is_bias_trained:
            into.add_bias(self.name, g, self.rows)
        if self.lora_a is None or self.lora_b is None:
            return
        assert x is not None
        outs = {"lora_a_g": np.empty_like(self.lora_a), "lora_b_g": np.empty_like(self.lora_b)}
        inputs = {"x": x, "g": g, "lora_a": self.lora_a, "lora_b": self.lora_b}
        key, scaling = ("lora_gradient", self.scaling), self.scaling
        self.bench.runtime.run(key, lambda: graphs.lora_gradient(scaling), inputs, outs)
        columns = None if self.columns is None else (slice(None), self.columns)
        into.add(f"{self.name}.lora_A.weight", outs["lora_a_g"], columns)
        into.add(f"{self.name}.lora_B.weight", outs["lora_b_g"], self.rows)


def row_parts(rows: int, step: int) -> list[slice]:
    """Slices of so many rows each, the last one of what is left."""
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class Gradients:
    """Gradients by the adapter's names, summed over the parts of a batch.

    Args:
        bench: Where sums are made.
        adapter: What is trained, by the same names.
    """

    def __init__(self, bench: Bench, adapter: AdapterState) -> None:
        self._bench, self._adapter = bench, adapter
        self.tensors: dict[str, np.ndarray] = {}

    def add(
        self,
        name: str,
        gradient: np.ndarray,
        part: slice | tuple[slice, slice] | None = None,
    ) -> None:
        """Add to a tensor's gradient, or to a part of it; the array is kept."""
        if part is not None:
            if name not in self.tensors:
                self.tensors[name] = np.zeros_like(self._adapter[name])
            self.tensors[name][part] += gradient
        elif name in self.tensors:
            self.tensors[name] += gradient
        else:
            self.tensors[name] = gradient

    def add_bias(self, module: str, g: np.ndarray, rows: slice | None = None) -> None:
        """Add the sum over the rows of g (N, rows) to a module's bias, or to some of it."""
        out = np.empty(g.shape[1], np.float32)
        self._bench.runtime.run("bias", graphs.bias_gradient, {"g": g}, {"bias_g": out})
        self.add(f"{module}.bias", out, rows)


@dataclass
class Norm:
    """Layer normalization, or root-mean-square normalization.

    Attributes:
        name: The module's name.
        weight: (H,).
        bias: (H,), the adapter's own array in a bias adapter; not read by the root mean square.
        is_bias_trained: Whether `bias` is trained.
        eps: Added to the variance.
        bench: Where work is done.
        is_rms: Whether by the root mean square.
    """

    name: str
    weight: np.ndarray
    bias: np.ndarray
    is_bias_trained: bool
    eps: float
    bench: Bench
    is_rms: bool = False

    def forward(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Normalize each row of `x` into `out`, which is given back."""
        fixed = {"weight": self.weight} | ({} if self.is_rms else {"bias": self.bias})
        key = ("norm", self.eps, self.is_rms)
        for rows in chunks(x) if self.is_rms else [slice(None)]:  # of several operators
            inputs = fixed | {"x": x[rows]}
            self.bench.runtime.run(key, lambda: graphs.norm(*key[1:]), inputs, {"y": out[rows]})
        return out

    def backward(
        self, x: np.ndarray, g: np.ndarray, out: np.ndarray, rest: np.ndarray | None = None
    ) -> np.ndarray:
        """The gradient at `x`, + rest; `out` may lie where `g` does."""
        key = ("norm_back", self.eps, x.shape[1], rest is not None, self.is_rms)
        for rows in chunks(x):
            inputs = {"x": x[rows], "g": g[rows], "weight": self.weight}
            inputs |= {} if rest is None else {"rest": rest[rows]}
            self.bench.runtime.run(
                key, lambda: graphs.norm_back(*key[1:]), inputs, {"dx": out[rows]}
            )
        return out

    def gradients(self, g: np.ndarray, into: Gradients) -> None:
        """Add its bias's gradient, from the gradient at its output."""
        if self.is_bias_trained:
            into.add_bias(self.name, g)


def chunks(x: np.ndarray) -> list[slice]:
    """Slices of a pass's rows, one chunk at a time."""
    return row_parts(len(x), max(1, PASS_ELEMENTS // x.shape[1]))


@dataclass(frozen=True)
class Activation:
    """An element-wise function between two linears.

    Attributes:
        kind: See `smidgen.edge_client.engine.onnx_backend.graphs.activation`.
        bench: Where work is done.
    """

    kind: str
    bench: Bench

    def forward(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write the function of each element of `x` to `out`, which is given back."""
        self._run(graphs.activation, {"x": x}, {"y": out})
        return out

    def backward(self, x: np.ndarray, g: np.ndarray) -> np.ndarray:
        """The gradient at `x`, written where `g` was."""
        self._run(graphs.activation_back, {"x": x, "g": g}, {"dx": g})
        return g

    def gate(self, x: np.ndarray, by: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write the function of `x`, times `by`, to `out`, which is given back."""
        self._run(graphs.gate, {"x": x, "by": by}, {"y": out})
        return out

    def _run(
        self, build: Callable[[str], Graph], inputs: AdapterState, outputs: AdapterState
    ) -> None:
        """Run a graph of this kind on some rows after the other, of all arrays the same."""
        for rows in chunks(inputs["x"]):
            some, into = ({name: x[rows] for name, x in part.items()} for part in (inputs, outputs))
            key = build.__name__, self.kind
            self.bench.runtime.run(key, partial(build, self.kind), some, into)

    def gate_back(self, x: np.ndarray, by: np.ndarray, g: np.ndarray) -> None:
        """Write the gradients at `x` and `by` where these lie."""
        key = ("gate_back", self.kind)
        for rows in chunks(x):
            inputs = {"x": x[rows], "by": by[rows], "g": g[rows]}
            outputs = {name: np.empty_like(inputs["x"]) for name in ("dx", "dby")}
            self.bench.runtime.run(key, lambda: graphs.gate_back(self.kind), inputs, outputs)
            x[rows], by[rows] = outputs["dx"], outputs["dby"]


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864), halves as Hugging Face pairs them.

    Attributes:
        head_dim: Width of a head.
        turned: D, its first columns that are turned.
        bench: Where work is done.
    """

    head_dim: int
    turned: int
    bench: Bench

    def turn(self, x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> None:
        """Turn each row where it lies; with the sine's opposite, back.

        Args:
            x: (B, T, H).
            cosine: (T, D / 2), or (B, T, D / 2).
            sine: Of the same shape.
        """
        key = ("rotary", self.head_dim, self.turned, x.shape[2])
        step = max(1, PASS_ELEMENTS // x.shape[2])
        for text, states in enumerate(x):
            angles = [part if part.ndim == 2 else part[text] for part in (cosine, sine)]
            for start in range(0, len(states), step):
                rows = slice(start, start + step)
                inputs = {"x": states[rows], "cosine": angles[0][rows], "sine": angles[1][rows]}
                self.bench.runtime.run(
                    key, lambda: graphs.rotary(*key[1:]), inputs, {"y": states[rows]}
                )


def rotary_angles(
    shape: Shape, is_local: bool, tokens: int, first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine for so many positions from the first, each (tokens, D / 2), float32.

    Both times `Shape.rope_magnitude`; D columns of each head are turned.
    """
    steps = np.arange(0, shape.turned, 2, dtype=np.float32) / np.float32(shape.turned)
    theta = np.float32(shape.local_rope_theta if is_local else shape.rope_theta)
    frequencies = scaled_frequencies(theta**-steps, shape, is_local)
    angles = np.outer(np.arange(first, first + tokens, dtype=np.float32), frequencies)
    magnitude = np.float32(shape.rope_magnitude)
    return np.cos(angles) * magnitude, np.sin(angles) * magnitude


@dataclass(frozen=True)
class Attention:
    """Attention between queries (B, T, H), keys and values (B, S, H), some texts at a time.

    Attributes:
        head_dim: Width of a head; keys and values may have fewer heads than queries.
        bench: Where work is done.
        is_causal: Whether a token sees none behind it.
    """

    head_dim: int
    bench: Bench
    is_causal: bool = False

    def forward(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        mask: np.ndarray | None,
        out: np.ndarray,
        window: int | None = None,
    ) -> np.ndarray:
        """Into `out` (B, T, H), which is given back.

        Mask: added to the scores, (B or 1, A or 1, T or 1, S).
        Window: tokens seen on either side of each, of as many queries as keys; None: all.
        """
        for part, keys, added in self._parts(q, k, mask, window):
            key = ("attention", self.head_dim, q.shape[2], added is not None, k.shape[2])
            inputs = _with_mask({"q": q[part], "k": k[keys], "v": v[keys]}, added)
            build = partial(graphs.attention, *key[1:])
            self.bench.runtime.run(key, build, inputs, {"y": out[part]})
        return out

    def backward(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        mask: np.ndarray | None,
        g: np.ndarray,
        outs: tuple[np.ndarray, np.ndarray, np.ndarray],
        window: int | None = None,
    ) -> None:
        """Write the gradients at queries, keys and values to `outs`, from the result's.

        The queries' may lie where they do, where attention is in parts: each part's are copied
        there when nothing reads it any more.
        """
        is_whole = self.parted(q, k, window) is None
        is_apart = is_whole and outs[0].ctypes.data != q.ctypes.data
        for out in () if is_whole else outs[1:]:  # keys of a window come again
            out.fill(0.0)
        for part, keys, added in self._parts(q, k, mask, window):
            key = ("attention_back", self.head_dim, q.shape[2], added is not None, k.shape[2])
            inputs = {"q": q[part], "k": k[keys], "v": v[keys], "g": g[part]}
            made = {"dq": outs[0][part], "dk": outs[1][keys], "dv": outs[2][keys]}
            copied = () if is_apart else ("dq",) if is_whole else tuple(made)
            found = made | {name: np.empty_like(made[name]) for name in copied}
            build = partial(graphs.attention_back, *key[1:])
            self.bench.runtime.run(key, build, _with_mask(inputs, added), found)
            for name in copied:
                made[name][...] = found[name] if name == "dq" else made[name] + found[name]

    def _parts(
        self, q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, window: int | None
    ) -> Iterator[tuple[Part, Part, np.ndarray | None]]:
        """Queries that are computed together, the keys that they see, and their mask."""
        texts, queries, keys = len(q), q.shape[1], k.shape[1]
        parted = self.parted(q, k, window)
        if mask is not None:
            mask = np.broadcast_to(mask, (texts, *mask.shape[1:]))
        if parted is None:
            step = max(1, SCORES // (q.shape[2] // self.head_dim * queries * keys))
            if self.is_causal:  # of all texts: their padding lies behind, where nobody sees it
                assert mask is None
                last = np.arange(keys - queries, keys)[:, None]  # where some are cached, of all
                near = keys if window is None else window
                mask = near_mask(last, np.arange(keys), near, None, is_causal=True)
                mask = np.broadcast_to(mask, (texts, 1, queries, keys))
            for start in range(0, texts, step):
                part = (slice(start, start + step), slice(None))
                added = None if mask is None else mask[part[0]]
                if added is not None and not added.strides[0]:  # all texts have the same
                    added = added[:1]
                yield part, part, added
            return
        blocks = window_blocks(queries, parted, self.is_causal)
        if self.is_causal:
            # The most keys first: the runtime's memory grows by what is asked, and what fewer keys
            # took would not do for more.
            blocks.reverse()
        for rows, seen in blocks:
            places = np.arange(queries)[rows, None], np.arange(keys)[seen]
            for text in range(texts):
                one, added = slice(text, text + 1), None
                if mask is not None:
                    own = mask[text][:, rows if mask.shape[2] > 1 else slice(None), seen]
                    added = own[None]  # (1, A or 1, T or 1, S)
                if parted < keys or self.is_causal:
                    near = near_mask(*places, parted, added, self.is_causal)
                    added = near.reshape(1, -1, *near.shape[-2:])
                yield (one, rows), (one, seen), added

    def parted(self, q: np.ndarray, k: np.ndarray, window: int | None) -> int | None:
        """The window by which attention is in parts; None: all queries of a text at once."""
        if q.shape[1] != k.shape[1]:
            return None
        return window_of(k.shape[1], window, self.is_causal)


def near_mask(
    rows: np.ndarray,
    columns: np.ndarray,
    window: int,
    mask: np.ndarray | None,
    is_causal: bool = False,
) -> np.ndarray:
    """The mask, and the lowest number where a column is further from a row than the window.

    Causal: where it is behind the row, too.
    """
    seen = np.float32(0.0) if mask is None else mask
    is_near = np.abs(rows - columns) <= window
    if is_causal:
        is_near &= columns <= rows
    return np.where(is_near, seen, np.float32(LOWEST))


def _with_mask(inputs: dict[str, np.ndarray], mask: np.ndarray | None) -> dict[str, np.ndarray]:
    return inputs if mask is None else inputs | {"mask": np.ascontiguousarray(mask)}

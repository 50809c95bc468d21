"""A layer's operations, forward and backward, over frozen memory-mapped weights.

Interprets the same operations as `engine.torch_backend.layers`. A tape keeps what is expensive to
recompute (outputs of linears and attention); normalized states and activations are recomputed in
backward. A buffer is reused once its contents are dead: a register's gradient lies where its value
did. `smidgen.edge_client.planning.onnx_memory` counts these buffers.

Sizes: B texts, T tokens, N = B * T rows, H hidden, F intermediate. All arrays are float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from smidgen.edge_client.bases import architectures as ops
from smidgen.edge_client.bases.architectures import (
    Block,
    late_registers,
    reads,
    rooms_of,
    writes,
)
from smidgen.edge_client.engine.generation import KeyValueCache
from smidgen.edge_client.engine.onnx_backend.feed_forward import FeedForward
from smidgen.edge_client.engine.onnx_backend.operators import (
    Activation,
    Attention,
    Gradients,
    Linear,
    Norm,
    Rotary,
    near_mask,
    row_parts,
)
from smidgen.edge_client.engine.onnx_backend.workspace import Bench, BufferPool
from smidgen.edge_client.planning.layer_cost import answers_together


@dataclass(frozen=True)
class Pass:
    """One micro-batch on its way through the layers.

    Attributes:
        ids: Token ids, (B, T - P) with P soft prompt tokens.
        tokens: T.
        mask: Added to the scores, (B, 1 or A, 1 or T, T); None where nothing is.
        answers: Rows of the states that the top layer goes on with, one of each text, (B,); None:
            all rows.
        places: Rows of the top layer's states that the head reads, (answers,); None: all it has.
        is_quick: Whether int8 weights are multiplied in int8; for inference alone.
        segments: See `Batch`; read before the first layer.
        rotary: Cosine and sine, each (T, D / 2), by whether they are of local layers.
        shares: Each token's share of the mean of its text's states that the head reads, (B, T);
            None: it reads rows.
        cache: Keys and values of the one text's tokens before these; None: all are here.
    """

    ids: np.ndarray
    tokens: int
    mask: np.ndarray | None
    answers: np.ndarray | None
    places: np.ndarray | None = None
    is_quick: bool = False
    segments: np.ndarray | None = None
    rotary: Mapping[bool, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    shares: np.ndarray | None = None
    cache: KeyValueCache | None = None

    @property
    def texts(self) -> int:
        return len(self.ids)  # B

    @property
    def rows(self) -> int:
        return self.texts * self.tokens  # N

    def some(self, rows: np.ndarray) -> "Pass":
        """The pass of some of its texts, whose states lie one behind the other."""
        assert self.places is None, "texts of several answers go all the way"
        answers = None
        if self.answers is not None:
            positions = self.answers[rows] - self.tokens * rows
            answers = positions + self.tokens * np.arange(len(rows))
        mask, shares = (None if part is None else part[rows] for part in (self.mask, self.shares))
        return replace(self, ids=self.ids[rows], mask=mask, answers=answers, shares=shares)

    def mean(self, h: np.ndarray) -> np.ndarray:
        """What the head reads of states behind the top norm: they, or each text's mean."""
        if self.shares is None:
            return h
        mean: np.ndarray = (self.shares[:, None] @ self.by_text(h))[:, 0]  # (B, H)
        return mean

    def mean_back(self, g: np.ndarray, rooms: BufferPool) -> np.ndarray:
        """A gradient at what `mean` gives, at what it gets."""
        if self.shares is None:
            return g
        whole = rooms.take("h_g", (self.rows, g.shape[1]))
        np.multiply(self.shares[:, :, None], g[:, None], out=self.by_text(whole))
        return whole

    def read(self, x: np.ndarray, part: slice = slice(None)) -> np.ndarray:
        """What the head reads of the top layer's states, or some of it."""
        return x if self.places is None else x[self.places[part]]

    def unread(self, g: np.ndarray, part: slice, rooms: BufferPool) -> np.ndarray:
        """A gradient at some of what the head reads, at the top layer's states.

        No row is read twice; the parts come one behind the other, and what the last gives counts.
        """
        if self.places is None:
            return g
        whole = rooms.take("h_g", (self.rows, g.shape[1]))
        if not part.start:
            whole.fill(0.0)
        whole[self.places[part]] = g
        return whole

    def read_parts(self, width: int) -> list[slice]:
        """What the head reads together of states so wide: some answers, or a row of each text."""
        if self.places is None:
            return [slice(None)]
        return row_parts(len(self.places), answers_together(width)) or [slice(0, 0)]

    def by_text(self, x: np.ndarray) -> np.ndarray:
        """A view with one row of states per text: (N, H) -> (B, T, H), (B, H) -> (B, 1, H)."""
        return x.reshape(self.texts, -1, x.shape[1])


Tape = dict[str, np.ndarray]  # registers by name, each (L, columns); L late rows are N, or B


@dataclass(frozen=True)
class Layer:
    """One layer's weights.

    Attributes:
        linears: By short name, as the operations name them.
        norms: By name: `attention_norm`, and `output_norm`.
        activation: Inside the feed-forward.
        attention: Between queries, keys and values.
        rotary: Turns queries and keys.
        bench: Where work is done.
    """

    linears: dict[str, Linear]
    norms: dict[str, Norm]
    activation: Activation
    attention: Attention
    rotary: Rotary
    bench: Bench


@dataclass(frozen=True)
class PlacedLayer:
    """A layer where it stands among the computed ones.

    Attributes:
        layer: Its weights.
        block: Its operations.
        short: Those where only the answers' rows go on after keys and values.
        sliced: Both, where large matrices are in slices.
        below: The layer below; None for the lowest.
        is_turned: Whether it has rotary positions.
        window: Tokens that it sees on either side of each; None: all.
        index: Its number.
    """

    layer: Layer
    block: Block
    short: Block
    sliced: tuple[Block, Block]
    below: Layer | None
    is_turned: bool
    window: int | None = None
    index: int = 0

    def block_of(self, run: Pass) -> Block:
        whole, short = self.sliced if self.layer.bench.is_sliced else (self.block, self.short)
        return whole if run.answers is None else short

    def norm(self, op: ops.Norm) -> Norm:
        owner = self.below if op.is_below else self.layer
        assert owner is not None
        return owner.norms[op.module]

    def tape(self, run: Pass, prefix: str) -> Tape:
        """Room for a tape; one of an empty prefix is overwritten by the next layer's."""
        block, linears = self.block_of(run), self.layer.linears
        widths, late = dict[str, int](), late_registers(block)
        for op in block:
            if isinstance(op, ops.Linears):
                names = zip(op.results, op.names, strict=True)
                widths |= {result: linears[name].matrix.shape[0] for result, name in names}
            elif isinstance(op, ops.FeedForward):
                widths[op.into] = linears[op.last.names[0]].matrix.shape[0]
            elif isinstance(op, ops.Norm) and op.is_kept:
                widths[op.into] = widths[op.of]
            elif isinstance(op, ops.Attend):
                widths["context"] = linears["q"].matrix.shape[0]
        # Attention's result is recomputed where nothing is learnt from it.
        is_read = any(self._learns_from(op, "context") for op in block)
        own = dict.fromkeys(widths, prefix) | {"context": prefix if is_read else ""}
        take, rows = self.layer.bench.rooms.take, {True: run.texts, False: run.rows}
        return {
            name: take(own[name] + name, (rows[name in late], width))
            for name, width in widths.items()
            if name != "out"
        }

    def _learns_from(self, op: ops.Op, register: str) -> bool:
        if not isinstance(op, ops.Linears) or op.of != register:
            return False
        return any(self.layer.linears[name].is_input_needed for name in op.names)

    def is_trained(self, op: ops.Op) -> bool:
        if isinstance(op, ops.Norm):
            return self.norm(op).is_bias_trained
        if isinstance(op, ops.FeedForward):
            return self.is_trained(op.inner) or self.is_trained(op.last)
        if not isinstance(op, ops.Linears):
            return False
        return any(self.layer.linears[name].is_trained for name in op.names)

    def feed_forward(self, op: ops.FeedForward) -> FeedForward:
        layer = self.layer
        return FeedForward(op, layer.linears, layer.activation, layer.bench)

    def forward(self, x: np.ndarray, run: Pass, tape: Tape, out: np.ndarray | None) -> None:
        """Fill the tape, and `out` with this layer's result.

        Args:
            x: The layer's input, (N, H).
            run: Mask and positions.
            tape: What `tape` gave.
            out: (N, H), or (B, H) of the top layer; None where nobody reads it, as when a layer is
                recomputed.
        """
        values = _Values(self, run, x, tape)
        for op in self.block_of(run):
            match op:
                case ops.Linears():
                    for name, result in zip(op.names, op.results, strict=True):
                        target = out if result == "out" else tape[result]
                        if target is not None:
                            rest = values.get(op.plus) if op.plus else None
                            linear = self.layer.linears[name]
                            linear.forward(values.get(op.of), target, rest, run.is_quick)
                case ops.FeedForward():
                    target = out if op.into == "out" else tape[op.into]
                    if target is not None:
                        rest = values.get(op.plus) if op.plus else None
                        self.feed_forward(op).forward(values.get(op.of), target, rest)
                case ops.Norm() if op.is_kept:
                    norm, target = self.norm(op), out if op.into == "out" else tape[op.into]
                    if target is not None:
                        norm.forward(by_row(tape[op.of], norm), by_row(target, norm))
                        if op.plus:
                            target += values.get(op.plus)
                case ops.Rotary():
                    for name in op.of:
                        self.turn(tape[name], run, 1.0)
                case ops.Attend():
                    q, k, v, context = (run.by_text(tape[n]) for n in ("q", "k", "v", "context"))
                    if run.cache is not None:
                        k, v = run.cache.extended(self.index, k, v)
                    seen = self.seen(run, q.shape[1])
                    self.layer.attention.forward(q, k, v, seen[0], context, seen[1])

    def seen(self, run: Pass, queries: int) -> tuple[np.ndarray | None, int | None]:
        """What is added to the scores, and the window; of the answers' rows the mask has both."""
        is_of_keys = run.mask is None or run.mask.shape[2] == 1  # the same for all queries
        if queries == run.tokens or (self.window is None and is_of_keys):
            return run.mask, self.window
        assert run.answers is not None
        places = run.answers % run.tokens
        if self.window is None and run.mask is not None:
            return run.mask[np.arange(run.texts), :, places][:, :, None], None  # (B, A, 1, T)
        rows = places[:, None, None, None]
        assert self.window is not None  # else the mask, or none, is of keys
        return near_mask(rows, np.arange(run.tokens), self.window, run.mask), None

    def turn(self, x: np.ndarray, run: Pass, way: float) -> None:
        """Turn queries or keys, (L, H), by their positions, where a layer has any; -1: back."""
        if not self.is_turned:
            return
        cosine, sine = run.rotary[self.window is not None]  # (T, D / 2)
        if len(x) < run.rows:
            assert run.answers is not None
            places = (run.answers % run.tokens)[:, None]  # (B, 1)
            cosine, sine = cosine[places], sine[places]
        self.layer.rotary.turn(run.by_text(x), cosine, np.float32(way) * sine)

    def backward(
        self,
        x: np.ndarray,
        run: Pass,
        tape: Tape,
        g: np.ndarray,
        is_input_needed: bool,
        into: Gradients,
    ) -> np.ndarray | None:
        """Add what the layer's adapter gets of the gradient at the layer's result.

        Args:
            x: The layer's input, (N, H).
            run: Mask and positions.
            tape: Filled by `forward`; overwritten.
            g: (N, H), or (B, H) of the top layer.
            is_input_needed: Whether something below is trained too.
            into: Takes the gradients.

        Returns:
            The gradient at `x`, in a room that the next layer's backward leaves alone until it has
            read it; None if nobody needs it.
        """
        block = self.block_of(run)
        back = _Back(self, _Values(self, run, x, tape), {"out": g}, into)
        for number in reversed(range(len(block))):
            is_needed = is_input_needed or any(map(self.is_trained, block[:number]))
            back.through(block, number, is_needed)
            if not is_needed:
                return None
        return back.take("x")


@dataclass
class _Values:
    """A layer's registers: those on the tape, and cheap ones, computed when they are read."""

    placed: PlacedLayer
    run: Pass
    x: np.ndarray
    tape: Tape
    made: Tape = field(default_factory=dict)

    def get(self, name: str) -> np.ndarray:
        if name == "x":
            return self.x
        if name in self.tape:
            return self.tape[name]
        if name not in self.made:
            writer = next(op for op in self.placed.block_of(self.run) if name in writes(op))
            self.made[name] = self._compute(writer)
        return self.made[name]

    def _compute(self, op: ops.Op) -> np.ndarray:
        layer, take = self.placed.layer, self.placed.layer.bench.rooms.take
        match op:
            case ops.Norm():
                x, rooms = self.get(op.of), rooms_of(self.placed.block_of(self.run))
                room = take(rooms.get(op.into, op.into), x.shape)
                return self.placed.norm(op).forward(x, room)
            case ops.Answers():
                rows: np.ndarray = self.get(op.of)[self.run.answers]
                return rows
            case ops.Activate():
                x = self.get(op.of)
                return layer.activation.forward(x, take(op.into, x.shape))
            case ops.Gate():
                x = self.get(op.of)
                return layer.activation.gate(x, self.get(op.by), take(op.into, x.shape))
        raise AssertionError(f"{op} is on the tape")


@dataclass
class _Back:
    """One layer's way back: gradients by register."""

    placed: PlacedLayer
    values: _Values
    gradients: Tape
    into: Gradients
    late: Tape = field(default_factory=dict)  # of the answers' rows alone, to be added

    def take(self, name: str) -> np.ndarray:
        """A register's whole gradient, which is used up."""
        g = self.gradients.pop(name)
        if name in self.late:
            g[self.values.run.answers] += self.late.pop(name)  # no row twice
        return g

    def through(self, block: Block, number: int, is_needed: bool) -> None:
        """Back through one operation; the gradient at its input only where it is needed."""
        op, values, layer = block[number], self.values, self.placed.layer
        match op:
            case ops.Linears():
                is_read = any(op.of in reads(other) for other in block[:number])
                self._linears(op, is_needed, is_read)
            case ops.FeedForward():
                x, g = values.get(op.of), self.take(op.into)
                out = layer.bench.rooms.take(f"{op.of}_g", x.shape) if is_needed else None
                if op.plus:
                    self.gradients[op.plus] = g
                rest = self.gradients.get(op.of)
                self.placed.feed_forward(op).backward(x, g, out, rest, self.into)
                if out is not None:
                    self.gradients[op.of] = out
            case ops.Attend():
                self._attend()
            case ops.Rotary():
                for name in op.of:
                    self.placed.turn(self.gradients[name], values.run, -1.0)
            case ops.Answers():
                self.late[op.of] = self.take(op.into)
            case ops.Norm() if op.is_kept:
                norm, g = self.placed.norm(op), self.take(op.into)
                out = layer.bench.rooms.take("under_g", g.shape) if op.plus else g
                norm.backward(*(by_row(x, norm) for x in (values.get(op.of), g, out)))
                self.gradients |= {op.of: out} | ({op.plus: g} if op.plus else {})
            case ops.Norm():
                norm, g = self.placed.norm(op), self.take(op.into)
                norm.gradients(g, self.into)
                if is_needed:
                    rest = self.gradients.get(op.of)
                    out = self._room("x", g.shape, True, rest) if op.of == "x" else g
                    self.gradients[op.of] = norm.backward(values.get(op.of), g, out, rest)
            case ops.Activate():
                x, g = values.get(op.of), self.take(op.into)
                self.gradients[op.of] = layer.activation.backward(x, g)
            case ops.Gate():
                x, by = values.get(op.of), values.get(op.by)
                layer.activation.gate_back(x, by, self.take(op.into))
                self.gradients |= {op.of: x, op.by: by}

    def _linears(self, op: ops.Linears, is_needed: bool, is_read: bool) -> None:
        linears = {name: self.placed.layer.linears[name] for name in op.names}
        given = {n: self.take(r) for n, r in zip(op.names, op.results, strict=True)}
        for name, linear in linears.items():
            x = self.values.get(op.of) if linear.is_input_needed else None
            linear.gradients(x, given[name], self.into)
        if op.plus:
            self.gradients[op.plus] = given[op.names[0]]
        for name, linear in linears.items() if is_needed else ():
            rest = self.gradients.get(op.of)
            shape = len(given[name]), linear.matrix.shape[1]
            self.gradients[op.of] = linear.backward(
                given[name], self._room(op.of, shape, is_read, rest), rest
            )

    def _attend(self) -> None:
        run, tape = self.values.run, self.values.tape
        take = self.placed.layer.bench.rooms.take
        q, k, v = (run.by_text(tape[name]) for name in "qkv")
        mask, window = self.placed.seen(run, q.shape[1])
        attention = self.placed.layer.attention
        found = {name: take(f"{name}_g", tape[name].shape) for name in "kv"}
        is_in_parts = attention.parted(q, k, window) is not None
        found["q"] = tape["q"] if is_in_parts else take("q_g", tape["q"].shape)
        dq, dk, dv = (run.by_text(found[name]) for name in "qkv")
        g = run.by_text(self.take("context"))
        attention.backward(q, k, v, mask, g, (dq, dk, dv), window)
        self.gradients |= found

    def _room(
        self, name: str, shape: tuple[int, ...], is_read: bool, rest: np.ndarray | None
    ) -> np.ndarray:
        """Where a register's gradient goes: where its value lay, if nobody reads that any more.

        Args:
            name: The register.
            shape: The gradient's.
            is_read: Whether an operation below reads the value.
            rest: What is added, which must lie elsewhere.
        """
        take, name = self.placed.layer.bench.rooms.take, "h" if name == "x" else name
        if not is_read:
            tape = self.values.tape
            own = tape[name] if name in tape else take(name, shape)
            if rest is None or own.ctypes.data != rest.ctypes.data:
                return own
        return take(f"{name}_g", shape)


def by_row(x: np.ndarray, norm: Norm) -> np.ndarray:
    """A view with a row for each of a norm's: (L, H) as it is, or (L, heads * D) by heads."""
    return x.reshape(-1, len(norm.weight))


def compacted(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The states of some texts, (N, H), moved to the front of where all were."""
    for place, row in enumerate(rows):
        x[place] = x[row]
    return x[: len(rows)].reshape(-1, x.shape[2])

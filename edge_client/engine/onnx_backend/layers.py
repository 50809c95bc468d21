"""A layer's operations, forward and backward, over frozen memory-mapped weights.

Interprets the same operations as `engine.torch_backend.layers`. A tape keeps what is expensive to
recompute (outputs of linears and attention); normalized states and activations are recomputed in
backward. A buffer is reused once its contents are dead: a register's gradient lies where its value
did. `smidgen.edge_client.planning.onnx_memory` counts these buffers.

Sizes: B texts, N rows (tokens of all texts), H hidden, F intermediate; of texts of equal lengths b,
of t tokens each. All arrays are float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from smidgen.edge_client.bases import architectures as ops
from smidgen.edge_client.bases.architectures import (
    Block,
    late_registers,
    reads,
    rooms_of,
    writes,
)
from smidgen.edge_client.engine.backend import first_rows
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
from smidgen.edge_client.planning.layer_cost import HEADS, answers_together

Group = tuple[slice, slice, int]  # texts of one length beside each other, their rows, the length


@dataclass(frozen=True)
class Pass:
    """One micro-batch on its way through the layers; what is padded in it has no rows.

    Attributes:
        ids: Token ids, (B, longest), padded.
        lengths: Tokens of each text, those of a soft prompt before it included, (B,).
        prompt: P, how many those are.
        bias: Added to the scores by distance, (A, T, T) with T tokens of the longest text; None
            where nothing is.
        answers: Rows of the states that the top layer goes on with, one of each text, (B,); None:
            all rows.
        places: Rows of the top layer's states that the head reads, (answers,); None: all it has.
        is_quick: Whether int8 weights are multiplied in int8; for inference alone.
        segments: See `Batch`; read before the first layer.
        rotary: Cosine and sine, each (T, D / 2), by whether they are of local layers.
        is_mean: Whether the head reads each text's mean state.
        cache: Keys and values of the one text's tokens before these; None: all are here.
    """

    ids: np.ndarray
    lengths: np.ndarray
    prompt: int
    bias: np.ndarray | None
    answers: np.ndarray | None
    places: np.ndarray | None = None
    is_quick: bool = False
    segments: np.ndarray | None = None
    rotary: Mapping[bool, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    is_mean: bool = False
    cache: KeyValueCache | None = None

    @property
    def texts(self) -> int:
        return len(self.lengths)  # B

    @cached_property
    def rows(self) -> int:
        return int(self.lengths.sum())  # N

    @cached_property
    def starts(self) -> np.ndarray:
        """Each text's first row, (B,)."""
        return first_rows(self.lengths)

    @cached_property
    def groups(self) -> list[Group]:
        """Its texts, those of equal lengths beside each other together; the longest first.

        The runtime's memory grows by what is asked: what shorter ones took would not do for more.
        """
        cuts = [0, *(np.flatnonzero(np.diff(self.lengths)) + 1).tolist(), self.texts]
        ends, lengths = [*self.starts.tolist(), self.rows], self.lengths.tolist()
        found = [(slice(a, b), slice(ends[a], ends[b]), lengths[a]) for a, b in pairwise(cuts)]
        return sorted(found, key=lambda group: -group[2])

    @cached_property
    def positions(self) -> np.ndarray:
        """Where in each text the row is that the top layer goes on with, (B,)."""
        assert self.answers is not None
        positions: np.ndarray = self.answers - self.starts
        return positions

    def of(self, group: Group, x: np.ndarray) -> np.ndarray:
        """A view of some texts' states: of (N, H) -> (b, t, H), of (B, H) -> (b, 1, H)."""
        texts, rows, _ = group
        part = x[texts if len(x) == self.texts else rows]
        return part.reshape(texts.stop - texts.start, -1, x.shape[1])

    def each(self, x: np.ndarray) -> list[np.ndarray]:
        """Views text by text: of (N, H) -> (t, H) each, of (B, H) -> (1, H)."""
        ends = range(self.texts) if len(x) == self.texts else self.starts
        return np.split(x, ends[1:])

    def own(self, x: np.ndarray) -> np.ndarray:
        """The rows of texts, without a soft prompt's: of (N, H) -> (N - B * P, H)."""
        return (
            x if not self.prompt else np.concatenate([one[self.prompt :] for one in self.each(x)])
        )

    def some(self, texts: np.ndarray) -> "Pass":
        """The pass of some of its texts, whose states lie one behind the other."""
        assert self.places is None, "texts of several answers go all the way"
        lengths, answers = self.lengths[texts], self.answers
        if answers is not None:
            answers = self.positions[texts] + first_rows(lengths)
        return replace(self, ids=self.ids[texts], lengths=lengths, answers=answers)

    def mean(self, h: np.ndarray) -> np.ndarray:
        """What the head reads of states behind the top norm: they, or each text's mean."""
        if not self.is_mean:
            return h
        return np.stack([np.full(len(own), 1 / len(own), h.dtype) @ own for own in self.each(h)])

    def mean_back(self, g: np.ndarray, rooms: BufferPool) -> np.ndarray:
        """A gradient at what `mean` gives, at what it gets."""
        if not self.is_mean:
            return g
        whole = rooms.take("h_g", (self.rows, g.shape[1]))
        for own, mean in zip(self.each(whole), g, strict=True):
            np.multiply(mean, np.float32(1 / len(own)), out=own)
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
                    for group in run.groups:
                        q, k, v, context = (run.of(group, tape[n]) for n in (*HEADS, "context"))
                        if run.cache is not None:
                            k, v = run.cache.extended(self.index, k, v)
                        mask, window = self.seen(run, group, q.shape[1])
                        self.layer.attention.forward(q, k, v, mask, context, window)

    def seen(self, run: Pass, group: Group, queries: int) -> tuple[np.ndarray | None, int | None]:
        """What is added to some texts' scores, and the window; of answers' rows in the mask, too.

        The mask is (b or 1, A or 1, t or 1, t).
        """
        (texts, _, tokens), bias, window = group, run.bias, self.window
        if queries == tokens:
            return None if bias is None else bias[None, :, :tokens, :tokens], window
        if bias is not None:
            bias = bias[:, run.positions[texts], :tokens].swapaxes(0, 1)[:, :, None]
        if window is None:
            return bias, None
        rows = run.positions[texts, None, None, None]
        return near_mask(rows, np.arange(tokens), window, bias), None

    def turn(self, x: np.ndarray, run: Pass, way: float) -> None:
        """Turn queries or keys, (L, H), by their positions, where a layer has any; -1: back."""
        if not self.is_turned:
            return
        cosine, sine = run.rotary[self.window is not None]  # (T, D / 2)
        for group in run.groups:
            places: slice | np.ndarray = slice(group[2])
            if len(x) < run.rows:
                places = run.positions[group[0], None]  # (b, 1)
            angles = cosine[places], np.float32(way) * sine[places]
            self.layer.rotary.turn(run.of(group, x), *angles)

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
        run, tape, attention = self.values.run, self.values.tape, self.placed.layer.attention
        take = self.placed.layer.bench.rooms.take
        found = {name: take(f"{name}_g", tape[name].shape) for name in "kv"}
        views = [[run.of(group, tape[name]) for name in HEADS] for group in run.groups]
        seen = [
            self.placed.seen(run, group, q.shape[1])
            for group, (q, _, _) in zip(run.groups, views, strict=True)
        ]
        is_in_parts = any(
            attention.parted(q, k, window) is not None
            for (q, k, _), (_, window) in zip(views, seen, strict=True)
        )
        found["q"] = tape["q"] if is_in_parts else take("q_g", tape["q"].shape)
        g = self.take("context")
        for group, (q, k, v), (mask, window) in zip(run.groups, views, seen, strict=True):
            dq, dk, dv = (run.of(group, found[name]) for name in HEADS)
            attention.backward(q, k, v, mask, run.of(group, g), (dq, dk, dv), window)
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


def compacted(x: np.ndarray, run: Pass, texts: np.ndarray) -> np.ndarray:
    """The states of some texts of a pass, (N, H), moved to the front of where all were."""
    each, end = run.each(x), 0
    for text in texts:
        start, end = end, end + len(each[text])
        x[start:end] = each[text]
    return x[:end]

"""One encoder layer forward and back, operator by operator, over frozen, mapped weights.

The same cut and the same mathematics as `engine.torch_backend.layers`: a layer goes from the sum
before the layer below's last normalization to its own such sum. A tape keeps what is dear to
recompute (queries, keys, values, the sums before normalization and activation); what is cheap
(normalized states, activations) is recomputed in backward.

Buffers are reused as soon as their contents are dead: in backward `active` holds the gradient
that comes out of the feed-forward's last linear, `m` that of the sum between, `h` attention's.
`edge_client.planning.onnx_memory` counts these rooms.

Sizes: B texts, T tokens, N = B * T rows, H hidden, F intermediate. All arrays are float32.
"""

from dataclasses import dataclass, replace

import numpy as np

from edge_client.engine.onnx_backend.bench import Bench, Rooms
from edge_client.engine.onnx_backend.operators import (
    Activation,
    Attention,
    Gradients,
    Linear,
    Norm,
)


@dataclass(frozen=True)
class Pass:
    """One micro-batch on its way through the layers.

    Attributes:
        ids: Token ids, (B, T - P) with P soft prompt tokens.
        tokens: T.
        mask: Added to the scores, (B, 1, 1, T); None where no token is padding.
        answers: Rows of the states that the top layer goes on with, one of each text, (B,); None:
            all rows.
        places: Rows of the top layer's states that the head reads, (answers,); None: all it has.
        is_quick: Whether int8 weights are multiplied in int8; for inference alone.
        segments: See `Batch`; read before the first layer.
    """

    ids: np.ndarray
    tokens: int
    mask: np.ndarray | None
    answers: np.ndarray | None
    places: np.ndarray | None = None
    is_quick: bool = False
    segments: np.ndarray | None = None

    @property
    def texts(self) -> int:
        return len(self.ids)  # B

    @property
    def rows(self) -> int:
        return self.texts * self.tokens  # N

    def some(self, rows: np.ndarray) -> "Pass":
        """The pass of some of its texts, whose states lie one behind the other."""
        assert self.answers is not None, "texts of several answers go all the way"
        positions = self.answers[rows] - self.tokens * rows
        answers = positions + self.tokens * np.arange(len(rows))
        mask = None if self.mask is None else self.mask[rows]
        return replace(self, ids=self.ids[rows], mask=mask, answers=answers)

    def read(self, x: np.ndarray) -> np.ndarray:
        """What the head reads of the top layer's states."""
        return x if self.places is None else x[self.places]

    def unread(self, g: np.ndarray, rooms: Rooms) -> np.ndarray:
        """A gradient at what the head reads, at the top layer's states; no row is read twice."""
        if self.places is None:
            return g
        whole = rooms.take("asked", (self.rows, g.shape[1]))
        whole.fill(0.0)
        whole[self.places] = g
        return whole

    def by_text(self, x: np.ndarray) -> np.ndarray:
        """A view with one row of states per text: (N, H) -> (B, T, H), (B, H) -> (B, 1, H)."""
        return x.reshape(self.texts, -1, x.shape[1])


@dataclass(frozen=True)
class Tape:
    """What backward needs of a layer's forward, beside its input; L late rows are N, or B on top.

    Attributes:
        q: Queries, (L, H).
        k: Keys, (N, H).
        v: Values, (N, H).
        context: Attention's result, (L, H).
        middle: The sum before the normalization between, (L, H).
        inner: What the activation gets, (L, F).
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    context: np.ndarray
    middle: np.ndarray
    inner: np.ndarray


@dataclass(frozen=True)
class Layer:
    """One encoder layer.

    Attributes:
        linears: Linears by short name: q, k, v, o, up, down.
        attention_norm: Behind attention.
        output_norm: Behind the feed-forward; the layer above begins with it.
        activation: Inside the feed-forward.
        attention: Between them all.
        bench: Where work is done.
    """

    linears: dict[str, Linear]
    attention_norm: Norm
    output_norm: Norm
    activation: Activation
    attention: Attention
    bench: Bench

    def tape(self, run: Pass, is_top: bool, prefix: str) -> Tape:
        """Room for a tape; one of an empty prefix is overwritten by the next layer's."""
        late = run.texts if is_top else run.rows
        hidden, inner = self.linears["q"].matrix.shape[0], self.linears["up"].matrix.shape[0]
        take = self.bench.rooms.take
        # The context is recomputed from the others where nothing is learnt from it.
        whose = prefix if self.linears["o"].is_input_needed else ""
        return Tape(
            q=take(f"{prefix}q", (late, hidden)),
            k=take(f"{prefix}k", (run.rows, hidden)),
            v=take(f"{prefix}v", (run.rows, hidden)),
            context=take(f"{whose}context", (late, hidden)),
            middle=take(f"{prefix}middle", (late, hidden)),
            inner=take(f"{prefix}inner", (late, inner)),
        )

    def forward(
        self, below: Norm | None, x: np.ndarray, run: Pass, tape: Tape, out: np.ndarray | None
    ) -> None:
        """Fill the tape, and `out` with this layer's sum.

        Args:
            below: The normalization that comes first; None for the lowest layer.
            x: The sum below, (N, H).
            run: Mask and positions.
            tape: What `tape` gave.
            out: (N, H), or (B, H) of the top layer; None where nobody reads it, as when a layer is
                recomputed.
        """
        linears, take, quick = self.linears, self.bench.rooms.take, run.is_quick
        h, late = self._entry(below, x, run, tape)  # (N, H), (L, H)
        linears["k"].forward(h, tape.k, is_quick=quick)
        linears["v"].forward(h, tape.v, is_quick=quick)
        linears["q"].forward(late, tape.q, is_quick=quick)
        q, k, v, context = map(run.by_text, (tape.q, tape.k, tape.v, tape.context))
        self.attention.forward(q, k, v, run.mask, context)
        linears["o"].forward(tape.context, tape.middle, late, quick)
        m = self.attention_norm.forward(tape.middle, take("m", tape.middle.shape))  # (L, H)
        linears["up"].forward(m, tape.inner, is_quick=quick)
        if out is not None:
            a = self.activation.forward(tape.inner, take("active", tape.inner.shape))  # (L, F)
            linears["down"].forward(a, out, m, quick)

    def _entry(
        self, below: Norm | None, x: np.ndarray, run: Pass, tape: Tape
    ) -> tuple[np.ndarray, np.ndarray]:
        """The normalized states, and those of them that go on after keys and values."""
        h = x if below is None else below.forward(x, self.bench.rooms.take("h", x.shape))
        is_short = run.answers is not None and len(tape.q) < len(x)
        return h, h[run.answers] if is_short else h

    def backward(
        self,
        below: Norm | None,
        x: np.ndarray,
        run: Pass,
        tape: Tape,
        g: np.ndarray,
        is_input_needed: bool,
        into: Gradients,
    ) -> np.ndarray | None:
        """Add what the layer's adapter gets of the gradient at the layer's sum.

        Args:
            below: See `forward`.
            x: The sum below, (N, H).
            run: Mask and positions.
            tape: Filled by `forward`.
            g: (N, H), or (B, H) of the top layer.
            is_input_needed: Whether something below is trained too.
            into: Takes the gradients.

        Returns:
            The gradient at `x`, in a room that the next layer's backward leaves alone until it has
            read it; None if nobody needs it.
        """
        middle_g = self._feed_forward_back(tape, g, into)  # (L, H)
        linears, take = self.linears, self.bench.rooms.take
        linears["o"].gradients(tape.context, middle_g, into)
        context_g = linears["o"].backward(middle_g, take("h", middle_g.shape))  # (L, H)
        q_g, k_g, v_g = (take(f"{name}_g", getattr(tape, name).shape) for name in "qkv")
        q, k, v, by_text = (run.by_text(a) for a in (tape.q, tape.k, tape.v, context_g))
        self.attention.backward(
            q, k, v, run.mask, by_text, (run.by_text(q_g), run.by_text(k_g), run.by_text(v_g))
        )
        is_seen = any(linears[name].is_input_needed for name in "qkv")
        h, late = self._entry(below, x, run, tape) if is_seen else (None, None)
        for name, entry, gradient in (("q", late, q_g), ("k", h, k_g), ("v", h, v_g)):
            linears[name].gradients(entry, gradient, into)
        if not is_input_needed and not (below is not None and below.is_bias_trained):
            return None
        h_g = self._entry_back(run, middle_g, q_g, k_g, v_g)  # (N, H)
        if below is None:
            return h_g
        below.gradients(h_g, into)
        return below.backward(x, h_g, h_g)

    def _feed_forward_back(self, tape: Tape, g: np.ndarray, into: Gradients) -> np.ndarray:
        """The gradient at the sum before the normalization between."""
        linears, take = self.linears, self.bench.rooms.take
        a = m = None
        if linears["down"].is_input_needed:
            a = self.activation.forward(tape.inner, take("active", tape.inner.shape))
        if linears["up"].is_input_needed:
            m = self.attention_norm.forward(tape.middle, take("m", tape.middle.shape))
        linears["down"].gradients(a, g, into)
        inner_g = linears["down"].backward(g, take("active", tape.inner.shape))  # (L, F)
        self.activation.backward(tape.inner, inner_g)
        linears["up"].gradients(m, inner_g, into)
        m_g = linears["up"].backward(inner_g, take("m", g.shape), rest=g)  # (L, H)
        self.attention_norm.gradients(m_g, into)
        return self.attention_norm.backward(tape.middle, m_g, m_g)

    def _entry_back(
        self,
        run: Pass,
        middle_g: np.ndarray,
        q_g: np.ndarray,
        k_g: np.ndarray,
        v_g: np.ndarray,
    ) -> np.ndarray:
        """The gradient at the normalized states: through queries, keys, values and past them."""
        linears, take = self.linears, self.bench.rooms.take
        first, second = take("h_g", k_g.shape), take("h", k_g.shape)  # (N, H)
        is_short = len(q_g) < len(k_g)
        late = take("late_g", q_g.shape) if is_short else first  # (L, H)
        linears["q"].backward(q_g, late, rest=middle_g)
        linears["k"].backward(k_g, second, rest=None if is_short else first)
        linears["v"].backward(v_g, first, rest=second)
        if is_short:
            first[run.answers] += late  # no row twice
        return first


def compacted(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The states of some texts, (N, H), moved to the front of where all were."""
    for place, row in enumerate(rows):
        x[place] = x[row]
    return x[: len(rows)].reshape(-1, x.shape[2])

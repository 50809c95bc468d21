"""A feed-forward some inner columns at a time, forward and backward.

What lies inside is several times as wide as a state. Here it never lies together: each part is made
of some rows of the first linears, goes through some columns of the last, and is added to the sum;
on the way back it is made again. Each weight is dense at one place of the computation at a time.

Sizes: N rows, H hidden, F intermediate, W columns inside of a part.
"""

from dataclasses import dataclass

import numpy as np

from smidgen.edge_client.bases import architectures as ops
from smidgen.edge_client.engine.onnx_backend.operators import Activation, Gradients, Linear
from smidgen.edge_client.engine.onnx_backend.workspace import Bench
from smidgen.edge_client.planning.layer_cost import inner_parts


@dataclass(frozen=True)
class FeedForward:
    """A layer's feed-forward.

    Attributes:
        op: What is to be done.
        linears: The layer's, by short name.
        activation: Inside.
        bench: Where work is done.
    """

    op: ops.FeedForward
    linears: dict[str, Linear]
    activation: Activation
    bench: Bench

    def forward(self, x: np.ndarray, out: np.ndarray, rest: np.ndarray | None) -> np.ndarray:
        """From `x` (N, H) into `out` (N, H), which is given back; `rest` is added.

        `out` may not lie where `x` does.
        """
        for part in self._parts:
            inside = {name: linear.forward(x, room) for name, linear, room in self._inside(x, part)}
            self._last.some_columns(part).forward(self._active(inside), out, rest)
            rest = out
        self._last.matrix.release()
        return out

    def backward(
        self,
        x: np.ndarray,
        g: np.ndarray,
        out: np.ndarray | None,
        rest: np.ndarray | None,
        into: Gradients,
    ) -> None:
        """Add the adapter's gradients, and write the gradient at `x`, + rest, where it is needed.

        Args:
            x: The input, (N, H).
            g: The gradient at the result, (N, H).
            out: Takes the input's, (N, H), or None; may not lie where another argument does.
            rest: Added to the input's, (N, H), or None; may be `g`.
            into: Takes the adapter's.
        """
        for part in self._parts:
            first = self._inside(x, part)
            inside = {name: linear.forward(x, room) for name, linear, room in first}
            last = self._last.some_columns(part)
            last.gradients(self._active(inside) if last.is_input_needed else None, g, into)
            self._active_back(inside, last.backward(g, self._room("active_g", x, part)))
            for name, linear, _ in first:
                linear.gradients(x, inside[name], into)
                if out is not None:
                    rest = linear.backward(inside[name], out, rest)
        self._last.matrix.release()

    @property
    def _last(self) -> Linear:
        return self.linears[self.op.last.names[0]]

    @property
    def _parts(self) -> list[slice]:
        return inner_parts(*self._last.matrix.shape)

    def _inside(self, x: np.ndarray, part: slice) -> list[tuple[str, Linear, np.ndarray]]:
        """Some rows of the first linears, and room for what they give, (N, W), by register."""
        named = zip(self.op.inner.results, self.op.inner.names, strict=True)
        return [
            (result, self.linears[name].some_rows(part), self._room(result, x, part))
            for result, name in named
        ]

    def _active(self, inside: dict[str, np.ndarray]) -> np.ndarray:
        active = self.op.active
        x = inside[active.of]
        out = self.bench.rooms.take(active.into, x.shape)
        if isinstance(active, ops.Gate):
            return self.activation.gate(x, inside[active.by], out)
        return self.activation.forward(x, out)

    def _active_back(self, inside: dict[str, np.ndarray], g: np.ndarray) -> None:
        """Write the gradients at what the first linears gave where these lie; `g` is used up."""
        active = self.op.active
        if isinstance(active, ops.Gate):
            self.activation.gate_back(inside[active.of], inside[active.by], g)
        else:
            inside[active.of] = self.activation.backward(inside[active.of], g)

    def _room(self, name: str, x: np.ndarray, part: slice) -> np.ndarray:
        return self.bench.rooms.take(name, (len(x), part.stop - part.start))

"""`Backend`: the interface below the engine, for torch, ONNX Runtime and full fine-tuning.

`ExitMonitor`: what a backend shows states to between layers, and stops texts by (early exit).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from smidgen.edge_client.engine.frozen_layers_cache import FrozenPrefix
from smidgen.edge_client.guest.steps import Moments
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState

# Texts, is_quick -> log-probabilities.
AnswerTexts = Callable[[Sequence[Example], bool], np.ndarray]


def by_rule(
    correction: Correction | None,
    batch: Batch,
    compute: Callable[[Batch], tuple[float, AdapterState]],
    at: Mapping[str, np.ndarray],
) -> tuple[float, AdapterState]:
    """A batch's mean loss in nats and its gradients, text by text where a correction asks so.

    Args:
        correction: Of the training.
        batch: Its texts.
        compute: Gives them of a batch; the arrays may be used again.
        at: The adapter that they are taken at.
    """
    if correction is None or correction.rule is None:
        return compute(batch)
    texts = len(batch.ids)
    return correction.rule.gradients(texts, lambda text: compute(batch.some([text])), dict(at))


class ExitMonitor(Protocol):
    """Sees the answers' states after chosen layers and says which texts are done."""

    @property
    def layers(self) -> Collection[int]:
        """The layers after which states are shown, from 1 to all but the last."""

    def see(self, layer: int, rows: Sequence[int], states: np.ndarray) -> np.ndarray:
        """Which texts need no further layers, bool, (rows,).

        Args:
            layer: Layers that are behind these texts.
            rows: Which texts they are.
            states: The answer token's state after that layer's output norm, float32,
                (rows, hidden).
        """


class BatchWatch:
    """A watch over one batch; it translates the batch's rows to the caller's.

    Args:
        watch: The watch that is asked.
        names: Names of the batch's rows, in order.
    """

    def __init__(self, watch: ExitMonitor, names: Sequence[int]) -> None:
        self._watch, self._names = watch, names

    @property
    def layers(self) -> Collection[int]:
        return self._watch.layers

    def see(self, layer: int, rows: Sequence[int], states: np.ndarray) -> np.ndarray:
        return self._watch.see(layer, [self._names[row] for row in rows], states)


def first_rows(lengths: np.ndarray) -> np.ndarray:
    """Each text's first row, (B,), of texts that lie one behind the other."""
    rows: np.ndarray = np.cumsum(lengths) - lengths
    return rows


def mean_states(states: np.ndarray, batch: Batch) -> np.ndarray:
    """Each text's mean, (B, 1, H), of its tokens' states, float32, (N, H)."""
    lengths = batch.attention.sum(axis=1)
    sums = np.add.reduceat(states, first_rows(lengths))  # (B, H)
    means: np.ndarray = (sums / lengths[:, None].astype(np.float32))[:, None]
    return means


def state_sums(states: np.ndarray) -> tuple[float, float]:
    """The sum of states' numbers and of their squares."""
    wide = states.astype(np.float64)
    return float(wide.sum()), float(np.square(wide).sum())


def going_on(watch: ExitMonitor, layer: int, rows: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Positions in `rows` of the texts that continue, ascending."""
    return np.flatnonzero(~watch.see(layer, rows.tolist(), states))


BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8  # of every AdamW here; torch.optim.AdamW's defaults


class Optimizer(Protocol):
    """What moves an adapter's numbers by their gradients."""

    def moments(self) -> Moments:
        """Its state itself, which the next step changes; of a card's, a copy."""

    def load(self, moments: Moments) -> None:
        """Go on from there; the adapter of that moment is loaded before.

        Law: after `load_adapter(adapter)` and `load(moments)`, both taken between two steps, every
        further step gives the same bytes.

        Raises:
            WireError: Names or shapes are not this adapter's.
        """


class Backend(Protocol):
    """What computes with a base and one adapter; knows batches, not texts.

    Members without a docstring are those of `Engine`.

    Attributes:
        correction: Added to every gradient; None: nothing.
    """

    correction: Correction | None

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def layer_forwards(self) -> int: ...

    def use(self, plan: Plan, ceiling_bytes: int | None) -> None:
        """Read by a plan from now on; give freed memory back above so many resident bytes.

        To the kernel, inside steps. On a card: to its driver, after steps that leave more than that
        reserved.
        """

    def remember(self, prefix: FrozenPrefix | None) -> None:
        """Take the states at the cut from a prefix, in `step` and `read`; None: compute them."""

    def step(self, batch: Batch, plan: Plan) -> float:
        """One optimizer step on the adapter; the batch's mean loss in nats, before the step.

        A step that fails for want of memory, or that is cut because the process is to end, leaves
        adapter and optimizer as they were.
        """

    def gradients(self, batch: Batch, plan: Plan) -> tuple[float, AdapterState]:
        """The batch's mean loss in nats and copies of its gradients; nothing moves.

        Without a correction. Tensors below the plan's depth have zeros.
        """

    def put(self, state: Mapping[str, np.ndarray]) -> None: ...

    def read(
        self, batch: Batch, plan: Plan, watch: ExitMonitor | None, is_quick: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows that went all the way, ascending, and their log-probabilities, float32.

        Quick: in int8 where the backend can.
        """

    def judge(self, batch: Batch, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """Each answer's cross-entropy in nats, and whether it is the likeliest; both (answers,)."""

    def predict(self, examples: Sequence[Example], answer: AnswerTexts) -> np.ndarray:
        """The answers to a list of texts; which of them are read quickly is decided here."""

    def means(self, batch: Batch, layer: int, plan: Plan) -> np.ndarray:
        """Mean token states after a layer (0 = embeddings), float32, (B, 1, H)."""

    def sums(self, batch: Batch, plan: Plan) -> np.ndarray:
        """Of each layer's input the sum of its numbers and of their squares, (layers, 2).

        Over the texts' own tokens, padding and soft prompts apart; float64.
        """

    def adapter(self) -> AdapterState:
        """The numbers themselves, float32, which the next step changes; of a card's, a copy."""

    def load_adapter(self, state: Mapping[str, np.ndarray]) -> None: ...

    def rest(self) -> None:
        """Give back what only computing needs; the next step takes it again."""

    def close(self) -> None:
        """Free the model and the optimizer, and unmap the weights."""

"""What computes: the one protocol behind which torch and ONNX Runtime stand.

Numpy at the border, never torch tensors, so that no caller needs torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edge_client.engine.activation_cache import ActivationCache
from edge_client.engine.watch import Watch
from edge_client.errors import WrongInput
from edge_client.planning.plan import Plan
from edge_client.texts.batches import Batch, Encoder
from edge_client.texts.examples import Example
from edge_client.wire.tensors import AdapterState


class EngineError(WrongInput):
    """No engine can be had here for what is asked."""


@dataclass(frozen=True)
class StepReport:
    """One optimizer step.

    Attributes:
        loss: Mean cross-entropy over the batch, in nats, before the step.
        num_examples: Rows in the batch.
    """

    loss: float
    num_examples: int


class Engine(Protocol):
    """A frozen base with one trainable adapter, a task and an optimizer."""

    @property
    def encoder(self) -> Encoder:
        """How texts become batches."""

    @property
    def plan(self) -> Plan:
        """How a step is computed now."""

    @property
    def layers(self) -> int:
        """Layers of the base."""

    @property
    def layer_forwards(self) -> int:
        """Computed since the engine was opened: texts times layers.

        One text through one layer counts 1, computed again for backward 1 more, backward 2. Layers
        that need no backward have none; states that come from a cache cost nothing. The top layer
        counts as a whole one though only the answer goes all the way through it.
        """

    def use(self, plan: Plan, ceiling_bytes: int | None = None) -> None:
        """Compute the next steps by another plan; the adapter and the optimizer stay.

        Args:
            plan: How.
            ceiling_bytes: Resident bytes above which memory that was freed inside a step is given
                back to the kernel; None: it is not.
        """

    def train_step(self, batch: Batch) -> StepReport:
        """One AdamW step on the adapter; the base never changes.

        A step that fails for want of memory leaves adapter and optimizer as they were.
        """

    def predict(self, examples: Sequence[Example]) -> np.ndarray:
        """Log-probabilities, float32, shape (texts, labels); each row's exp sums to one.

        Of a task that is an ensemble, the answers of all its patterns, averaged.
        """

    def read(self, examples: Sequence[Example], watch: Watch | None = None) -> np.ndarray:
        """As `predict`, of the encoder's own pattern alone and never in int8.

        Args:
            examples: The texts.
            watch: Is shown the answers' states on the way, and lets texts go, whose rows are nan.
                With a cache, layers below the lowest trained one are not shown, but for what they
                give in the end.
        """

    def features(self, examples: Sequence[Example], layer: int) -> np.ndarray:
        """Mean token state after encoder layer `layer` (0 = embeddings), shape (texts, hidden)."""

    def remember(self, cache: ActivationCache | None) -> None:
        """Keep what the layers below the lowest trained one give, and read it from there.

        Whatever lies in the cache, results are the same: of the texts' states at the cut, and of
        features below it, as float16 holds them. Without a cache nothing is rounded.

        Args:
            cache: Of this base; None: nothing is kept.
        """

    def rest(self) -> None:
        """Give back what only computing needs; the next step takes it again."""

    def adapter(self) -> AdapterState:
        """A copy of the adapter, PEFT's own names, float32."""

    def load_adapter(self, state: AdapterState) -> None:
        """Put an adapter in place and start the optimizer afresh."""

    def close(self) -> None:
        """Free what the engine holds."""

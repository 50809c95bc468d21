"""The onnx backend: ONNX Runtime and numpy, for devices where torch is too large.

A training process loads neither torch nor transformers nor PEFT. Graphs are generated
(docs/decisions/006-graphs-from-code.md), so any pack and any plain folder works.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

import numpy as np

from smidgen.edge_client.adapters.spec import AdapterSpec
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.backend import (
    AnswerTexts,
    Backend,
    ExitMonitor,
    by_rule,
    mean_states,
    state_sums,
)
from smidgen.edge_client.engine.frozen_layers_cache import FrozenPrefix
from smidgen.edge_client.engine.onnx_backend.head import LOSSES
from smidgen.edge_client.engine.onnx_backend.network import Network
from smidgen.edge_client.engine.onnx_backend.optimizers import add_correction, open_optimizer
from smidgen.edge_client.engine.onnx_backend.quick_inference import QuickInference, is_worth
from smidgen.edge_client.guest.process import cuttable
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.planning.resources import flags_here, usable_cores
from smidgen.edge_client.tasks.kind import Loss
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState, check_same_parameters
from smidgen.edge_client.wire.training import Training


def threads() -> int:
    """OMP_NUM_THREADS where it is set, as torch takes it too; else the processors we may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) else usable_cores()


class OnnxBackend:
    """See `smidgen.edge_client.engine.backend.Backend`.

    Args:
        network: The base with its adapter.
        training: The optimizer and its settings.
        quick: Decides which texts are read in int8.
    """

    def __init__(self, network: Network, training: Training, quick: QuickInference) -> None:
        self.network, self._training, self._quick = network, training, quick
        self.correction: Correction | None = None
        self._is_spilled = False
        self._start_optimizer()

    def _start_optimizer(self) -> None:
        self.optimizer = open_optimizer(self.network.adapter, self._training, self._is_spilled)

    @property
    def layer_forwards(self) -> int:
        return self.network.layer_forwards

    def use(self, plan: Plan, ceiling_bytes: int | None) -> None:
        self.network.use(plan)
        if plan.is_spilled != self._is_spilled:
            moved = open_optimizer(self.network.adapter, self._training, plan.is_spilled)
            moved.load(self.optimizer.moments())
            self.optimizer, self._is_spilled = moved, plan.is_spilled
        self.network.frozen.ceiling_bytes = ceiling_bytes

    def remember(self, prefix: FrozenPrefix | None) -> None:
        self.network.prefix = prefix

    def step(self, batch: Batch, plan: Plan) -> float:
        with cuttable():
            backward, held = partial(self.network.backward, plan=plan), self.network.adapter
            loss, gradients = by_rule(self.correction, batch, backward, held)
            add_correction(gradients, self.network.adapter, self.correction)
        self.optimizer.step(gradients)
        return loss

    def gradients(self, batch: Batch, plan: Plan) -> tuple[float, AdapterState]:
        with cuttable():
            loss, found = self.network.backward(batch, plan)
        for name, tensor in self.network.adapter.items():
            found.setdefault(name, np.zeros_like(tensor))
        return loss, found

    def read(
        self, batch: Batch, plan: Plan, watch: ExitMonitor | None, is_quick: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows that went all the way, and their log-probabilities; always float32 or int8."""
        with cuttable():
            left, logits = self.network.read(batch, is_quick, watch)
        found = LOSSES[self.network.loss].log_probabilities
        return left, found(logits) if len(left) else logits

    def judge(self, batch: Batch, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        with cuttable():
            return self.network.judge(batch)

    def predict(self, examples: Sequence[Example], answer: AnswerTexts) -> np.ndarray:
        return self._quick.predict(examples, answer)

    def means(self, batch: Batch, layer: int, plan: Plan) -> np.ndarray:
        return mean_states(next(islice(self.network.states(batch), layer, None)), batch)

    def sums(self, batch: Batch, plan: Plan) -> np.ndarray:
        with cuttable():
            below = islice(self.network.states(batch), self.network.shape.layers)
            return np.array([state_sums(states) for states in below])

    def adapter(self) -> AdapterState:
        return dict(self.network.adapter)

    def load_adapter(self, state: Mapping[str, np.ndarray]) -> None:
        """Put an adapter in place and start the optimizer afresh.

        Raises:
            WireError: Names or shapes are not this adapter's.
        """
        self.put(state)
        self._start_optimizer()

    def put(self, state: Mapping[str, np.ndarray]) -> None:
        adapter = self.network.adapter
        check_same_parameters(state, {name: tensor.shape for name, tensor in adapter.items()})
        for name, tensor in adapter.items():
            np.copyto(tensor, np.asarray(state[name], np.float32))

    def rest(self) -> None:
        self.network.rest()

    def close(self) -> None:
        self.network.close()
        del self.network, self.optimizer


def open_backend(
    base: Base,
    spec: AdapterSpec,
    state: AdapterState,
    label_words: Sequence[Sequence[int]] | None,
    training: Training,
    loss: Loss = "softmax",
) -> Backend:
    """A backend with an adapter in place.

    Args:
        base: A pack or a plain folder of a masked language model.
        spec: The adapter.
        state: Its values.
        label_words: Token ids asked for at the mask; empty for a classifier; None: all words are.
        training: The optimizer and its settings.
        loss: See `tasks.kind.HeadSpec`.
    """
    network = open_network(base, spec, state, label_words, loss)
    return OnnxBackend(network, training, QuickInference(is_worth(base, flags_here())))


def open_network(
    base: Base,
    spec: AdapterSpec,
    state: AdapterState,
    label_words: Sequence[Sequence[int]] | None,
    loss: Loss = "softmax",
) -> Network:
    """What `open_backend` computes with, for whoever trains nothing."""
    return Network(base, spec, state, label_words, threads(), loss)

"""The torch backend: torch alone, over the memory-mapped weights of a pack or a plain folder.

transformers, PEFT and bitsandbytes are what its results are compared with, not what it loads:
importing them costs 120 MB, half of what a whole training step may take on a small device
(docs/decisions/004-own-layers.md). Dropout is off: a round is a pure function of its seed.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

import numpy as np
import torch

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
from smidgen.edge_client.engine.torch_backend.card import finish, give_back
from smidgen.edge_client.engine.torch_backend.head import log_probabilities
from smidgen.edge_client.engine.torch_backend.network import Network
from smidgen.edge_client.engine.torch_backend.optimizers import add_correction, open_optimizer
from smidgen.edge_client.guest.process import cuttable
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.tasks.kind import Loss
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState, check_same_parameters
from smidgen.edge_client.wire.training import Training


class TorchBackend:
    """See `smidgen.edge_client.engine.backend.Backend`.

    Args:
        network: The base with its adapter.
        training: The optimizer and its settings.
    """

    def __init__(self, network: Network, training: Training) -> None:
        self.network, self._training = network, training
        self._is_on_card = network.device.type != CPU
        self._ceiling_bytes: int | None = None  # of the card
        self.correction: Correction | None = None
        self._reference = {name: tensor.shape for name, tensor in network.adapter.items()}
        self._start_optimizer()

    def _start_optimizer(self) -> None:
        self.optimizer = open_optimizer(self.network.adapter, self._training)

    @property
    def layer_forwards(self) -> int:
        return self.network.layer_forwards

    def use(self, plan: Plan, ceiling_bytes: int | None) -> None:
        if self._is_on_card:
            self._ceiling_bytes = ceiling_bytes
        else:
            self.network.frozen.ceiling_bytes = ceiling_bytes

    def remember(self, prefix: FrozenPrefix | None) -> None:
        self.network.prefix = prefix

    def step(self, batch: Batch, plan: Plan) -> float:
        """See `Backend`; what is cut leaves gradients behind, which the next step drops."""
        self.network.stream(plan.is_streamed)
        for tensor in self.network.adapter.values():
            tensor.grad = None
        with cuttable():
            if self.correction is None or self.correction.rule is None:
                loss = self.network.backward(batch, plan)
            else:
                compute, held = partial(self._of, plan=plan), self.adapter()
                loss, found = by_rule(self.correction, batch, compute, held)
                for name, given in found.items():
                    tensor = self.network.adapter[name]
                    tensor.grad = torch.from_numpy(given).to(tensor.device, tensor.dtype)
            add_correction(self.network.adapter, self.correction)
        self.optimizer.step()
        if self._is_on_card:
            finish(self._ceiling_bytes)  # a step is over when it is computed
        return loss

    def gradients(self, batch: Batch, plan: Plan) -> tuple[float, AdapterState]:
        """See `Backend`; the tensors' own gradients are dropped again."""
        self.network.stream(plan.is_streamed)
        tensors = self.network.adapter
        for tensor in tensors.values():
            tensor.grad = None
        with cuttable():
            loss, found = self._of(batch, plan)
        for name, tensor in tensors.items():
            found.setdefault(name, np.zeros(tensor.shape, np.float32))
        return loss, found

    def _of(self, batch: Batch, plan: Plan) -> tuple[float, AdapterState]:
        """Loss and gradients that there are, copied; the tensors' own are dropped again."""
        loss, tensors = self.network.backward(batch, plan), self.network.adapter
        found = {
            name: tensor.grad.float().cpu().numpy().copy()
            for name, tensor in tensors.items()
            if tensor.grad is not None
        }
        for tensor in tensors.values():
            tensor.grad = None
        return loss, found

    def read(
        self, batch: Batch, plan: Plan, watch: ExitMonitor | None, is_quick: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows that passed all layers, and their log-probabilities; never in int8."""
        self.network.stream(plan.is_streamed)
        with cuttable():
            left, logits = self.network.read(batch, plan.dtype, watch)
        return left, log_probabilities(logits, self.network.loss).cpu().numpy()

    def judge(self, batch: Batch, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        self.network.stream(plan.is_streamed)
        with cuttable():
            return self.network.judge(batch, plan.dtype)

    def predict(self, examples: Sequence[Example], answer: AnswerTexts) -> np.ndarray:
        return answer(examples, False)

    def means(self, batch: Batch, layer: int, plan: Plan) -> np.ndarray:
        self.network.stream(plan.is_streamed)
        states = next(islice(self.network.states(batch, plan.dtype), layer, None))
        return mean_states(states.float().cpu().numpy(), batch)

    def sums(self, batch: Batch, plan: Plan) -> np.ndarray:
        self.network.stream(plan.is_streamed)
        with cuttable():
            below = islice(self.network.states(batch, plan.dtype), self.network.shape.layers)
            return np.array([state_sums(states.float().cpu().numpy()) for states in below])

    def adapter(self) -> AdapterState:
        tensors = self.network.adapter.items()
        return {name: tensor.detach().cpu().numpy() for name, tensor in tensors}

    def load_adapter(self, state: Mapping[str, np.ndarray]) -> None:
        """Put an adapter in place and start the optimizer afresh.

        Raises:
            WireError: Names or shapes are not this adapter's.
        """
        self.put(state)
        self._start_optimizer()

    @torch.no_grad()
    def put(self, state: Mapping[str, np.ndarray]) -> None:
        check_same_parameters(state, self._reference)
        for name, tensor in self.network.adapter.items():
            tensor.copy_(torch.from_numpy(np.asarray(state[name], np.float32)))

    def rest(self) -> None:
        self.network.rest()
        if self._is_on_card:
            give_back()

    def close(self) -> None:
        self.network.rest()
        self.network.close()
        del self.network, self.optimizer
        if self._is_on_card:
            give_back()


def open_backend(
    base: Base,
    spec: AdapterSpec,
    state: AdapterState,
    label_words: Sequence[Sequence[int]] | None,
    training: Training,
    device: str = CPU,
    loss: Loss = "softmax",
) -> Backend:
    """A backend with an adapter in place.

    Args:
        base: A pack or a plain folder of a masked language model.
        spec: The adapter.
        state: Its values.
        label_words: Token ids asked for at the mask; empty for a classifier; None: all words are.
        training: The optimizer and its settings.
        device: Computed on: `cpu` or `cuda`.
        loss: See `tasks.kind.HeadSpec`.
    """
    return TorchBackend(Network(base, spec, state, label_words, device, loss), training)

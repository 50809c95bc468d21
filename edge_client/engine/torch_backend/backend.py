"""The torch engine: torch and nothing else, over a pack's (or a plain folder's) mapped weights.

transformers, PEFT and bitsandbytes are what its results are compared with, not what it loads:
importing them costs 120 MB, half of what a whole training step may take on a small device
(docs/decisions/004-own-layers.md). Dropout is off: a round is a pure function of its seed.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np
import torch

from edge_client.adapters.initial import initial_adapter
from edge_client.adapters.spec import AdapterSpec
from edge_client.bases.base import Base
from edge_client.engine.activation_cache import ActivationCache
from edge_client.engine.engine import StepReport
from edge_client.engine.ensemble import averaged
from edge_client.engine.frozen_prefix import open_prefix
from edge_client.engine.torch_backend.adamw import AdamW
from edge_client.engine.torch_backend.network import Network
from edge_client.engine.watch import BatchWatch, Watch
from edge_client.planning.plan import Plan
from edge_client.texts.batches import Batch, Encoder
from edge_client.texts.examples import Example
from edge_client.texts.tasks import Task
from edge_client.texts.tokens import Tokens
from edge_client.wire.messages import Training
from edge_client.wire.tensors import AdapterState, check_same_parameters


class TorchEngine:
    """See `edge_client.engine.engine.Engine`.

    Args:
        base: A pack or a plain folder of a masked language model.
        task: Labels and patterns.
        spec: Adapter.
        training: Learning rate and longest input.
        plan: How a step is computed; `use` changes it.
        device: `cpu` or a CUDA device.

    Raises:
        TaskError: A label word is unknown to this base's tokenizer, or a pattern too long.
        AdapterError: No adapter of this kind is known for the base's architecture.
    """

    def __init__(
        self,
        base: Base,
        task: Task,
        spec: AdapterSpec,
        training: Training,
        plan: Plan,
        device: str = "cpu",
    ) -> None:
        tokens = Tokens(base.folder)
        limit = min(training.tokens, base.shape.positions - spec.prompt_tokens)
        self._encoder = Encoder(tokens, task, not spec.head, limit, spec.prompt_tokens)
        self._training, self._plan = training, plan
        state = initial_adapter(spec, base, len(task.labels), seed=0)
        words = [] if spec.head else tokens.label_word_ids(task)
        self._network = Network(base, spec, state, words, device)
        self._reference = {name: tensor.shape for name, tensor in state.items()}
        self._optimizer = AdamW(self._network.adapter, training.lr, training.weight_decay)

    @property
    def encoder(self) -> Encoder:
        """How texts become batches."""
        return self._encoder

    @property
    def plan(self) -> Plan:
        """How a step is computed now."""
        return self._plan

    @property
    def layers(self) -> int:
        """Layers of the base."""
        return self._network.shape.layers

    @property
    def layer_forwards(self) -> int:
        """Texts times layers computed since the engine was opened; see `Engine`."""
        return self._network.layer_forwards

    def use(self, plan: Plan, ceiling_bytes: int | None = None) -> None:
        """Compute the next steps by another plan; the adapter and the optimizer stay."""
        self._plan, self._network.frozen.ceiling_bytes = plan, ceiling_bytes

    def train_step(self, batch: Batch) -> StepReport:
        """One AdamW step on the adapter; the base never changes.

        A step that fails for want of memory leaves adapter and optimizer as they were.
        """
        for tensor in self._network.adapter.values():
            tensor.grad = None
        loss = self._network.backward(batch, self._plan)
        self._optimizer.step()
        return StepReport(loss, len(batch.labels))

    def predict(self, examples: Sequence[Example]) -> np.ndarray:
        """Log-probabilities, float32, shape (texts, labels); each row's exp sums to one."""
        return averaged([self._ask(view, examples) for view in self._encoder.views()])

    def read(self, examples: Sequence[Example], watch: Watch | None = None) -> np.ndarray:
        """As `predict`, of the encoder's own pattern alone; see `Engine`."""
        return self._ask(self._encoder, examples, watch)

    def _ask(
        self, view: Encoder, examples: Sequence[Example], watch: Watch | None = None
    ) -> np.ndarray:
        rows = np.full((len(examples), len(view.task.labels)), np.nan, np.float32)
        for chosen, batch in self._batches(examples, view):
            seen = None if watch is None else BatchWatch(watch, chosen)
            left, logits = self._network.read(batch, self._plan.dtype, seen)
            if len(left):
                found = torch.log_softmax(logits, dim=-1).cpu().numpy()
                rows[np.array(chosen)[left]] = found
        return rows

    def features(self, examples: Sequence[Example], layer: int) -> np.ndarray:
        """Mean token state after encoder layer `layer` (0 = embeddings), shape (texts, hidden)."""
        rows = np.zeros((len(examples), self._network.shape.hidden), np.float32)
        for chosen, batch in self._batches(examples, self._encoder):
            prefix, out = self._network.prefix, rows[chosen][:, None]  # (B, 1, H)
            if prefix is not None and 0 < layer <= prefix.layers:
                prefix.means(batch, layer, self._plan.dtype, partial(self._means, layer), out)
            else:
                out[:] = self._means(layer, batch)
            rows[chosen] = out[:, 0]
        return rows

    def _means(self, layer: int, batch: Batch) -> np.ndarray:
        """Mean token states after a layer, (B, 1, H)."""
        every = self._network.states(batch, self._plan.dtype)
        states = next(islice(every, layer, None))
        prompt = self._network.spec.prompt_tokens
        weights = torch.from_numpy(batch.attention).to(states.device).unsqueeze(-1).float()
        sums = (states[:, prompt:].float() * weights).sum(1)
        return (sums / weights.sum(1)).unsqueeze(1).cpu().numpy()

    def _batches(
        self, examples: Sequence[Example], view: Encoder
    ) -> Iterator[tuple[list[int], Batch]]:
        return view.by_length(examples, self._plan.micro_batch, self._plan.tokens)

    def remember(self, cache: ActivationCache | None) -> None:
        """Keep what the layers below the lowest trained one give; None: no more."""
        network = self._network
        network.prefix = open_prefix(cache, network.spec, network.shape.layers)

    def rest(self) -> None:
        """Give back the room in which weights are made dense."""
        self._network.rest()

    def adapter(self) -> AdapterState:
        """A copy of the adapter, PEFT's own names, float32."""
        tensors = self._network.adapter.items()
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors}

    def load_adapter(self, state: AdapterState) -> None:
        """Put an adapter in place and start the optimizer afresh.

        Raises:
            WireError: Names or shapes are not this adapter's.
        """
        check_same_parameters(state, self._reference)
        with torch.no_grad():
            for name, tensor in self._network.adapter.items():
                tensor.copy_(torch.from_numpy(np.asarray(state[name], np.float32)))
        training = self._training
        self._optimizer = AdamW(self._network.adapter, training.lr, training.weight_decay)

    def close(self) -> None:
        """Free the model and the optimizer, and unmap the weights."""
        self._network.close()
        del self._network, self._optimizer

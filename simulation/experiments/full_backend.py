"""Full fine-tuning behind the engine's protocol: what adapters are compared with, never shipped.

transformers' own module with every weight trained, in float32, dropout off as everywhere here. Its
"adapter" is the whole model under its own parameter names, so federated full fine-tuning runs
through the same rounds and is charged the traffic it causes.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from edge_client.bases.base import Base
from edge_client.engine.activation_cache import ActivationCache
from edge_client.engine.engine import EngineError, StepReport
from edge_client.engine.ensemble import averaged
from edge_client.engine.opening import unplanned
from edge_client.engine.torch_backend.adamw import AdamW
from edge_client.engine.watch import Watch
from edge_client.planning.plan import Plan
from edge_client.texts.batches import Batch, Encoder
from edge_client.texts.examples import Example
from edge_client.texts.tasks import Task
from edge_client.texts.tokens import Tokens
from edge_client.wire.messages import Training
from edge_client.wire.tensors import AdapterState, check_same_parameters

ROWS = 32  # texts of full length at once in prediction


def check_trainable(base: Base) -> None:
    """Refuse what has no weights to train, or a head in pieces.

    Raises:
        EngineError: The base is a pack, or a DistilBERT.
    """
    if base.manifest is not None or base.architecture == "distilbert":
        raise EngineError(
            f"base {base.name}: full fine-tuning needs a plain folder of BERT, RoBERTa, XLM-R or "
            "ALBERT"
        )


class FullEngine:
    """See `edge_client.engine.engine.Engine`.

    Args:
        base: A Hugging Face folder; packs hold no weights to train.
        task: Labels and patterns.
        training: Learning rate and longest input.
        head: Whether a classification head is trained instead of asking by cloze.
        seed: Of the head's first weights.

    Raises:
        TaskError: A label word is unknown to this base's tokenizer, or a pattern too long.
        EngineError: The base is a pack, or a DistilBERT.
    """

    def __init__(self, base: Base, task: Task, training: Training, head: bool, seed: int) -> None:
        check_trainable(base)
        tokens = Tokens(base.folder)
        limit = min(training.tokens, base.shape.positions)
        self._encoder = Encoder(tokens, task, not head, limit)
        self._training, self._plan, self._head = training, unplanned(base.shape, training), head
        self._layers, self._layer_forwards = base.shape.layers, 0
        self._words = [] if head else tokens.label_word_ids(task)
        torch.manual_seed(seed)
        transformers_logging.disable_progress_bar()
        auto: Any = AutoModelForSequenceClassification if head else AutoModelForMaskedLM
        more = {"num_labels": len(task.labels)} if head else {}
        self._model = auto.from_pretrained(base.folder, dtype=torch.float32, **more).eval()
        self._tensors: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        self._fresh_optimizer()

    def _fresh_optimizer(self) -> None:
        self._optimizer = AdamW(self._tensors, self._training.lr, self._training.weight_decay)

    @property
    def encoder(self) -> Encoder:
        """How texts become batches."""
        return self._encoder

    @property
    def plan(self) -> Plan:
        """Float32, whole batches, nothing computed twice."""
        return self._plan

    @property
    def layers(self) -> int:
        """Layers of the base."""
        return self._layers

    @property
    def layer_forwards(self) -> int:
        """Texts times layers computed since the engine was opened; see `Engine`."""
        return self._layer_forwards

    def use(self, plan: Plan, ceiling_bytes: int | None = None) -> None:
        """Compute by another plan: there is only one here."""
        self._plan = plan

    def train_step(self, batch: Batch) -> StepReport:
        """One AdamW step on every weight."""
        for tensor in self._tensors.values():
            tensor.grad = None
        labels = torch.from_numpy(batch.labels)
        loss = torch.nn.functional.cross_entropy(self._logits(batch), labels)
        loss.backward()
        self._optimizer.step()
        self._layer_forwards += 2 * self._layers * len(labels)
        return StepReport(float(loss.detach()), len(batch.labels))

    def _logits(self, batch: Batch) -> torch.Tensor:
        """Label logits, (B, labels)."""
        self._layer_forwards += self._layers * len(batch.ids)
        ids, attention = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
        if self._head:
            logits: torch.Tensor = self._model(ids, attention).logits
            return logits
        # The head at the masks alone: at all places it is most of a small model's work.
        states = self._model.base_model(ids, attention)[0]  # (B, T, H)
        rows, places = torch.arange(len(ids)), torch.from_numpy(batch.mask_positions)
        answers: torch.Tensor = self._language_head()(states[rows, places])
        return torch.stack([answers[:, word].mean(dim=1) for word in self._words], dim=1)

    def _language_head(self) -> Any:
        """The module from token states to the vocabulary: what is not the encoder."""
        encoder = self._model.base_model_prefix
        [head] = [part for name, part in self._model.named_children() if name != encoder]
        return head

    def predict(self, examples: Sequence[Example]) -> np.ndarray:
        """Log-probabilities, float32, shape (texts, labels); each row's exp sums to one."""
        return averaged([self._ask(view, examples) for view in self._encoder.views()])

    @torch.no_grad()
    def _ask(self, view: Encoder, examples: Sequence[Example]) -> np.ndarray:
        rows = np.zeros((len(examples), len(view.task.labels)), np.float32)
        for chosen, batch in self._batches(examples, view):
            rows[chosen] = torch.log_softmax(self._logits(batch), dim=-1).numpy()
        return rows

    def read(self, examples: Sequence[Example], watch: Watch | None = None) -> np.ndarray:
        """As `predict`, of the encoder's own pattern alone.

        Raises:
            EngineError: A watch is given: no text leaves transformers' own module early.
        """
        if watch is not None:
            raise EngineError("full fine-tuning reads texts whole; early exit needs an adapter")
        return self._ask(self._encoder, examples)

    @torch.no_grad()
    def features(self, examples: Sequence[Example], layer: int) -> np.ndarray:
        """Mean token state after encoder layer `layer` (0 = embeddings), shape (texts, hidden)."""
        rows = np.zeros((len(examples), self._model.config.hidden_size), np.float32)
        for chosen, batch in self._batches(examples, self._encoder):
            ids, attention = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
            found = self._model.base_model(ids, attention, output_hidden_states=True)
            self._layer_forwards += self._layers * len(ids)
            weights = attention.unsqueeze(-1).float()
            mean = (found.hidden_states[layer] * weights).sum(1) / weights.sum(1)
            rows[chosen] = mean.numpy()
        return rows

    def _batches(
        self, examples: Sequence[Example], view: Encoder
    ) -> Iterator[tuple[list[int], Batch]]:
        return view.by_length(examples, ROWS, self._plan.tokens)

    def remember(self, cache: ActivationCache | None) -> None:
        """Nothing is kept, since every layer is trained."""

    def rest(self) -> None:
        """Nothing to give back."""

    def adapter(self) -> AdapterState:
        """A copy of every weight, float32."""
        return {name: tensor.detach().numpy().copy() for name, tensor in self._tensors.items()}

    def load_adapter(self, state: AdapterState) -> None:
        """Put weights in place and start the optimizer afresh.

        Raises:
            WireError: Names or shapes are not this model's.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        check_same_parameters(state, shapes)
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(torch.from_numpy(state[name]))
        self._fresh_optimizer()

    def close(self) -> None:
        """Free the model."""
        del self._model, self._tensors, self._optimizer

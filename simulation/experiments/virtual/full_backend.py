"""Full fine-tuning as a backend: the baseline for adapters, never shipped.

transformers' own module with every weight trained, in float32, dropout off as everywhere here. Its
"adapter" is the whole model under its own parameter names, so federated full fine-tuning runs
through the same rounds and is charged the traffic it causes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.utils import logging as transformers_logging

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.engine.backend import AnswerTexts, ExitMonitor
from smidgen.edge_client.engine.engine import Engine, EngineError
from smidgen.edge_client.engine.frozen_layers_cache import FrozenPrefix
from smidgen.edge_client.engine.opening import unplanned
from smidgen.edge_client.engine.torch_backend.head import judged, log_probabilities
from smidgen.edge_client.engine.torch_backend.optimizers import add_correction, open_optimizer
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState, check_same_parameters
from smidgen.edge_client.wire.training import Training

ROWS = 32  # texts of full length at once in prediction


def open_full(
    base: Base, task: Task, training: Training, has_head: bool, seed: int, device: str = CPU
) -> Engine:
    """An engine that trains every weight.

    Args:
        base: A Hugging Face folder; packs hold no weights to train.
        task: What is asked.
        training: The optimizer's settings and longest input.
        has_head: Whether a classification head is trained instead of asking by cloze; where
            nothing else answers it always is.
        seed: Draws the head's first weights.
        device: What it computes on: `cpu` or `cuda`.

    Raises:
        TaskError: A label word is unknown to this base's tokenizer, or a pattern too long.
        EngineError: The base is a pack, or a DistilBERT or ELECTRA.
    """
    check_trainable(base)
    tokens = Tokens(base.folder)
    encoder = Encoder(tokens, task, not has_head, min(training.tokens, base.shape.positions))
    head = kind_of(task).head(task)
    has_head = has_head or head.answers is None
    is_cloze = head.answers == "label words" and not has_head
    words = tokens.label_word_ids(task) if is_cloze else []
    backend = FullBackend(base, task, has_head, words, training, seed, device)
    plan = replace(unplanned(base.shape, training), micro_batch=ROWS)
    return Engine(backend, encoder, base.shape, plan, frozen_layers=0)


def check_trainable(base: Base) -> None:
    """Refuse what has no weights to train, or a head in pieces.

    Raises:
        EngineError: The base is a pack, or a DistilBERT.
    """
    if base.manifest is not None or base.is_gguf or not family_of(base.architecture).head:
        raise EngineError(
            f"base {base.name}: full fine-tuning needs a plain folder of BERT, RoBERTa, XLM-R, "
            "CamemBERT or ALBERT"
        )


class FullBackend:
    """See `smidgen.edge_client.engine.backend.Backend`; of a plan it reads nothing.

    Args:
        base: A Hugging Face folder.
        task: What is asked.
        has_head: Whether a classification head answers.
        label_words: Token ids asked for at the mask; empty: all words are, or the head is.
        training: The optimizer and its settings.
        seed: Draws the head's first weights.
        device: What it computes on: `cpu` or `cuda`.
    """

    def __init__(
        self,
        base: Base,
        task: Task,
        has_head: bool,
        label_words: Sequence[Sequence[int]],
        training: Training,
        seed: int,
        device: str = CPU,
    ) -> None:
        self._training, self._words, self._device = training, label_words, device
        self.correction: Correction | None = None
        self._layers, self.layer_forwards = base.shape.layers, 0
        self._head = family_of(base.architecture).head
        torch.manual_seed(seed)
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()  # a new head has no weights yet, as it should
        head = kind_of(task).head(task)
        self._is_of_words, self._has_head, self._loss = head.is_of_words, has_head, head.loss
        auto: Any = AutoModelForMaskedLM
        if has_head:
            is_of_words = self._is_of_words
            auto = (
                AutoModelForTokenClassification
                if is_of_words
                else AutoModelForSequenceClassification
            )
        more = {"num_labels": head.rows} if has_head else {}
        model = auto.from_pretrained(base.folder, dtype=torch.float32, **more)
        self._model = model.to(device).eval()
        self._tensors: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        self._start_optimizer()

    def _start_optimizer(self) -> None:
        self.optimizer = open_optimizer(self._tensors, self._training)

    def _there(self, array: np.ndarray) -> torch.Tensor:
        """An array where the weights are."""
        return torch.from_numpy(array).to(self._device)

    def use(self, plan: Plan, ceiling_bytes: int | None) -> None:
        """Nothing is given back inside a step."""

    def remember(self, prefix: FrozenPrefix | None) -> None:
        """Nothing is kept, since every layer is trained."""

    def step(self, batch: Batch, plan: Plan) -> float:
        """One optimizer step on every weight, the whole batch at once."""
        loss = self._backward(batch)
        add_correction(self._tensors, self.correction)
        self.optimizer.step()
        return loss

    def _backward(self, batch: Batch) -> float:
        """Leave the batch's gradients at the weights; its mean loss."""
        for tensor in self._tensors.values():
            tensor.grad = None
        labels = self._there(batch.labels)
        loss = judged(self._logits(batch), labels, self._loss)[0].mean()
        loss.backward()
        self.layer_forwards += 2 * self._layers * len(batch.ids)
        return float(loss.detach())

    def _logits(self, batch: Batch) -> torch.Tensor:
        """Logits of each answer, (answers, labels), or of all words, (answers, vocabulary)."""
        self.layer_forwards += self._layers * len(batch.ids)
        ids, attention = self._there(batch.ids), self._there(batch.attention)
        of = np.arange(len(ids)) if batch.texts is None else batch.texts
        rows, places = self._there(of), self._there(batch.mask_positions)
        if self._has_head:
            logits: torch.Tensor = self._model(ids, attention, **self._segments(batch)).logits
            return logits[rows, places] if self._is_of_words else logits
        # The head at the masks alone: at all places it is most of a small model's work.
        states = self._model.base_model(ids, attention, **self._segments(batch))[0]  # (B, T, H)
        answers: torch.Tensor = getattr(self._model, self._head)(states[rows, places])
        if not self._words:
            return answers
        return torch.stack([answers[:, word].mean(dim=1) for word in self._words], dim=1)

    def _segments(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Which text of a pair each token is of, where the model tells them apart."""
        if batch.segments is None or self._model.config.type_vocab_size == 1:
            return {}
        return {"token_type_ids": self._there(batch.segments)}

    def gradients(self, batch: Batch, plan: Plan) -> tuple[float, AdapterState]:
        """As many numbers as the model has; zero where the batch moves nothing."""
        loss = self._backward(batch)
        return loss, {
            name: np.zeros(tuple(tensor.shape), np.float32)
            if tensor.grad is None
            else _here(tensor.grad)
            for name, tensor in self._tensors.items()
        }

    @torch.no_grad()
    def read(
        self, batch: Batch, plan: Plan, watch: ExitMonitor | None, is_quick: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """All rows and their log-probabilities.

        Raises:
            EngineError: A watch is given: no text leaves transformers' own module early.
        """
        if watch is not None:
            raise EngineError("full fine-tuning reads texts whole; early exit needs an adapter")
        found = _here(log_probabilities(self._logits(batch), self._loss))
        return np.arange(len(batch.ids)), found

    @torch.no_grad()
    def judge(self, batch: Batch, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        logits, labels = self._logits(batch), self._there(batch.labels)
        losses, is_right = judged(logits, labels, self._loss)
        return _here(losses), _here(is_right)

    def predict(self, examples: Sequence[Example], answer: AnswerTexts) -> np.ndarray:
        return answer(examples, False)

    @torch.no_grad()
    def means(self, batch: Batch, layer: int, plan: Plan) -> np.ndarray:
        ids, attention = self._there(batch.ids), self._there(batch.attention)
        more = self._segments(batch)
        found = self._model.base_model(ids, attention, output_hidden_states=True, **more)
        self.layer_forwards += self._layers * len(ids)
        weights = attention.unsqueeze(-1).float()
        mean: torch.Tensor = (found.hidden_states[layer] * weights).sum(1) / weights.sum(1)
        return _here(mean.unsqueeze(1))

    @torch.no_grad()
    def sums(self, batch: Batch, plan: Plan) -> np.ndarray:
        ids, attention = self._there(batch.ids), self._there(batch.attention)
        more = self._segments(batch)
        found = self._model.base_model(ids, attention, output_hidden_states=True, **more)
        self.layer_forwards += self._layers * len(ids)
        states = found.hidden_states[: self._layers]
        own = [one[attention == 1].double() for one in states]
        return np.array([[float(h.sum()), float(h.square().sum())] for h in own])

    def adapter(self) -> AdapterState:
        """Every weight itself, float32."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self._tensors.items()}

    def load_adapter(self, state: Mapping[str, np.ndarray]) -> None:
        """Put weights in place and start the optimizer afresh.

        Raises:
            WireError: Names or shapes are not this model's.
        """
        self.put(state)
        self._start_optimizer()

    @torch.no_grad()
    def put(self, state: Mapping[str, np.ndarray]) -> None:
        check_same_parameters(state, {name: tuple(t.shape) for name, t in self._tensors.items()})
        for name, tensor in self._tensors.items():
            tensor.copy_(torch.from_numpy(state[name]))

    def rest(self) -> None:
        """Nothing to give back."""

    def close(self) -> None:
        del self._model, self._tensors, self.optimizer


def _here(tensor: torch.Tensor) -> np.ndarray:
    """A copy that does not change when the model does."""
    return tensor.cpu().numpy().copy()

"""The torch engine: Hugging Face's own module, PEFT's own adapter, head only where it is asked.

The encoder's output is cut down to the mask positions before the language-model head sees it, and
the head's decoder to the rows of the label words, so no (batch, tokens, vocabulary) tensor is ever
made. Layers are checkpointed (recomputed in backward). Dropout is off: a round is a pure function
of its seed.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from peft import PeftModel, get_peft_config, get_peft_model
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from edge_client.adapters import AdapterSpec, initial_adapter
from edge_client.base import Base
from edge_client.engine import StepReport
from edge_client.peft_folder import peft_config
from edge_client.tasks import Task
from edge_client.texts import Example
from edge_client.tokens import Batch, Encoder, Tokens
from edge_client.wire import AdapterState, Training, check_same_parameters

PREDICT_BATCH = 32


class TorchEngine:
    """See `edge_client.engine.Engine`.

    Args:
        base: A BERT-family masked language model.
        task: Labels and patterns.
        spec: LoRA, soft prompt or classification head.
        training: Learning rate and longest input.

    Raises:
        TaskError: A label word is not one token of this base's tokenizer.
        AdapterError: No adapter of this kind is known for the base's architecture.
    """

    def __init__(self, base: Base, task: Task, spec: AdapterSpec, training: Training) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        tokens = Tokens(base.folder)
        self._training, self._prompt_tokens = training, spec.prompt_tokens
        config = AutoConfig.from_pretrained(base.folder, local_files_only=True)
        limit = min(training.tokens, _positions(config) - spec.prompt_tokens)
        self._encoder = Encoder(tokens, task, not spec.head, limit)
        self._answers = torch.zeros(1, dtype=torch.long)  # where the head reads, (batch,)
        model = self._open_model(base, spec, tokens, task)
        state = initial_adapter(spec, base, len(task.labels), seed=0)
        chosen = peft_config(spec, base.peft_name, base.architecture, state)
        chosen["inference_mode"] = False
        with warnings.catch_warnings():
            # PEFT 0.21 asks transformers 5.23 for a property by its former name.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            self._model: PeftModel = get_peft_model(model, get_peft_config(chosen))
        if model.supports_gradient_checkpointing:
            checkpoint_layers(model)
        self._reference = {name: tensor.shape for name, tensor in state.items()}
        self.load_adapter(state)

    def _open_model(
        self, base: Base, spec: AdapterSpec, tokens: Tokens, task: Task
    ) -> PreTrainedModel:
        options: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True}
        if spec.head:
            labels = len(task.labels)
            model = AutoModelForSequenceClassification.from_pretrained(
                base.folder, num_labels=labels, **options
            )
        else:
            model = AutoModelForMaskedLM.from_pretrained(base.folder, **options)
            keep_label_words(model, tokens.label_word_ids(task))
            model.base_model.register_forward_hook(self._keep_answers)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    def _keep_answers(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        hidden = output.last_hidden_state  # (B, T, H)
        rows = torch.arange(len(hidden), device=hidden.device)
        output.last_hidden_state = hidden[rows, self._answers].unsqueeze(1)  # (B, 1, H)
        return output

    @property
    def encoder(self) -> Encoder:
        """How texts become batches."""
        return self._encoder

    def _logits(self, batch: Batch, **options: Any) -> Any:
        self._answers = torch.from_numpy(batch.mask_positions) + self._prompt_tokens
        return self._model(
            input_ids=torch.from_numpy(batch.ids),
            attention_mask=torch.from_numpy(batch.attention),
            **options,
        )

    def train_step(self, batch: Batch) -> StepReport:
        """One AdamW step on the adapter; the base never changes."""
        self._model.train()
        logits = self._logits(batch).logits.reshape(len(batch.labels), -1)  # (B, labels)
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return StepReport(float(loss.detach()), len(batch.labels))

    @torch.inference_mode()
    def predict(self, examples: Sequence[Example]) -> np.ndarray:
        """Log-probabilities, float32, shape (texts, labels); each row's exp sums to one."""
        rows = np.zeros((len(examples), len(self._encoder.task.labels)), np.float32)
        for chosen, batch in self._by_length(examples):
            logits = self._logits(batch).logits.reshape(len(chosen), -1)
            rows[chosen] = torch.log_softmax(logits.float(), dim=-1).numpy()
        return rows

    @torch.inference_mode()
    def features(self, examples: Sequence[Example], layer: int) -> np.ndarray:
        """Mean token state after encoder layer `layer` (0 = embeddings), shape (texts, hidden)."""
        rows: list[np.ndarray | None] = [None] * len(examples)
        for chosen, batch in self._by_length(examples):
            states = self._logits(batch, output_hidden_states=True).hidden_states[layer]
            states = states[:, self._prompt_tokens :]  # (B, T, H)
            weights = torch.from_numpy(batch.attention).unsqueeze(-1).to(states.dtype)
            means = (states * weights).sum(1) / weights.sum(1)
            for row, mean in zip(chosen, means.float().numpy(), strict=True):
                rows[row] = mean
        return np.stack([row for row in rows if row is not None])

    def _by_length(self, examples: Sequence[Example]) -> Any:
        """Batches of texts of similar length, with the indices of their rows."""
        self._model.eval()
        prompts = self._encoder.prompts(examples)
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row].ids))
        for start in range(0, len(order), PREDICT_BATCH):
            chosen = order[start : start + PREDICT_BATCH]
            yield chosen, self._encoder.batch([prompts[row] for row in chosen], [-1] * len(chosen))

    def adapter(self) -> AdapterState:
        """A copy of the adapter, PEFT's own names, float32."""
        state = get_peft_model_state_dict(self._model, save_embedding_layers=False)
        return {name: tensor.detach().float().numpy().copy() for name, tensor in state.items()}

    def load_adapter(self, state: AdapterState) -> None:
        """Put an adapter in place and start the optimizer afresh.

        Raises:
            WireError: Names or shapes are not this adapter's.
        """
        check_same_parameters(state, self._reference)
        tensors = {name: torch.from_numpy(array.copy()) for name, array in state.items()}
        set_peft_model_state_dict(self._model, tensors)
        trained = [tensor for tensor in self._model.parameters() if tensor.requires_grad]
        lr, weight_decay = self._training.lr, self._training.weight_decay
        self._optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=weight_decay)

    def close(self) -> None:
        """Free the model and the optimizer."""
        del self._model, self._optimizer


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Keep only each layer's input for backward and recompute the rest."""
    # transformers 5.23 renamed it; the boards' pinned 5.17 has the second name only.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def keep_label_words(model: PreTrainedModel, word_ids: Sequence[int]) -> None:
    """Cut the language-model head's decoder to the rows of the label words, in place.

    After it the model's logits have one column per label word, equal to the same columns of the
    full head.
    """
    decoder = model.get_output_embeddings()
    rows = torch.tensor(list(word_ids))
    small = nn.Linear(decoder.in_features, len(rows), bias=decoder.bias is not None)
    small.weight = nn.Parameter(decoder.weight.detach()[rows].clone(), requires_grad=False)
    if decoder.bias is not None:
        small.bias = nn.Parameter(decoder.bias.detach()[rows].clone(), requires_grad=False)
    model.set_output_embeddings(small)


def _positions(config: Any) -> int:
    """Longest input the base takes; RoBERTa's positions start behind the padding index."""
    offset = config.pad_token_id + 1 if "roberta" in config.model_type else 0
    return int(config.max_position_embeddings) - offset

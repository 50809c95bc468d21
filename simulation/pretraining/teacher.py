"""A teacher for the embedded base: what it would put under each mask, and where it puts words.

The teacher's answer is kept as the state its output layer sees (384 numbers a mask for a MiniLM),
not as a distribution (20,000): the distribution over the shared tokens is exact and one small
matrix product away.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForMaskedLM

from simulation.pretraining.checkpoint import PretrainError
from simulation.pretraining.course import Masked
from simulation.pretraining.vocabulary import read_tokenizer


@dataclass(frozen=True)
class Answer:
    """What the teacher says to one batch; bf16, on the CPU.

    Attributes:
        states: What its output layer sees at each mask, shape (masks, teacher hidden).
        layers: The teacher's middle and last layer where both read the same word, on the axes that
            matter most, unit variance; shape (2, common, axes).
    """

    states: torch.Tensor
    layers: torch.Tensor


class Teacher:
    """A frozen masked language model of the BERT family, asked about masks.

    Args:
        folder: A Hugging Face folder.
        shared: Tokens that the student has too; the student's first ids, in its order.
        device: Where it computes.

    Attributes:
        identity: Of its weights: another teacher's is another number.

    Raises:
        PretrainError: The folder holds no such model.
    """

    def __init__(self, folder: Path, shared: Sequence[str], device: torch.device) -> None:
        ids = read_tokenizer(folder).get_vocab()
        rows = torch.tensor([ids[token] for token in shared])
        try:
            model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise PretrainError(
                f"{folder} is no masked language model that can be read; --teacher wants a BERT "
                "folder"
            ) from error
        self.identity = _identity(model)
        embeddings = model.get_input_embeddings().weight.detach()
        self.embeddings: torch.Tensor = embeddings[rows].clone()  # (shared, teacher hidden)
        self.bias: torch.Tensor = model.get_output_embeddings().bias.detach()[rows].clone()
        self._out = self.embeddings.to(device, torch.bfloat16)
        self._out_bias = self.bias.to(device)
        self._encoder: nn.Module = model.base_model.to(device, torch.bfloat16)
        self._transform: nn.Module = model.cls.predictions.transform.to(device, torch.bfloat16)
        self._device = device
        self._axes: list[torch.Tensor] = []

    @torch.no_grad()
    def learn_axes(self, readings: Sequence[Masked], axes: int) -> None:
        """Find each layer's principal axes, once, on a few readings."""
        hidden = [self._hidden(reading)[1] for reading in readings]
        for layer in range(2):
            states = torch.cat([layers[layer] for layers in hidden]).float()
            found = _axes(states, axes)
            self._axes.append((found / (states @ found).std()).to(torch.bfloat16))

    @torch.no_grad()
    def ask(self, reading: Masked) -> Answer:
        """Read a batch; `learn_axes` comes first."""
        last, layers = self._hidden(reading)
        at_masks = last[reading.rows.to(self._device), reading.columns.to(self._device)]
        projected = [states @ axes for states, axes in zip(layers, self._axes, strict=True)]
        return Answer(self._transform(at_masks).cpu(), torch.stack(projected).cpu())

    @torch.no_grad()
    def probabilities(self, states: torch.Tensor) -> torch.Tensor:
        """Distribution over the shared tokens, fp32, shape (masks, shared)."""
        logits = states.to(self._device) @ self._out.T
        return torch.softmax(logits.float() + self._out_bias, dim=-1)

    def _hidden(self, reading: Masked) -> tuple[torch.Tensor, list[torch.Tensor]]:
        states = self._encoder(
            input_ids=reading.ids.to(self._device),
            attention_mask=reading.attention.to(self._device),
            output_hidden_states=True,
        ).hidden_states
        common = reading.common.to(self._device)
        chosen = (states[len(states) // 2], states[-1])
        return states[-1], [layer.flatten(0, 1)[common] for layer in chosen]


def principal_embeddings(embeddings: torch.Tensor, hidden: int, spread: float) -> torch.Tensor:
    """Project word embeddings on their first principal axes.

    Args:
        embeddings: shape (tokens, teacher hidden).
        hidden: Axes to keep.
        spread: Standard deviation of the result.

    Returns:
        Shape (tokens, hidden), mean zero; inner products are kept as well as `hidden` axes can.
    """
    centred = embeddings.double() - embeddings.double().mean(0)
    projected = centred @ _axes(centred, hidden)
    # a random rotation shares the variance out, so that no axis rules the layer norm
    mix, _ = torch.linalg.qr(
        torch.randn(hidden, hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    mixed: torch.Tensor = projected @ mix
    return (mixed * (spread / mixed.std())).float()


def _axes(states: torch.Tensor, count: int) -> torch.Tensor:
    centred = states - states.mean(0)
    axes: torch.Tensor = torch.linalg.eigh(centred.T @ centred)[1]  # (hidden, hidden), ascending
    return axes[:, -count:]


def _identity(model: nn.Module) -> int:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest()[:7], "big")

"""Peers by torch: what a user would run today, each in its own process, to train or only to label.

    full                 every weight trained, AdamW, float32
    peft                 PEFT LoRA, float32
    peft-checkpointing   the same, every layer's activations recomputed in backward
    nf4                  bitsandbytes nf4 linears, PEFT LoRA, checkpointing, bfloat16 autocast where
                         the processor is fast at it

Every recipe's head is where the loss is: at every token, as until November 2026, it took a fifth of
a step of BERT-base. nf4 is the peer to beat and gets what helps it: an already quantized
checkpoint, no dropout. transformers cannot recompute ALBERT's activations, so its recipes keep
them. All hold the weights of our own base, so first losses must agree. Labelling is the same model
in `eval` and without gradients.

    python -m smidgen.profiling.peers.torch_peers '{"engine": "nf4", ...}'
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from smidgen.profiling.instruments.stepping import (
    Request,
    Texts,
    random_texts,
    read_request,
    run_steps,
    tell,
)


@dataclass(frozen=True)
class PeerRecipe:
    """What makes a peer.

    Attributes:
        is_lora: PEFT's LoRA, else every weight.
        is_checkpointed: Each layer's activations are recomputed in backward.
        is_nf4: bitsandbytes' linears, autocast to the request's dtype.
    """

    is_lora: bool = True
    is_checkpointed: bool = False
    is_nf4: bool = False


RECIPES = {
    "full": PeerRecipe(is_lora=False),
    "peft": PeerRecipe(),
    "peft-checkpointing": PeerRecipe(is_checkpointed=True),
    "nf4": PeerRecipe(is_checkpointed=True, is_nf4=True),
}


class Peer:
    """A recipe over a checkpoint.

    Args:
        request: What to train.
    """

    def __init__(self, request: Request) -> None:
        self._recipe, is_training = RECIPES[request.engine], request.work == "train"
        self._words = slice(None) if request.masked else list(request.word_ids)
        kind = AutoModelForCausalLM if request.is_causal else AutoModelForMaskedLM
        self._model = kind.from_pretrained(request.base, dtype=torch.float32)
        self._model.config.use_cache = False
        self.dtype = request.dtype if self._recipe.is_nf4 else "float32"
        if self._recipe.is_nf4:
            _choose_kernels(self._model, self.dtype)
        if self._recipe.is_lora:
            _add_lora(self._model, request)
        if self._recipe.is_checkpointed and is_training:
            recompute(self._model)
        self._model.train(is_training)
        self._trained = dict(_trained(self._model))
        lr = 5e-3 if self._recipe.is_lora else 1e-5
        self._optimizer = torch.optim.AdamW(self._trained.values(), lr=lr, weight_decay=0.0)

    def step(self, texts: Texts) -> float:
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._word_logits(texts)
        loss = functional.cross_entropy(logits, torch.from_numpy(texts.labels))
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def label(self, texts: Texts) -> float:
        return float(functional.log_softmax(self._word_logits(texts), dim=-1).mean())

    def untrained(self) -> list[str]:
        gradients = {name: tensor.grad for name, tensor in self._trained.items()}
        return [name for name, grad in gradients.items() if grad is None or not bool(grad.any())]

    @property
    def trained_tensors(self) -> int:
        return len(self._trained)

    @property
    def trained_parameters(self) -> int:
        return sum(tensor.numel() for tensor in self._trained.values())

    def _word_logits(self, texts: Texts) -> Tensor:
        is_mixed = self.dtype != "float32"
        with torch.autocast("cpu", getattr(torch, self.dtype)) if is_mixed else nullcontext():
            return self._mask_logits(texts)[:, self._words].float()

    def _mask_logits(self, texts: Texts) -> Tensor:
        ids, attention = torch.from_numpy(texts.ids), torch.from_numpy(texts.attention)
        rows, masks = torch.from_numpy(texts.texts), torch.from_numpy(texts.mask_positions)
        body = getattr(self._model, self._model.base_model_prefix)
        states = body(input_ids=ids, attention_mask=attention).last_hidden_state
        return head_of(self._model)(states[rows, masks])


def head_of(model: Any) -> Callable[[Tensor], Tensor]:
    """A language model's head: token states to logits."""
    every = (
        *(("lm_head",), ("cls",), ("predictions",), ("generator_predictions", "generator_lm_head")),
        ("head", "decoder"),  # ModernBERT's
        ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),  # DistilBERT's
    )
    names = next(names for names in every if all(hasattr(model, name) for name in names))
    return lambda states: reduce(lambda x, name: getattr(model, name)(x), names, states)


def _choose_kernels(model: Any, dtype: str) -> None:
    """Have nf4 linears compute in a type, by dequantizing and a product also without gradients.

    There bitsandbytes would take a fused bfloat16 kernel, made for a token at a time: on batches of
    4 x 256 tokens it took 1.7 times as long (measured), and it takes no narrow matrices.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.compute_dtype = getattr(torch, dtype)
            module.support_avx512bf16_for_cpu = False


def _add_lora(model: Any, request: Request) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(request.seed)
    chosen = LoraConfig(
        r=request.rank,
        lora_alpha=request.alpha,
        lora_dropout=0.0,
        target_modules=f".*{request.targets}",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        get_peft_model(model, chosen)  # puts LoRA into the very model


def recompute(model: Any) -> None:
    """Recompute activations in backward, where the library can: of ALBERT it keeps them all."""
    if not model.supports_gradient_checkpointing:
        return
    choice = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # transformers 5.20 and later
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=choice)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=choice)


def _trained(model: Any) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def label(request: Request) -> None:
    peer = Peer(request)
    measured = run_steps(request, random_texts(request), peer.label)
    tell("done", dtype=peer.dtype, threads=torch.get_num_threads(), **measured)


def train(request: Request) -> None:
    """Take the steps and tell the parent."""
    peer = Peer(request)
    measured = run_steps(request, random_texts(request), peer.step)
    tell(
        "done",
        plan=None,
        predicted_peak_bytes=None,
        untrained=peer.untrained() if request.warmup + request.steps > 1 else [],
        trained_tensors=peer.trained_tensors,
        trained_parameters=peer.trained_parameters,
        dtype=peer.dtype,
        threads=torch.get_num_threads(),
        **measured,
    )


if __name__ == "__main__":
    asked = read_request(sys.argv[1])
    {"train": train, "label": label}[asked.work](asked)

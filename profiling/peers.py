"""What a user would copy today, each in a process of its own: the peers of `profile train`.

    full                 every weight trained, AdamW, float32
    peft                 PEFT LoRA, float32
    peft-checkpointing   the same, every layer's activations made again in backward
    nf4                  bitsandbytes nf4 linears, PEFT LoRA, checkpointing, bfloat16 autocast, and
                         the language-model head at the mask alone

The first three call the model as Hugging Face made it, whose head answers at every position. nf4 is
the peer to beat and gets what helps it: a checkpoint that is quantized already, the head at the
mask, no dropout. All hold the weights of our own base, so first losses must agree.

    python -m profiling.peers prepare BASE OUT nf4      # once, not measured
    python -m profiling.peers train '{"engine": "nf4", ...}'
"""

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForMaskedLM

from profiling.stepping import Request, Texts, random_texts, read_request, run_steps, tell

LORA_LR, FULL_LR = 5e-3, 1e-5


@dataclass(frozen=True)
class Recipe:
    """What makes a peer.

    Attributes:
        is_lora: PEFT's LoRA, else every weight.
        is_checkpointed: Activations of each layer are made again in backward.
        is_nf4: bitsandbytes' linears, bfloat16 autocast, head at the mask.
    """

    is_lora: bool = True
    is_checkpointed: bool = False
    is_nf4: bool = False


RECIPES = {
    "full": Recipe(is_lora=False),
    "peft": Recipe(),
    "peft-checkpointing": Recipe(is_checkpointed=True),
    "nf4": Recipe(is_checkpointed=True, is_nf4=True),
}


# Before anything is measured


def prepare(base_name: str, out: Path, kind: str) -> None:
    """Write our base's dequantized weights as a Hugging Face folder.

    Args:
        base_name: As `open_base` takes it.
        out: Folder to make; it must not be there.
        kind: `float32` or `nf4`.
    """
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    if kind == "nf4":
        plain = partial.with_name(f"{partial.name}-float32")
        _save_float32(base_name, plain)
        _save_nf4(plain, partial)
    else:
        _save_float32(base_name, partial)
    partial.rename(out)


def _save_float32(base_name: str, out: Path) -> None:
    from edge_client.base import open_base

    base = open_base(base_name)
    config = AutoConfig.from_pretrained(base.folder, local_files_only=True)
    for name in list(config.to_dict()):
        if "dropout" in name:
            setattr(config, name, 0.0 if getattr(config, name) is not None else None)
    model = AutoModelForMaskedLM.from_config(config, dtype=torch.float32)
    fill(model, base)
    model.save_pretrained(out)


def fill(model: Any, base: Any) -> None:
    """Put the base's weights, dequantized, into a Hugging Face model."""
    from edge_client.quantization import dequantize

    with base.open_weights() as weights, torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name in weights:
                is_matrix = tensor.dim() == 2
                array = dequantize(weights.stored(name)) if is_matrix else weights.vector(name)
                tensor.copy_(torch.from_numpy(array))


def _save_nf4(plain: Path, out: Path) -> None:
    from transformers import BitsAndBytesConfig

    chosen = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    model = AutoModelForMaskedLM.from_pretrained(
        plain, quantization_config=chosen, dtype=torch.float32
    )
    model.save_pretrained(out)
    shutil.rmtree(plain)


# What is measured


class Peer:
    """A recipe over a checkpoint.

    Args:
        request: What to train.
    """

    def __init__(self, request: Request) -> None:
        self._recipe = RECIPES[request.engine]
        self._words = list(request.word_ids)
        self._model = AutoModelForMaskedLM.from_pretrained(request.base, dtype=torch.float32)
        if self._recipe.is_lora:
            _add_lora(self._model, request)
        if self._recipe.is_checkpointed:
            _checkpoint(self._model)
        self._model.train()
        self._trained = dict(_trained(self._model))
        lr = LORA_LR if self._recipe.is_lora else FULL_LR
        self._optimizer = torch.optim.AdamW(self._trained.values(), lr=lr, weight_decay=0.0)

    def step(self, texts: Texts) -> float:
        """One AdamW step; returns the loss before it."""
        self._optimizer.zero_grad(set_to_none=True)
        is_nf4 = self._recipe.is_nf4
        with torch.autocast("cpu", torch.bfloat16) if is_nf4 else nullcontext():
            logits = self._mask_logits(texts)[:, self._words]
        loss = functional.cross_entropy(logits.float(), torch.from_numpy(texts.labels))
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def untrained(self) -> list[str]:
        """Trained tensors to which the last step's gradient did not reach."""
        gradients = {name: tensor.grad for name, tensor in self._trained.items()}
        return [name for name, grad in gradients.items() if grad is None or not bool(grad.any())]

    @property
    def trained_tensors(self) -> int:
        """How many tensors are trained."""
        return len(self._trained)

    def _mask_logits(self, texts: Texts) -> Tensor:
        """Logits at the masks, (batch, vocabulary)."""
        ids, attention = torch.from_numpy(texts.ids), torch.from_numpy(texts.attention)
        rows, masks = torch.arange(len(ids)), torch.from_numpy(texts.mask_positions)
        if not self._recipe.is_nf4:
            logits: Tensor = self._model(input_ids=ids, attention_mask=attention).logits
            return logits[rows, masks]
        body = getattr(self._model, self._model.base_model_prefix)
        states = body(input_ids=ids, attention_mask=attention).last_hidden_state
        return head_of(self._model)(states[rows, masks])


def head_of(model: Any) -> Callable[[Tensor], Tensor]:
    """A masked language model's head: token states to logits."""
    for name in ("lm_head", "cls", "predictions"):
        if hasattr(model, name):
            head: Callable[[Tensor], Tensor] = getattr(model, name)
            return head

    def distilbert(states: Tensor) -> Tensor:
        mapped = model.vocab_layer_norm(model.activation(model.vocab_transform(states)))
        logits: Tensor = model.vocab_projector(mapped)
        return logits

    return distilbert


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


def _checkpoint(model: Any) -> None:
    choice = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # transformers 5.20 and later
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=choice)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=choice)


def _trained(model: Any) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def train(request: Request) -> None:
    """Take the steps and tell the parent."""
    peer = Peer(request)
    measured = run_steps(request, random_texts(request), peer.step)
    tell(
        "done",
        plan=None,
        predicted_peak_bytes=None,
        untrained=peer.untrained(),
        trained_tensors=peer.trained_tensors,
        threads=torch.get_num_threads(),
        **measured,
    )


def main(arguments: list[str]) -> None:
    """`prepare BASE OUT KIND`, or `train REQUEST`."""
    if arguments[:1] == ["prepare"] and len(arguments) == 4:
        prepare(arguments[1], Path(arguments[2]), arguments[3])
    elif arguments[:1] == ["train"] and len(arguments) == 2:
        train(read_request(arguments[1]))
    else:
        raise SystemExit("profiling.peers is started by `smidgen profile train`")


if __name__ == "__main__":
    main(sys.argv[1:])

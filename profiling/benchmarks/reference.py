"""Plain PyTorch + PEFT holding a base's dequantized weights: what gradients are compared with.

Hugging Face's own model, its linears filled with what the base's stored weights stand for, an
adapter by PEFT, the whole head at all positions. Nothing of it is shared with the engines but the
numbers in the file.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from peft import PeftModel, get_peft_config, get_peft_model
from peft.utils import set_peft_model_state_dict
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
)

from edge_client.adapters.peft_folder import peft_config, peft_state
from edge_client.adapters.spec import PREFIX, WORD_HEAD, AdapterSpec, head_modules
from edge_client.bases.base import Base
from edge_client.texts.batches import Batch
from edge_client.wire.tensors import AdapterState
from profiling.peers.torch_checkpoint import fill

SOFT_PREFIX = "base_model."  # of a model behind a soft prompt, which PEFT wraps once, not twice


def reference_model(
    base: Base, spec: AdapterSpec, state: AdapterState, dtype: torch.dtype = torch.float64
) -> PeftModel:
    """Hugging Face's model with the base's dequantized weights, and PEFT's adapter on it.

    With a head it is a token classifier, which PEFT knows a form for behind a soft prompt too.
    """
    config = AutoConfig.from_pretrained(base.folder, local_files_only=True)
    kind, own = AutoModelForMaskedLM, list[str]()
    if base.shape.is_decoder:
        kind = AutoModelForCausalLM
    elif spec.head:
        kind, own = AutoModelForTokenClassification, list(WORD_HEAD)
        config.num_labels = len(state[f"{PREFIX}{own[0]}.bias"])
    # Softmax of eager attention may be in float32, where a window of padding alone is NaN.
    attention = "sdpa" if base.shape.local_layers else "eager"
    model = kind.from_config(config, dtype=torch.float32, attn_implementation=attention)
    fill(model, base, own)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    without = replace(spec, head=False)
    chosen = peft_config(without, base.name, base.architecture, state) | {"inference_mode": False}
    if spec.head:
        chosen |= {"task_type": "TOKEN_CLS", "auto_mapping": None}
    if spec.head and not spec.prompt_tokens:  # behind a soft prompt PEFT saves it by itself
        chosen["modules_to_save"] = head_modules(base.architecture, is_of_words=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, get_peft_config(chosen))
        tensors = {
            name.replace(PREFIX, SOFT_PREFIX) if spec.prompt_tokens else name: torch.from_numpy(
                array
            )
            for name, array in peft_state(spec, base.architecture, state).items()
        }
        set_peft_model_state_dict(adapted, tensors)
    return adapted.to(dtype).train()


def reference_gradients(
    model: PeftModel, base: Base, spec: AdapterSpec, batch: Batch, words: Sequence[int] | None
) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and the adapter's gradients, named as the adapter's tensors are.

    Args:
        model: The reference.
        base: What it holds.
        spec: The adapter on it.
        batch: Encoded texts.
        words: Token ids of the labels; None: all words, or all tags of a head.
    """
    model.zero_grad()
    ids, attention = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
    types = {}
    if batch.segments is not None:
        types = {"token_type_ids": torch.from_numpy(batch.segments)}
    logits = model(input_ids=ids, attention_mask=attention, **types).logits
    if base.shape.is_decoder:
        loss = _causal_loss(logits, batch, spec)
    else:
        texts = torch.arange(len(ids)) if batch.texts is None else torch.from_numpy(batch.texts)
        logits = logits[texts, torch.from_numpy(batch.mask_positions) + spec.prompt_tokens]
        logits = logits if words is None else logits[:, list(words)]
        loss = functional.cross_entropy(logits, torch.from_numpy(batch.labels))
    loss.backward()
    gradients = {
        _plain(name): parameter.grad.numpy().copy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return float(loss.detach()), gradients


def _causal_loss(logits: Tensor, batch: Batch, spec: AdapterSpec) -> Tensor:
    logits = logits[:, spec.prompt_tokens : -1]
    is_real = torch.from_numpy(batch.attention)[:, 1:].bool()
    return functional.cross_entropy(logits[is_real], torch.from_numpy(batch.ids)[:, 1:][is_real])


def _plain(name: str) -> str:
    for part in (".default", ".base_layer", ".modules_to_save"):
        name = name.replace(part, "")
    if name.startswith("prompt_encoder"):
        return "prompt_embeddings"
    return name if name.startswith(PREFIX) else name.replace(SOFT_PREFIX, PREFIX, 1)

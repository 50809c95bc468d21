"""Adapters by name: what `lora:8@q,v`, `prompt:8` and `head` mean for a base, without torch.

Tensor names are PEFT's own (`base_model.model....lora_A.weight`), so an exported adapter is a
copy. The first state is drawn here with numpy from the base's files, so the coordinator can start
a run without torch. LoRA: Hu et al. 2021 (arXiv:2106.09685); soft prompts: Lester et al. 2021
(arXiv:2104.08691).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import safe_open

from edge_client.base import Base
from edge_client.wire import AdapterState

LORA_ALPHA = 16
PREFIX = "base_model.model."
# Where the field's short names live in each family (module names of Hugging Face's own classes).
TARGETS = {
    "bert": {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "o": "attention.output.dense",
        "up": "intermediate.dense",
        "down": "output.dense",
    },
    "albert": {
        "q": "attention.query",
        "k": "attention.key",
        "v": "attention.value",
        "o": "attention.dense",
        "up": "ffn",
        "down": "ffn_output",
    },
    "distilbert": {
        "q": "attention.q_lin",
        "k": "attention.k_lin",
        "v": "attention.v_lin",
        "o": "attention.out_lin",
        "up": "ffn.lin1",
        "down": "ffn.lin2",
    },
}
TARGETS["roberta"] = TARGETS["xlm-roberta"] = TARGETS["bert"]
LAYER = {
    "bert": r"bert\.encoder\.layer\.\d+\.",
    "roberta": r"roberta\.encoder\.layer\.\d+\.",
    "xlm-roberta": r"roberta\.encoder\.layer\.\d+\.",
    "albert": r"albert\.encoder\.albert_layer_groups\.\d+\.albert_layers\.\d+\.",
    "distilbert": r"distilbert\.transformer\.layer\.\d+\.",
}
# The linears that a sequence classifier adds to a masked language model: name -> (rows, columns).
HEADS = {
    "bert": {"bert.pooler.dense": ("hidden", "hidden"), "classifier": ("labels", "hidden")},
    "roberta": {
        "classifier.dense": ("hidden", "hidden"),
        "classifier.out_proj": ("labels", "hidden"),
    },
    "albert": {"albert.pooler": ("hidden", "hidden"), "classifier": ("labels", "hidden")},
    "distilbert": {"pre_classifier": ("hidden", "hidden"), "classifier": ("labels", "hidden")},
}
HEADS["xlm-roberta"] = HEADS["roberta"]
GRAMMAR = "lora:R, lora:R@q,v,k,o,up,down, prompt:N, head, or lora:R+head"


class AdapterError(ValueError):
    """An adapter that cannot be named or built for this base."""


@dataclass(frozen=True)
class AdapterSpec:
    """A parsed adapter name.

    Attributes:
        rank: LoRA's r, or 0 without LoRA.
        targets: Short names of the linears that carry LoRA.
        prompt_tokens: Virtual tokens of a soft prompt, or 0.
        head: Whether a classification head is trained instead of asking by cloze.
    """

    rank: int = 0
    targets: tuple[str, ...] = ()
    prompt_tokens: int = 0
    head: bool = False

    @property
    def scaling(self) -> float:
        """LoRA's alpha / r; alpha is 16 (Multilingual Federated Prompt Tuning, section 4)."""
        return LORA_ALPHA / self.rank if self.rank else 0.0

    def __str__(self) -> str:
        parts = []
        if self.rank:
            parts.append(f"lora:{self.rank}@{','.join(self.targets)}")
        if self.prompt_tokens:
            parts.append(f"prompt:{self.prompt_tokens}")
        if self.head:
            parts.append("head")
        return "+".join(parts)


def parse_adapter(text: str) -> AdapterSpec:
    """Parse an adapter's name; `str` of the result parses to the same spec.

    Raises:
        AdapterError: Outside the grammar; the message shows it.
    """
    match = re.fullmatch(
        r"lora:(?P<rank>[1-9]\d{0,3})(@(?P<targets>[a-z,]+))?(?P<and_head>\+head)?"
        r"|prompt:(?P<prompt>[1-9]\d{0,3})|(?P<head>head)",
        text.strip(),
    )
    targets = tuple(dict.fromkeys((match["targets"] or "q,v").split(","))) if match else ()
    if not match or not set(targets) <= set(TARGETS["bert"]):
        raise AdapterError(f"adapter {text!r} is not one of {GRAMMAR}")
    if match["prompt"]:
        return AdapterSpec(prompt_tokens=int(match["prompt"]))
    if match["head"]:
        return AdapterSpec(head=True)
    return AdapterSpec(rank=int(match["rank"]), targets=targets, head=bool(match["and_head"]))


def target_pattern(spec: AdapterSpec, architecture: str) -> str:
    """Regular expression over full module names that carry LoRA, as PEFT's `target_modules`."""
    names = TARGETS[architecture]
    chosen = "|".join(re.escape(names[target]) for target in spec.targets)
    return f"{LAYER[architecture]}({chosen})"


def head_modules(architecture: str) -> list[str]:
    """Names of the modules a classifier adds, as PEFT's `modules_to_save`."""
    names = (name.removeprefix(f"{architecture}.").split(".")[0] for name in HEADS[architecture])
    return list(dict.fromkeys(names))


def initial_adapter(
    spec: AdapterSpec,
    base: Base,
    num_labels: int,
    seed: int,
    prompt_ids: Sequence[int] = (),
) -> AdapterState:
    """Draw the adapter a run starts from.

    LoRA's A is uniform in +-1/sqrt(inputs) and B zero, as PEFT draws them, so the adapted model
    starts as the base itself. A soft prompt starts from the embeddings of `prompt_ids`, repeated
    to its length, or of random words of the vocabulary. Equal arguments give equal bytes.

    Args:
        spec: What to build.
        base: The frozen base; only its headers and the embedding rows are read.
        num_labels: Rows of a classification head.
        seed: For the draws.
        prompt_ids: Token ids of `--prompt-init TEXT`.

    Raises:
        AdapterError: The base's architecture is not known here.
    """
    if base.architecture not in TARGETS:
        raise AdapterError(
            f"base {base.name} is a {base.architecture!r}; adapters are known for "
            + ", ".join(sorted(TARGETS))
        )
    generator = np.random.Generator(np.random.PCG64(seed))
    state: AdapterState = {}
    with safe_open(base.weights, framework="numpy") as weights:
        if spec.rank:
            state |= _initial_lora(spec, base.architecture, weights, generator)
        if spec.prompt_tokens:
            state["prompt_embeddings"] = _initial_prompt(spec, weights, generator, prompt_ids)
    if spec.head:
        state |= _initial_head(base.architecture, base.hidden, num_labels, generator)
    return state


def _initial_lora(
    spec: AdapterSpec, architecture: str, weights: Any, generator: np.random.Generator
) -> AdapterState:
    pattern = re.compile(target_pattern(spec, architecture) + r"\.weight")
    state: AdapterState = {}
    for name in sorted(weights.keys()):
        if pattern.fullmatch(name):
            rows, columns = weights.get_slice(name).get_shape()
            bound = 1 / math.sqrt(columns)
            module = PREFIX + name.removesuffix(".weight")
            draw = generator.uniform(-bound, bound, (spec.rank, columns))
            state[f"{module}.lora_A.weight"] = draw.astype(np.float32)
            state[f"{module}.lora_B.weight"] = np.zeros((rows, spec.rank), np.float32)
    if not state:
        raise AdapterError(
            f"adapter {spec}: the base has none of the linears {', '.join(spec.targets)}"
        )
    return state


def _initial_prompt(
    spec: AdapterSpec, weights: Any, generator: np.random.Generator, prompt_ids: Sequence[int]
) -> np.ndarray:
    tensors = weights.keys()
    names = [name for name in tensors if name.endswith("embeddings.word_embeddings.weight")]
    if len(names) != 1:
        raise AdapterError(
            "the base has no single tensor `word_embeddings.weight` to start a prompt from"
        )
    rows = weights.get_slice(names[0])
    ids = list(prompt_ids) or list(
        generator.integers(1000, rows.get_shape()[0], spec.prompt_tokens)
    )
    chosen = [ids[index % len(ids)] for index in range(spec.prompt_tokens)]
    table = np.concatenate([rows[int(index) : int(index) + 1] for index in chosen])
    return np.ascontiguousarray(table, dtype=np.float32)


def _initial_head(
    architecture: str, hidden: int, num_labels: int, generator: np.random.Generator
) -> AdapterState:
    sizes = {"hidden": hidden, "labels": num_labels}
    state: AdapterState = {}
    for name, (rows, columns) in HEADS[architecture].items():
        draw = generator.normal(0.0, 0.02, (sizes[rows], sizes[columns]))
        state[f"{PREFIX}{name}.weight"] = draw.astype(np.float32)
        state[f"{PREFIX}{name}.bias"] = np.zeros(sizes[rows], np.float32)
    return state

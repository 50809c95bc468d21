"""Adapters by name: what `lora:8/top2`, `prompt:8` and `head` mean for a base, without torch.

Tensor names are PEFT's own (`base_model.model....lora_A.weight`), so an exported adapter is a
copy. The first state is drawn here with numpy from the base's files, so the coordinator can start
a run without torch. LoRA: Hu et al. 2021 (arXiv:2106.09685); soft prompts: Lester et al. 2021
(arXiv:2104.08691).
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.bases.architectures import FAMILIES, Shape
from edge_client.bases.base import Base
from edge_client.bases.weights import Weights
from edge_client.wire.messages import AdapterState

LORA_ALPHA = 16
PREFIX = "base_model.model."
TARGETS = ("q", "k", "v", "o", "up", "down")
GRAMMAR = (
    "lora:R, lora:R@q,v,k,o,up,down, prompt:N, bias, one of them with +head, or head; "
    "lora and bias of the top N layers alone: lora:R/topN, bias/topN"
)
ANY_LAYER = r"\d+"


class AdapterError(ValueError):
    """An adapter that cannot be named or built for this base."""


@dataclass(frozen=True)
class AdapterSpec:
    """A parsed adapter name.

    Attributes:
        rank: LoRA's r, or 0 without LoRA.
        targets: Short names of the linears that carry LoRA.
        prompt_tokens: Virtual tokens of a soft prompt, or 0.
        bias: Whether every bias inside the layers is trained (BitFit).
        top: How many top layers carry LoRA or trained biases; 0: all.
        head: Whether a classification head is trained instead of asking by cloze. It reads the
            text's first token, also behind a soft prompt.
    """

    rank: int = 0
    targets: tuple[str, ...] = ()
    prompt_tokens: int = 0
    head: bool = False
    bias: bool = False
    top: int = 0

    @property
    def scaling(self) -> float:
        """LoRA's alpha / r; alpha is 16 (Multilingual Federated Prompt Tuning, section 4)."""
        return LORA_ALPHA / self.rank if self.rank else 0.0

    @property
    def is_in_layers(self) -> bool:
        """Whether training it leads back through the layers; a head alone does not."""
        return bool(self.rank or self.prompt_tokens or self.bias)

    def __str__(self) -> str:
        parts = []
        if self.rank:
            parts.append(f"lora:{self.rank}@{','.join(self.targets)}")
        if self.prompt_tokens:
            parts.append(f"prompt:{self.prompt_tokens}")
        if self.bias:
            parts.append("bias")
        if self.top:
            parts[-1] += f"/top{self.top}"
        if self.head:
            parts.append("head")
        return "+".join(parts)


def parse_adapter(text: str) -> AdapterSpec:
    """Parse an adapter's name; `str` of the result parses to the same spec.

    Raises:
        AdapterError: Outside the grammar; the message shows it.
    """
    match = re.fullmatch(
        r"(lora:(?P<rank>[1-9]\d{0,3})(@(?P<targets>[a-z,]+))?|prompt:(?P<prompt>[1-9]\d{0,3})"
        r"|(?P<bias>bias))(/top(?P<top>[1-9]\d{0,3}))?(?P<and_head>\+head)?|(?P<head>head)",
        text.strip(),
    )
    targets = tuple(dict.fromkeys((match["targets"] or "q,v").split(","))) if match else ()
    if not match or not set(targets) <= set(TARGETS):
        raise AdapterError(f"adapter {text!r} is not one of {GRAMMAR}")
    if match["prompt"] and match["top"]:
        raise AdapterError(
            f"adapter {text!r}: a soft prompt lies below all layers; leave /top{match['top']} out"
        )
    has_head = bool(match["head"] or match["and_head"])
    return AdapterSpec(
        rank=int(match["rank"] or 0),
        targets=targets if match["rank"] else (),
        prompt_tokens=int(match["prompt"] or 0),
        head=has_head,
        bias=bool(match["bias"]),
        top=int(match["top"] or 0),
    )


def frozen_layers(spec: AdapterSpec, layers: int) -> int:
    """How many of the lowest layers nothing is trained in, nor below: their results never change.

    Args:
        spec: The adapter.
        layers: Computed layers of the base.
    """
    if spec.prompt_tokens:
        return 0
    if spec.is_in_layers:
        return layers - spec.top if spec.top else 0
    return layers


def check_top(spec: AdapterSpec, shape: Shape) -> None:
    """Refuse an adapter of top layers that a base does not have.

    Raises:
        AdapterError: More of them than there are, or one layer that is computed again and again.
    """
    if spec.top > shape.layers:
        raise AdapterError(
            f"adapter {spec}: the base has {shape.layers} layers; leave /top{spec.top} out"
        )
    if spec.top and shape.stored_layers < shape.layers:
        raise AdapterError(
            f"adapter {spec}: the layers of a {shape.architecture} are one layer again and again, "
            f"and so is what is trained in it; leave /top{spec.top} out"
        )


def adapted_layers(spec: AdapterSpec, layers: int) -> Collection[int] | None:
    """The layers that carry the adapter, as `target_pattern` takes them; None: all."""
    return range(layers - spec.top, layers) if spec.top else None


def target_pattern(
    spec: AdapterSpec, architecture: str, layers: Collection[int] | None = None
) -> str:
    """Regular expression over full module names that carry LoRA, as PEFT's `target_modules`.

    Args:
        spec: LoRA.
        architecture: The base's `model_type`.
        layers: Which of the layers; None: all.
    """
    linears = FAMILIES[architecture].linears
    chosen = "|".join(re.escape(linears[target]) for target in spec.targets)
    return f"{layer_pattern(architecture, layers)}({chosen})"


def layer_pattern(architecture: str, layers: Collection[int] | None = None) -> str:
    """Regular expression over the prefix of a layer, one of some or (None) whichever."""
    index = ANY_LAYER if layers is None else f"(?:{'|'.join(map(str, layers))})"
    return re.escape(FAMILIES[architecture].layer.format(layer=0)).replace("0", index, 1)


def layers_of(state: AdapterState, architecture: str) -> list[int]:
    """The layers in which an adapter has tensors, ascending."""
    layer = layer_pattern(architecture).replace(ANY_LAYER, f"({ANY_LAYER})", 1)
    found = (re.match(re.escape(PREFIX) + layer, name) for name in state)
    return sorted({int(match[1]) for match in found if match})


def head_modules(architecture: str) -> list[str]:
    """Names of the modules a classifier adds, as PEFT's `modules_to_save`."""
    names = FAMILIES[architecture].classifier
    tops = (name.removeprefix(f"{architecture}.").split(".")[0] for name in names)
    return list(dict.fromkeys(tops))


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
    to its length, or of random words of the vocabulary. Biases start from the base's own (BitFit,
    Ben Zaken et al. 2022, arXiv:2106.10199). Equal arguments give equal bytes.

    Args:
        spec: What to build.
        base: The frozen base; only its headers and the embedding rows are read.
        num_labels: Rows of a classification head.
        seed: For the draws.
        prompt_ids: Token ids of `--prompt-init TEXT`.

    Raises:
        AdapterError: The base's architecture is not known here, or has no such top layers.
    """
    if base.architecture not in FAMILIES:
        raise AdapterError(
            f"base {base.name} is a {base.architecture!r}; adapters are known for "
            + ", ".join(sorted(FAMILIES))
        )
    check_top(spec, base.shape)
    generator = np.random.Generator(np.random.PCG64(seed))
    state: AdapterState = {}
    with base.open_weights() as weights:
        if spec.rank:
            state |= _initial_lora(spec, base, weights, generator)
        if spec.prompt_tokens:
            words = f"{FAMILIES[base.architecture].words}.weight"
            state["prompt_embeddings"] = _initial_prompt(
                spec, weights, words, generator, prompt_ids
            )
        if spec.bias:
            state |= _initial_bias(spec, base, weights)
    if spec.head:
        state |= _initial_head(base.architecture, base.hidden, num_labels, generator)
    return state


def _initial_lora(
    spec: AdapterSpec, base: Base, weights: Weights, generator: np.random.Generator
) -> AdapterState:
    layers = adapted_layers(spec, base.layers)
    pattern = re.compile(target_pattern(spec, base.architecture, layers) + r"\.weight")
    state: AdapterState = {}
    for name in sorted(weights.names):
        if pattern.fullmatch(name):
            rows, columns = weights.shape(name)
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
    spec: AdapterSpec,
    weights: Weights,
    words: str,
    generator: np.random.Generator,
    prompt_ids: Sequence[int],
) -> np.ndarray:
    ids = list(prompt_ids) or list(
        generator.integers(1000, weights.shape(words)[0], spec.prompt_tokens)
    )
    chosen = [int(ids[index % len(ids)]) for index in range(spec.prompt_tokens)]
    return weights.rows(words, chosen)


def _initial_bias(spec: AdapterSpec, base: Base, weights: Weights) -> AdapterState:
    """The base's own biases, linears' and normalizations', of the adapted layers.

    But for an encoder's keys: their bias adds the same to all scores of a query, so softmax does
    not see it, its gradient is zero and AdamW would follow rounding noise.
    """
    layers = adapted_layers(spec, base.layers)
    pattern = re.compile(layer_pattern(base.architecture, layers) + r"(.*)\.bias")
    keys = "" if base.shape.is_decoder else FAMILIES[base.architecture].linears["k"]
    state: AdapterState = {}
    for name in sorted(weights.names):
        match = pattern.fullmatch(name)
        if match and match[1] != keys:
            state[PREFIX + name] = weights.vector(name)
    if not state:
        raise AdapterError(f"adapter bias: the layers of a {base.architecture} have no biases")
    return state


def _initial_head(
    architecture: str, hidden: int, num_labels: int, generator: np.random.Generator
) -> AdapterState:
    sizes = {"hidden": hidden, "labels": num_labels}
    state: AdapterState = {}
    for name, (rows, columns) in FAMILIES[architecture].classifier.items():
        draw = generator.normal(0.0, 0.02, (sizes[rows], sizes[columns]))
        state[f"{PREFIX}{name}.weight"] = draw.astype(np.float32)
        state[f"{PREFIX}{name}.bias"] = np.zeros(sizes[rows], np.float32)
    return state

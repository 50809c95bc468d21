"""Adapters by name: what `lora:8/top2`, `prompt:8` and `head` mean for a base, without torch.

Tensor names are PEFT's own (`base_model.model....lora_A.weight`), so an exported adapter is a
copy. The first state is drawn here with numpy from the base's files, so the coordinator can start
a run without torch. LoRA: Hu et al. 2021 (arXiv:2106.09685); soft prompts: Lester et al. 2021
(arXiv:2104.08691).
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from edge_client.bases.architectures import FAMILIES, Shape
from edge_client.errors import WrongInput
from edge_client.wire.tensors import AdapterState

LORA_ALPHA = 16
PREFIX = "base_model.model."
TARGETS = ("q", "k", "v", "o", "up", "down")
GRAMMAR = (
    "lora:R, lora:R@q,v,k,o,up,down, prompt:N, bias, one of them with +head, or head; "
    "lora and bias of the top N layers alone: lora:R/topN, bias/topN "
    "(R and N from 1 to 9999)"
)
ANY_LAYER = r"\d+"


class AdapterError(WrongInput):
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
        AdapterError: More of them than there are, or one layer that is computed repeatedly.
    """
    if spec.top > shape.layers:
        raise AdapterError(
            f"adapter {spec}: the base has {shape.layers} layers; leave /top{spec.top} out"
        )
    if spec.top and shape.stored_layers < shape.layers:
        raise AdapterError(
            f"adapter {spec}: the layers of a {shape.architecture} are one layer, repeated, and "
            f"what is trained in it is repeated too; leave /top{spec.top} out"
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

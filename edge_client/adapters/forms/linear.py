"""LoRA written by other numbers: fewer of them, and the adapter linear in each that is trained.

A mean of LoRA's factors is not the mean of their products B A. Where only one of them is trained at
a time, or a core between two that are fixed, it is, and so everything that is linear in an update
is exact: FedAvg, SCAFFOLD, codecs with error feedback. What is trained is what travels; the engine
and PEFT's folder see plain LoRA. `lora:8+ffa` names one behind LoRA's own name.

    form = form_of("ffa", shapes_of(lora))
    form.expand(trained)                  # LoRA's A and B
    form.pull(gradients)                  # of the trained numbers, by the chain rule
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

import numpy as np

from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
Shapes = Mapping[str, tuple[int, ...]]

# By name as it stands in an adapter's name: module and class here. An empty one is LoRA as it is,
# whose updates go through the update step of that name.
FORMS: Mapping[str, str] = {
    "ffa": "ffa:FrozenA",
    "rolora": "",
    "core": "core:Core",
}


class Form(Protocol):
    """A way to write LoRA. Made of the shapes that LoRA's tensors have; others are trained as is.

    Law: `expand` is affine in the trained numbers, with B A so too, and `pull` is its transpose.
    """

    def __init__(self, shapes: Shapes) -> None: ...

    def first(self, lora: AdapterState) -> AdapterState:
        """The trained numbers at the start; the adapted model is the base itself."""

    def expand(self, trained: AdapterState) -> AdapterState:
        """LoRA's tensors, float32."""

    def pull(self, gradients: AdapterState) -> AdapterState:
        """Gradients of the trained numbers, of those of LoRA's tensors."""


def form_of(name: str, shapes: Shapes) -> Form:
    """A form by its name.

    Args:
        name: One of `FORMS`.
        shapes: Of LoRA's tensors, and of a head's beside them.
    """
    module, _, kind = FORMS[name].partition(":")
    made: Callable[[Shapes], Form] = getattr(
        import_module(f"edge_client.adapters.forms.{module}"), kind
    )
    return made(shapes)


def is_lora(name: str) -> bool:
    """Whether LoRA's own numbers are trained; also where no form is named."""
    return not FORMS.get(name, "")


def steps_of(adapter: str) -> tuple[str, ...]:
    """The update steps that a run of an adapter goes through because of its form.

    Args:
        adapter: Its name; of one that is outside the grammar too, such as `full`.
    """
    return tuple(form for form in FORMS if adapter.endswith(f"+{form}") and is_lora(form))


def fixed_factor(tensor: str, shape: tuple[int, ...]) -> np.ndarray:
    """A factor that is never trained and never sent, drawn by its tensor's name alone.

    Uniform in +-1/sqrt(columns), as PEFT draws LoRA's A; equal on every machine.
    """
    generator = np.random.Generator(np.random.PCG64(derive_seed(0, "fixed factor", tensor)))
    bound = 1.0 / np.sqrt(shape[1])
    return generator.uniform(-bound, bound, shape).astype(np.float32)

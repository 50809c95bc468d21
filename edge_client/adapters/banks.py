"""Rank banks: LoRA with one rank and one scaling in all modules, from which ranks are selected.

Modules of an adapter cut from a bank differ in rank but keep the bank's scaling, so a rank has the
same effect wherever it stands. `StackedAdapters` puts a device's own LoRA on top of a shared one;
in modules that both have, their ranks stand side by side and their changes to the base add up:

    stack = StackedAdapters(own, shared, shape)
    engine = opened(stack.spec)
    engine.put(stack.joined(own_numbers, shared_numbers))
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edge_client.adapters.ranks import ModuleRank
from edge_client.adapters.spec import (
    PREFIX,
    AdapterError,
    AdapterSpec,
    lead,
    lora_modules,
    parse_adapter,
)
from edge_client.bases.architectures import Shape
from edge_client.bases.families import family_of
from edge_client.errors import demand
from edge_client.wire.tensors import AdapterState

SCALING = 2.0  # alpha / r of the bank, and of every module that is cut from it


def bank_spec(spec: AdapterSpec, shape: Shape) -> AdapterSpec:
    """An adapter with the same rank in each of its modules, all with the bank's scaling.

    Args:
        spec: LoRA, or a net for one; its rank is the bank's.
        shape: The base's.
    """
    named = {one[:2]: one for one in lora_modules(spec, shape).values()}
    return with_ranks(spec, shape, dict.fromkeys(named, spec.rank))


def computed(spec: AdapterSpec, shape: Shape) -> AdapterSpec:
    """The adapter that an engine computes with: of a net, the LoRA that it is for; of a form, LoRA.

    Args:
        spec: What is trained.
        shape: The base's.
    """
    return bank_spec(spec, shape) if spec.net else replace(spec, form="")


def with_ranks(
    spec: AdapterSpec, shape: Shape, ranks: Mapping[tuple[int, str], int]
) -> AdapterSpec:
    """An adapter of these ranks by (layer, linear), and of no other module, scaled by `SCALING`.

    Args:
        spec: LoRA; tells the linears, and whether a head is trained beside it.
        shape: The base's.
        ranks: 0: the module carries none, as one that is not named.
    """
    family = family_of(shape.architecture)
    known = [lead(family, target) for target in spec.adapted if target in family.linears]
    linears = list(dict.fromkeys(known))
    parts = tuple(
        ModuleRank(layer, target, rank, SCALING * rank if rank else 16.0)
        for layer in range(shape.stored_layers)
        for target in linears
        for rank in (ranks.get((layer, target), 0),)
    )
    named = replace(spec, targets=tuple(linears), top=0, ranks=parts, net="")
    return parse_adapter(str(named))


LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
PARTS = {LORA_A: 0, LORA_B: 1}  # the axis along which a tensor's ranks lie


class StackedAdapters:
    """Two adapters as one, whose ranks of the shared one come first.

    Laws: what the joined numbers change of the base is the sum of what the two change of it;
    `own` of them gives one's own back, bit by bit.

    Args:
        own: LoRA whose modules are scaled as banks are, a head, or both.
        shared: LoRA alone, of any scaling.
        shape: The base's.

    Attributes:
        spec: Of both together.

    Raises:
        AdapterError: The shared one trains something else too.
    """

    def __init__(self, own: AdapterSpec, shared: AdapterSpec, shape: Shape) -> None:
        check_beneath(shared)
        lower, upper = lora_modules(shared, shape), lora_modules(own, shape)
        self._lower = {PREFIX + name: one for name, one in lower.items()}
        self._upper = {PREFIX + name: one for name, one in upper.items()}
        ranks: dict[tuple[int, str], int] = {}
        for one in (*lower.values(), *upper.values()):
            ranks[one[:2]] = ranks.get(one[:2], 0) + one.rank
        targets = tuple(dict.fromkeys((*shared.adapted, *own.adapted)))
        self.spec = with_ranks(AdapterSpec(rank=1, targets=targets, head=own.head), shape, ranks)

    def joined(self, own: AdapterState, shared: AdapterState) -> AdapterState:
        """Both in one.

        Args:
            own: One's own numbers.
            shared: The shared one's.
        """
        found: AdapterState = {}
        for module in dict.fromkeys((*self._lower, *self._upper)):
            for part, axis in PARTS.items():
                both = []
                if module in self._lower:
                    lower = self._lower[module]
                    scale = np.float32(lower.alpha / lower.rank / SCALING)
                    both.append(shared[module + part] * (scale if part == LORA_B else 1))
                if module in self._upper:
                    both.append(own[module + part])
                found[module + part] = np.concatenate(both, axis=axis, dtype=np.float32)
        return found | head_of(own)

    def own(self, joined: Mapping[str, np.ndarray]) -> AdapterState:
        """One's own part of numbers, or of their gradients."""
        found = head_of(joined)
        for module in self._upper:
            below = self._lower[module].rank if module in self._lower else 0
            for part, axis in PARTS.items():
                _, upper = np.split(joined[module + part], [below], axis=axis)
                found[module + part] = np.ascontiguousarray(upper)
        return found


def check_beneath(shared: AdapterSpec) -> None:
    """Refuse what nothing can be stacked upon.

    Raises:
        AdapterError: It is not LoRA alone.
    """
    is_plain = not (shared.prompt_tokens or shared.head or shared.bias or shared.net)
    needed = f"shared adapter {shared}: LoRA alone is expected below one's own"
    demand(is_plain and shared.largest_rank > 0, needed, AdapterError)


def lora_part(name: str) -> str | None:
    """`LORA_A` or `LORA_B` where a tensor is LoRA's."""
    return next((part for part in PARTS if name.endswith(part)), None)


def head_of(numbers: Mapping[str, np.ndarray]) -> AdapterState:
    """What of LoRA's numbers is none of LoRA's: those of a head beside it."""
    return {name: one for name, one in numbers.items() if lora_part(name) is None}

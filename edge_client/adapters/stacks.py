"""One's own above a shared LoRA: in a module that both have, ranks of one beside the other's.

stack = Stack(own, shared, shape)
engine = opened(stack.spec)
engine.put(stack.joined(own_numbers, shared_numbers))  # what the two change of the base, added up
"""

from collections.abc import Mapping

import numpy as np

from edge_client.adapters.banks import SCALING, with_ranks
from edge_client.adapters.spec import PREFIX, AdapterError, AdapterSpec, lora_modules
from edge_client.bases.architectures import Shape
from edge_client.errors import demand
from edge_client.wire.tensors import AdapterState

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
PARTS = {LORA_A: 0, LORA_B: 1}  # the axis along which a tensor's ranks lie


class Stack:
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

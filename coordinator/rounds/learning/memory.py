"""Server state between rounds, beside the adapter, stored as one blob.

The journal names it by its hash, as the adapter it belongs to, so a replay and a coordinator that
was killed have the same. It has named parts:

    memory = with_part(memory, "optimizer", {"momentum.lora_A": moments})
    part_of(memory, "optimizer")["momentum.lora_A"]
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from edge_client.errors import Failed

Memory: TypeAlias = dict[str, np.ndarray]


class UnreadableError(Failed):
    """What a run remembers cannot be read."""


def part_of(memory: Memory, part: str) -> Memory:
    """The tensors of a part, by their names in it; none where nothing is remembered."""
    start = f"{part}/"
    return {key.removeprefix(start): one for key, one in memory.items() if key.startswith(start)}


def with_part(memory: Memory, part: str, tensors: Mapping[str, np.ndarray]) -> Memory:
    """The memory with a part that takes the place of what it was; the others stay."""
    others = {key: one for key, one in memory.items() if not key.startswith(f"{part}/")}
    return others | {f"{part}/{name}": tensor for name, tensor in tensors.items()}


def encode_memory(memory: Memory) -> bytes:
    """As safetensors, every tensor in its own type; equal memories give equal bytes."""
    return bytes(
        save_safetensors({key: np.require(memory[key], None, "C") for key in sorted(memory)})
    )


def decode_memory(body: bytes) -> Memory:
    """The inverse of `encode_memory`; of no bytes an empty memory.

    Raises:
        UnreadableError: Not safetensors.
    """
    if not body:
        return {}
    try:
        return dict(load_safetensors(body))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UnreadableError(
            f"what the run remembers is not a safetensors file: {error}"
        ) from error

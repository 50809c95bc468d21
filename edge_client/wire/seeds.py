"""Seeds for each client, round and purpose, derived from a run's root seed in any order."""

import hashlib
from collections.abc import Callable
from typing import Annotated, TypeAlias

from msgspec import Meta

Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]


def derive_seed(root: int | str, *purpose: str | int) -> int:
    """Hash a root seed and a purpose into a 63-bit seed.

    Args:
        root: The run's seed; of what devices must not foresee, its secret.
        purpose: What the seed is for, for instance `("train", "hub-01", 3)`.
    """
    text = "\x1f".join(str(part) for part in (root, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seeds_under(root: int | str, *purpose: str | int) -> Callable[[str], int]:
    """`derive_seed` of one word more, for many: what they have in common is hashed once."""
    common = hashlib.sha256("".join(f"{part}\x1f" for part in (root, *purpose)).encode())

    def seed_of(word: str) -> int:
        own = common.copy()
        own.update(word.encode())
        return int.from_bytes(own.digest()[:8], "big") >> 1

    return seed_of

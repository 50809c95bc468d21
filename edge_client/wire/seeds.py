"""One root seed; every client, round and purpose derives its own: arrival order does not matter."""

import hashlib


def derive_seed(root: int | str, *purpose: str | int) -> int:
    """Hash a root seed and a purpose into a 63-bit seed.

    Args:
        root: The run's seed; of what devices must not foresee, its secret.
        purpose: What the seed is for, for instance `("train", "hub-01", 3)`.
    """
    text = "\x1f".join(str(part) for part in (root, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

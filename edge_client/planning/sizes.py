"""Memory sizes as people write them."""

import math
import re
from collections.abc import Callable

from edge_client.errors import WrongInput

AUTO = "auto"
AUTO_PERCENT = 60  # of what is available now
MIB = 1 << 20


class BudgetError(WrongInput):
    """A budget that is no size, or that no plan fits."""


def parse_budget(text: str) -> int | None:
    """Bytes of `512M`, `2G` or `1.5G` (1024-based), or None for `auto`.

    Raises:
        BudgetError: Anything else; the message says what was expected.
    """
    if text == AUTO:
        return None
    return _bytes("--memory-budget", text, AUTO)


def parse_cache_size(text: str) -> int:
    """Bytes of a size as `parse_budget` reads it, or of `0`.

    Raises:
        BudgetError: Anything else; the message says what was expected.
    """
    return 0 if text == "0" else _bytes("--cache-size", text, "0 for none")


def _bytes(option: str, text: str, other: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([MmGg])", text)
    size = int(float(match[1]) * MIB * (1024 if match[2] in "Gg" else 1)) if match else 0
    if size < MIB:
        raise BudgetError(
            f"{option} {text!r} is not a size; expected such as 512M, 1.5G or {other}"
        )
    return size


def auto_budget(available_bytes: int) -> int:
    """What `auto` stands for: 60 % of what is available now."""
    return available_bytes * AUTO_PERCENT // 100


def size_text(size_bytes: int, rounding: Callable[[float], int] = math.ceil) -> str:
    """Bytes as `parse_budget` reads them; rounded up, so that a budget of this text is enough."""
    return f"{rounding(size_bytes / MIB)}M"

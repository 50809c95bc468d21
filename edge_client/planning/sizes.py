"""Parses memory sizes such as `512M`."""

import math
import re
from collections.abc import Callable

from smidgen.edge_client.errors import WrongInput

AUTO = "auto"
AUTO_PERCENT = 60  # of what is available now
MIB = 1 << 20


class BudgetError(WrongInput):
    """A text that is not a memory size, or a budget that no plan fits."""


def parse_budget(text: str) -> int | None:
    """The bytes that `--memory-budget` allows, or None for `auto`.

    Raises:
        BudgetError: Neither a size nor `auto`.
    """
    return None if text == AUTO else parse_size("--memory-budget", text, AUTO)


def parse_cache_size(text: str) -> int:
    """The bytes that `--cache-size` allows; 0 for `0`.

    Raises:
        BudgetError: Neither a size nor `0`.
    """
    return 0 if text == "0" else parse_size("--cache-size", text, "0 for none")


def parse_size(option: str, text: str, other: str = "") -> int:
    """Bytes of `512M`, `2G` or `1.5G` (1024-based), at least 1 MiB.

    Args:
        option: The option that was typed, for the message.
        text: What was typed.
        other: What else the option takes, for the message; empty: nothing.

    Raises:
        BudgetError: Not a size; the message says what was expected.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([MmGg])", text)
    size = int(float(match[1]) * MIB * (1024 if match[2] in "Gg" else 1)) if match else 0
    if size < MIB:
        expected = f"512M, 1.5G or {other}" if other else "512M or 1.5G"
        raise BudgetError(f"{option} {text!r} is not a size; expected such as {expected}")
    return size


def auto_budget(available_bytes: int) -> int:
    """What `auto` stands for: 60 % of what is available now."""
    return available_bytes * AUTO_PERCENT // 100


def size_text(size_bytes: int, rounding: Callable[[float], int] = math.ceil) -> str:
    """Bytes as `parse_size` reads them; rounded up, so that a budget of this text is enough."""
    return f"{rounding(size_bytes / MIB)}M"

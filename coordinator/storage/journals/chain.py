"""A chain of hashes through each run's journal: who changed, cut or swapped it is found out.

The first link covers the run's row, each further one the link before and its own event. The same
journal always gives the same links, whoever computes them.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FIELDS = (
    *("run_id", "config", "base_id", "base_reference", "architecture", "adapter_sha256"),
    "secret",
)


def first_link(run: Mapping[str, Any]) -> str:
    """What a run's chain begins with, by its row."""
    return hashlib.sha256(json.dumps([run[name] for name in FIELDS]).encode()).hexdigest()


def next_link(link: str, payload: str) -> str:
    """The link of an event, by the one before and the event as it is stored."""
    return hashlib.sha256(f"{link}\n{payload}".encode()).hexdigest()

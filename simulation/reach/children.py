"""One size measured: a store filled by one process, then opened by a fresh one; it goes at the end.

The server's libraries are loaded in those processes alone.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from profiling.instruments.bases import cache_folder
from simulation.experiments.child import child
from simulation.reach.taken import Asked, Taken


def take(asked: Asked, say: Callable[[str], object]) -> Taken:
    """Measure what the state of so many devices takes of one process.

    Args:
        asked: How many.
        say: Told how far it is.
    """
    now_s, folder = time.time(), cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{asked.devices} devices"
    with tempfile.TemporaryDirectory(prefix="reach-", dir=folder) as temporary:
        store = Path(temporary) / "store"
        say(f"{asked.devices:,} devices: filling a store")
        with child(_fill, store, asked, now_s, name=name) as filling:
            filling.answer()
        say(f"{asked.devices:,} devices: opening it and measuring")
        with child(_measure, store, asked, now_s, name=name) as measuring:
            taken: Taken = measuring.answer()
    return taken


def _fill(store: Path, asked: Asked, now_s: float) -> None:
    from simulation.reach.filling import fill

    fill(store, asked.devices, asked.cohort, now_s)


def _measure(store: Path, asked: Asked, now_s: float) -> Taken:
    from simulation.reach.measured import measure

    return measure(store, asked, now_s)

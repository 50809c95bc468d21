"""What a store may hold, as `serve` was told last, for other commands.

How much of the disk is left alone lies beside the store, as does the disk; how many rounds are kept
is in the database, for commands on other machines.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from coordinator.storage.store import Store
from edge_client.errors import demand
from edge_client.files import from_json, write_atomically
from edge_client.planning.sizes import parse_size

KEEP_ROUNDS = 20
LEAST_FREE, LEAST_FREE_BYTES = "512M", 512 << 20
MOST_ROUNDS = 1_000_000
FILE = "limits.json"


@dataclass(frozen=True)
class Limits:
    """How much of a run is kept, and how much of the disk is left alone.

    Attributes:
        keep_rounds: How many of a run's newest rounds keep their adapter.
        least_free_bytes: Below this much free space nothing more is taken; 0 for no mark.
    """

    keep_rounds: int = KEEP_ROUNDS
    least_free_bytes: int = LEAST_FREE_BYTES


def limits_of(keep_rounds: int, least_free: str) -> Limits:
    """Limits as they are typed.

    Raises:
        WrongInput: Names the option.
    """
    demand(0 <= keep_rounds <= MOST_ROUNDS, f"--keep-rounds {keep_rounds}: 0 to {MOST_ROUNDS}")
    is_none = least_free == "0"
    least = 0 if is_none else parse_size("--least-free", least_free, "0 for no mark")
    return Limits(keep_rounds, least)


def note(folder: Path, limits: Limits) -> None:
    """Write down what a store is served with; a full disk may not take it."""
    with suppress(OSError):
        write_atomically(folder / FILE, json.dumps(asdict(limits)).encode(), mode=0o600)


def noted(folder: Path) -> Limits:
    """What a store was served with last; the defaults where nobody knows."""
    try:
        return from_json((folder / FILE).read_bytes(), Limits)
    except (OSError, msgspec.MsgspecError):
        return Limits()


def rounds_kept(store: Store) -> int:
    """How many of a run's newest rounds keep their adapter in a store."""
    known = store.marks.keep_rounds()
    return noted(store.folder).keep_rounds if known is None else known

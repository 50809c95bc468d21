"""Settings of a client process, and a summary of what it did."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.packs.shelf import Shelf
from smidgen.edge_client.client.packs.sources import PackSource
from smidgen.edge_client.engine.limits import Limits
from smidgen.edge_client.formats.source import PLAIN, Dialect
from smidgen.edge_client.guest.ceilings import Rules
from smidgen.edge_client.planning.cuda_memory import CPU


@dataclass(frozen=True)
class Settings:
    """What a client is started with.

    Attributes:
        url: The coordinator.
        token: Enrolment token; may be empty once the device is enrolled.
        name: What the device calls itself.
        data: Client data folder (or one labelled file).
        base: The frozen base on this device.
        engine: `auto`, `torch` or `onnx`.
        budget_bytes: Memory this process may take; None: 60 % of what is available.
        cache_bytes: Disk that results of frozen layers may take; 0: none are kept.
        version: The client's version, for the coordinator's list.
        wait_s: Length of one long poll.
        patience_s: How long the coordinator may be absent at the start; later it is waited for.
        out: Where a finished run's adapter is written; None: the state folder's `adapter`.
        dialect: How the files of the texts are written down.
        device: What the engine computes on, `cpu` or `cuda`.
        grace_s: How long failures that may pass by themselves are borne.
        parting_s: How long a client stays that ends because another one is this device now: a
            supervisor that starts it again must not let the two chase each other.
        verify: Whose certificates are believed; None: nobody's, for plain HTTP.
        tags: What its owner says of the device.
        limits: What its owner lets one piece of work take.
        rules: When it may work, and what it must not disturb.
        packs: Where packs are kept that it fetches for runs; None: it fetches none.
        mirrors: Where packs are asked for before the run's own mirrors and the coordinator.
        is_personal: Whether it makes an adapter of its own after each run.
        rank_budget: R of that one; None: as many as memory allows.
        is_until_finished: Whether the client ends when the runs it joined are over; it waits for
            the next one else.
    """

    url: str
    token: str
    name: str
    data: Path
    base: Base
    engine: str = "auto"
    budget_bytes: int | None = None
    cache_bytes: int = 256 << 20
    version: str = ""
    wait_s: float = 25.0
    patience_s: float = 10.0
    out: Path | None = None
    dialect: Dialect = PLAIN
    device: str = CPU
    grace_s: float = 120.0
    parting_s: float = 60.0
    verify: ssl.SSLContext | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    rules: Rules = field(default_factory=Rules)
    packs: Shelf | None = None
    mirrors: tuple[PackSource, ...] = ()
    is_personal: bool = False
    rank_budget: int | None = None
    is_until_finished: bool = False

    def on_base(self, base_id: str) -> "Settings":
        """The same with the run's base, where that is a pack that was fetched."""
        if base_id == self.base.base_id or self.packs is None:
            return self
        found = self.packs.base(base_id)
        return self if found is None else replace(self, base=found)


@dataclass(frozen=True)
class Summary:
    """What one life of a client did.

    Attributes:
        device_id: Its id, which no name changes.
        name: What people call it at the coordinator.
        works: Pieces of work done.
        failures: Pieces of work that failed.
        runs: Names of the runs that were finished meanwhile, and whose adapter is here.
        adapter: Folder of the last one's adapter; empty where there is none.
        is_stopped: Whether it was told to end, by SIGTERM or Ctrl-C.
        personal: Folder of the adapter of its own; empty where none was made.
    """

    device_id: str
    name: str
    works: int
    failures: int
    runs: tuple[str, ...] = ()
    adapter: str = ""
    is_stopped: bool = False
    personal: str = ""

"""The TLS of a coordinator that serves: checked at its start, and renewed while it runs."""

import asyncio.constants
import asyncio.sslproto
import logging
from datetime import datetime, timedelta
from pathlib import Path

from coordinator.trust.checks import check, load, server_context, valid_until, warnings
from coordinator.trust.folder import TrustError, ca_of, folder_of, is_there

BETWEEN_WARNINGS = timedelta(days=1)
BETWEEN_TRIES = timedelta(seconds=10)  # of files that were refused and are the same still
FILES = ("server.pem", "server.key", "ca.pem", "address.json")
# asyncio keeps a buffer of 256 KiB for each TLS connection from Python 3.11 on: measured, 278 KiB
# for each device that waits, and 55 KiB with this one. A TLS record is 16 KiB.
BUFFER_BYTES = 8 << 10
# What a connection may hold that its device has not read, or the application has not taken, in KiB.
# OpenSSL's buffers never shrink: what one transfer needed, an idle connection goes on holding.
MOST_HELD_KIB = 64
LOG = logging.getLogger(__name__)


class Secured:
    """What a store's certificates let a server do.

    Args:
        store: Its folder, which has certificates.
        now: The time.

    Raises:
        TrustError: Every device would refuse them; says why.

    Attributes:
        trust: What the folder held at the start.
        context: What connections are opened with; it serves renewed certificates from `look` on.
    """

    def __init__(self, store: Path, now: datetime) -> None:
        self._folder = folder_of(store)
        stamp = self._stamp()  # before they are read: what changes meanwhile is looked at again
        try:
            self.trust = check(self._folder, now)
            self.context = server_context(self._folder)
        except TrustError as error:
            raise TrustError(f"{self._folder}: {error}") from error
        self._seen = stamp
        self._refused: tuple[int, ...] = ()
        self._tried_at = now
        self._told_at: datetime | None = None

    @property
    def ca(self) -> str:
        """What devices are given as --ca."""
        return ca_of(self.trust)

    def look(self, now: datetime) -> None:
        """Take a certificate that was renewed meanwhile; tell once a day what will go wrong."""
        stamp = self._stamp()
        if stamp != self._seen and not self._take(stamp, now):
            return
        if self._told_at is None or now - self._told_at >= BETWEEN_WARNINGS:
            self._told_at = now
            try:
                told = list(warnings(self._folder, self.trust, now))
            except TrustError as error:  # its files are being written, or are gone
                told = [f"the certificate in {self._folder} cannot be looked at: {error}"]
            for line in told:
                LOG.warning("%s", line)

    def _take(self, stamp: tuple[int, ...], now: datetime) -> bool:
        """Serve what the folder holds now; whether that could be done."""
        if stamp == self._refused and now - self._tried_at < BETWEEN_TRIES:
            return False
        self._tried_at = now
        try:
            trust = check(self._folder, now)
            load(self.context, self._folder)
        except TrustError as error:  # a half of a pair may have come, and the other come later
            if stamp != self._refused:
                LOG.warning("the certificate of before is served on: %s", error)
            self._refused = stamp
            return False
        self.trust, self._seen, self._refused, self._told_at = trust, stamp, (), None
        until = valid_until(trust.server.certificate)
        LOG.info("a new certificate is served, valid until %s", f"{until:%Y-%m-%d}")
        return True

    def _stamp(self) -> tuple[int, ...]:
        """When each file was written; 0 for one that is not there."""
        return tuple(_written_ns(self._folder / name) for name in FILES)


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def secured(store: Path, now: datetime) -> Secured | None:
    """The TLS of a store; None where it has no certificates."""
    return Secured(store, now) if is_there(store) else None


def spare_memory() -> None:
    """Let each TLS connection of asyncio's keep small buffers."""
    for way in ("READ", "WRITE"):
        name = f"FLOW_CONTROL_HIGH_WATER_SSL_{way}"
        if hasattr(asyncio.constants, name):
            setattr(asyncio.constants, name, MOST_HELD_KIB)
    if hasattr(asyncio.sslproto.SSLProtocol, "max_size"):
        setattr(asyncio.sslproto.SSLProtocol, "max_size", BUFFER_BYTES)  # noqa: B010

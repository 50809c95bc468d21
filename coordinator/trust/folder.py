"""STORE/tls/: the coordinator's authority, its certificate, and the address devices were told.

ca.pem       the certificate of the authority; none where devices trust those of their system
ca.key       its key (0600); none where the certificate was given
server.pem   the coordinator's certificate and those between it and the authority
server.key   its key (0600)
address.json host and port that devices were told

The folder appears at once and whole. A renewal writes the key before the certificate; what is cut
in between is told when it is served, and mended by renewing again.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.trust.authority import Pair
from edge_client.errors import WrongInput
from edge_client.files import from_json, sync_folder, write_atomically
from edge_client.wire.pins import pin_of

NAME = "tls"
PRIVATE = 0o600


class TrustError(WrongInput):
    """Certificates or keys that cannot be used."""


@dataclass(frozen=True)
class Address:
    """What devices were told.

    Attributes:
        host: A name or an address.
        port: TCP port.
    """

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"


@dataclass(frozen=True)
class Trust:
    """All that STORE/tls/ holds.

    Attributes:
        address: What devices were told.
        server: The coordinator's certificate with its chain, and its key.
        authority: Its certificate; None where devices trust those of their system.
        authority_key: Of an authority that was made here.
    """

    address: Address
    server: Pair
    authority: bytes | None = None
    authority_key: bytes | None = None


def ca_of(trust: Trust) -> str:
    """What devices are given as --ca: the authority's pin, or that of their system."""
    return "system" if trust.authority is None else pin_of(trust.authority)


def folder_of(store: Path) -> Path:
    return store / NAME


def is_there(store: Path) -> bool:
    """Whether a store has certificates."""
    try:
        return folder_of(store).is_dir()
    except OSError:  # no folder can be called so
        return False


def put(store: Path, trust: Trust, look: Callable[[Path], object]) -> None:
    """Write certificates: at once where there are none, file by file over those of before.

    Args:
        store: The store.
        trust: What is written.
        look: Called with a folder that holds them before they count; what it raises stops them.

    Raises:
        TrustError: The folder cannot be written.
    """
    final = folder_of(store)
    part = final.with_name(f"{NAME}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        _write(part, trust)
        look(part)
        if final.is_dir():
            _write(final, trust)
        else:
            part.rename(final)
            sync_folder(store)
    except OSError as error:
        raise TrustError(f"cannot write {final}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(folder: Path, trust: Trust) -> None:
    address = json.dumps({"host": trust.address.host, "port": trust.address.port})
    files = {
        "ca.key": trust.authority_key,
        "ca.pem": trust.authority,
        "server.key": trust.server.key,
        "address.json": address.encode(),
        "server.pem": trust.server.certificate,
    }
    for name, body in files.items():
        if body is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_atomically(folder / name, body, PRIVATE)


def read(folder: Path) -> Trust:
    """What such a folder holds; nothing in it is looked at yet.

    Raises:
        TrustError: A part of it is missing or cannot be read.
    """

    def maybe(name: str) -> bytes | None:
        return (folder / name).read_bytes() if os.path.lexists(folder / name) else None

    try:
        told = from_json((folder / "address.json").read_bytes(), dict[str, Any])
        address = Address(str(told["host"]), int(told["port"]))
        server = Pair((folder / "server.pem").read_bytes(), (folder / "server.key").read_bytes())
        return Trust(address, server, maybe("ca.pem"), maybe("ca.key"))
    except OSError as error:
        reason = f"{Path(error.filename).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError):
        reason = "address.json is damaged"
    raise TrustError(f"{reason}; restore the folder from a backup of the store")

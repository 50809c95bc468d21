"""STORE/tls/: the coordinator's certificate authority, its certificate, and its address.

ca.pem       the authority's certificate; absent where devices trust their system's authorities
ca.key       its key (0600); absent where the certificate was given
server.pem   the coordinator's certificate and any intermediate ones
server.key   its key (0600)
address.json host and port that devices were told

The folder appears complete, by one rename. A renewal writes the key before the certificate; an
interruption in between is reported when it is served, and repaired by renewing again.

The own authority is EC P-256. Devices trust it alone, so its name does not matter. Certificates
follow RFC 5280 as OpenSSL's strict mode checks it, the default from Python 3.13 on.
"""

import ipaddress
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.files import PRIVATE, from_json, sync_folder, write_atomically
from smidgen.edge_client.wire.pins import pin_of

AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
# Valid from a day ago: a board without a clock of its own starts a little in the past.
BEFORE = timedelta(days=1)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"


class HostError(WrongInput):
    """A name that no certificate can be for."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both PEM; the key has no password."""

    certificate: bytes
    key: bytes


def draw_authority(now: datetime, days: int = AUTHORITY_DAYS) -> Pair:
    """A new authority that signs certificates of servers, and no other authority's."""
    key = ec.generate_private_key(ec.SECP256R1())
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # Another name for each: of a stranger's, OpenSSL then says that its issuer is not known.
    name = _name(f"smidgen coordinator CA {own_id.digest.hex()[:8]}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    built = (
        _certificate(name, name, key.public_key(), now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(own_id, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(built), _key_pem(key))


def sign_server(authority: Pair, names: Sequence[str], now: datetime, days: int) -> Pair:
    """A certificate for these names and for loopback; the authority's own follows in its file.

    It ends no later than its authority.

    Raises:
        HostError: Something is neither a host name nor an address.
    """
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    every = dict.fromkeys([*names, *LOOPBACK])
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    server_alone = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    built = (
        _certificate(_name("smidgen coordinator"), issuer.subject, key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(server_alone, critical=False)
        .add_extension(x509.SubjectAlternativeName([_san(name) for name in every]), critical=False)
        .add_extension(own_id, critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return Pair(_pem(built) + authority.certificate, _key_pem(key))


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(until)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _san(name: str) -> x509.GeneralName:
    """What a certificate calls a host.

    Raises:
        HostError: It is neither a host name nor an address.
    """
    shown = repr(name.rpartition("@")[2][:80])  # what stands before may be a password
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return x509.DNSName(_dns(name, shown))
    is_one = not address.is_unspecified and "%" not in name
    demand(is_one, f"--host {shown}: an address that devices can reach is expected", HostError)
    return x509.IPAddress(address)


def _dns(name: str, shown: str) -> str:
    try:
        host = name.encode("idna").decode().lower()
    except UnicodeError:
        host = ""
    is_host = len(host) <= 253 and re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", host) is not None
    demand(
        is_host, f"--host {shown}: a host name or an address without port is expected", HostError
    )
    return host


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


NAME = "tls"


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

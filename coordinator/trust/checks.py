"""TLS checks before certificates are served, and renewal while serving.

Finds what devices would reject. Dates and keys are read here; whether a certificate leads to its
authority and fits a host name is asked of OpenSSL by a handshake in memory, as each device will.
Errors name files, not folders. Also here: under which address devices reach this machine, and
whether a host is loopback.
"""

import asyncio.constants
import asyncio.sslproto
import ipaddress
import logging
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from smidgen.coordinator.trust.folder import Trust, TrustError, ca_of, folder_of, is_there, read
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.wire import pins

NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME; ssl has no name for it
OTHER_NAME = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH, .._IP_ADDRESS_MISMATCH


def server_context(folder: Path) -> ssl.SSLContext:
    """A context that serves the certificate of a folder, by TLS 1.2 or later.

    Raises:
        TrustError: Certificate or key cannot be used, or are not of each other.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # no device resumes a session, and kept ones would only grow
    load(context, folder)
    return context


def load(context: ssl.SSLContext, folder: Path) -> None:
    """Let a context serve the certificate of a folder from now on.

    Raises:
        TrustError: Certificate or key cannot be used, or are not of each other.
    """
    certificate, key = folder / "server.pem", folder / "server.key"
    try:
        demand(
            b"ENCRYPTED" not in key.read_bytes(),
            f"{key.name} is locked by a password; give a key without one",
            TrustError,
        )
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise TrustError(_unusable(error)) from error
    except OSError as error:
        raise TrustError(f"{key.name}: {error.strerror}") from error


def _unusable(error: ssl.SSLError) -> str:
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return "server.key is not the key of server.pem; `init --renew` makes a new pair"
    return f"server.pem with server.key cannot be used: {error.reason or error}"


def check(folder: Path, now: datetime) -> Trust:
    """Refuse certificates that every device would refuse.

    Raises:
        TrustError: Expired or not valid yet, no certificate, of another key or authority.
    """
    trust = read(folder)
    check_dates(_all(trust), now)
    context, names = server_context(folder), names_of(trust.server.certificate)
    demand(bool(names), "server.pem is for no host; a subjectAltName is expected", TrustError)
    if trust.authority is not None:
        found = objection(context, trust.authority, names[0].replace("*", "any"))
        why = found.verify_message if found is not None else ""
        demand(
            found is None,
            f"server.pem does not lead to the CA ca.pem ({why}); server.pem needs the "
            "certificates between the two as well",
            TrustError,
        )
    return trust


def is_for(folder: Path, trust: Trust) -> bool:
    """Whether the certificate is for the host that devices were told."""
    own = ssl.DER_cert_to_PEM_cert(pins.certificates(trust.server.certificate)[0]).encode()
    found = objection(server_context(folder), own, trust.address.host)
    return found is None or found.verify_code not in OTHER_NAME


def warnings(folder: Path, trust: Trust, now: datetime) -> Iterator[str]:
    """What is not wrong yet, or only for some devices."""
    if not is_for(folder, trust):
        names = ", ".join(names_of(trust.server.certificate))
        yield (
            f"devices were told {trust.address.host}, but the certificate is for {names}: they "
            "will refuse it; `smidgen coordinator init --renew --host NAME` makes another"
        )
    until = valid_until(trust.server.certificate)
    if until - now < timedelta(days=30):
        yield (
            f"the certificate is valid for {(until - now).days} more days, then devices refuse "
            "it; `smidgen coordinator init --renew` makes another"
        )


def objection(
    server: ssl.SSLContext, authority: bytes, host: str
) -> ssl.SSLCertVerificationError | None:
    """What a device that believes an authority says to a server; dates are not looked at."""
    device = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    device.load_verify_locations(cadata=authority.decode("ascii", "replace"))
    flags = NO_CHECK_TIME | ssl.VERIFY_X509_PARTIAL_CHAIN
    device.verify_flags = ssl.VerifyFlags(device.verify_flags | flags)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(there, back, server_side=True)
    ours = device.wrap_bio(back, there, server_hostname=host)
    try:
        for _ in range(8):  # of a handshake; TLS 1.2 has four
            for side in (ours, theirs):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        return error
    return None


def names_of(chain: bytes) -> list[str]:
    """The hosts that the first certificate of a PEM file is for."""
    leaf = certificates(chain)[0]
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def valid_until(chain: bytes) -> datetime:
    return certificates(chain)[0].not_valid_after_utc


def certificates(pem: bytes) -> list[x509.Certificate]:
    """The certificates of a PEM file.

    Raises:
        ValueError: There are none, or one of them is not a certificate.
    """
    return x509.load_pem_x509_certificates(pem)


def _all(trust: Trust) -> Iterator[tuple[str, x509.Certificate]]:
    files = {"ca.pem": trust.authority, "server.pem": trust.server.certificate}
    for name, body in files.items():
        try:
            found = certificates(body) if body is not None else []
        except ValueError as error:
            raise TrustError(f"{name} holds no certificate ({error})") from error
        yield from ((name, certificate) for certificate in found)


def check_authority(trust: Trust, now: datetime) -> None:
    """Refuse an authority that is of another time.

    Raises:
        TrustError: Says since when.
    """
    check_dates((found for found in _all(trust) if found[0] == "ca.pem"), now)


def check_dates(found: Iterable[tuple[str, x509.Certificate]], now: datetime) -> None:
    for name, certificate in found:
        _check_dates(name, certificate, now)


def _check_dates(name: str, certificate: x509.Certificate, now: datetime) -> None:
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    what = f"the {'CA' if name == 'ca.pem' else 'certificate'} {name}"
    demand(
        now >= since,
        f"{what} is valid from {since:%Y-%m-%d %H:%M} UTC on, and this machine's clock says "
        f"{now:%Y-%m-%d %H:%M}; set the clock, or give another one",
        TrustError,
    )
    mend = (
        "move the folder away, `smidgen coordinator init`, and give every device the new --ca"
        if name == "ca.pem"
        else "`smidgen coordinator init --renew` makes another, which devices believe as before"
    )
    demand(now < until, f"{what} has expired on {until:%Y-%m-%d}; {mend}", TrustError)


def own_address() -> str | None:
    """The address of the way out of this machine; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address kept for documentation
        return str(probe.getsockname()[0])
    return None


def names_loopback(host: str) -> bool:
    """Whether a host is loopback by what it says, without asking anybody."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches a host that is listened on."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True  # it cannot be listened on, which is told then
    return all(ipaddress.ip_address(str(entry[4][0]).split("%")[0]).is_loopback for entry in found)


def proxy_of(option: str, text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The address or network of a proxy that somebody named.

    Raises:
        WrongInput: It is neither, or every address there is.
    """
    try:
        found = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        found = None
    if found is None or not found.prefixlen:
        shown = text.rpartition("@")[2][:60]  # what stands before may be a password
        raise WrongInput(
            f"{option} {shown!r}: the address of a proxy is expected, such as 127.0.0.1, or its "
            "network, such as 10.0.0.0/24"
        )
    return found


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
        return ca_of(self.trust)

    def look(self, now: datetime) -> None:
        """Take a certificate that was renewed meanwhile; tell once a day what will go wrong."""
        stamp = self._stamp()
        if stamp != self._seen and not self._take(stamp, now):
            return
        if self._told_at is None or now - self._told_at >= timedelta(days=1):
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

"""What devices would object to in a coordinator's certificates, found before they are served.

Dates and keys are read here; whether a certificate leads to its authority and is for a name is
asked of OpenSSL by a handshake in memory, as each device will. Errors name files, not folders.

Where devices find this machine, and whether a host is this machine alone.
"""

import ipaddress
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from coordinator.trust.folder import Trust, TrustError, read
from edge_client.errors import WrongInput, demand
from edge_client.wire import pins

SOON = timedelta(days=30)
NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME; ssl has no name for it
FLIGHTS = 8  # of a handshake; TLS 1.2 has four
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
    if until - now < SOON:
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
        for _ in range(FLIGHTS):
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
    """When the first certificate of a PEM file ends."""
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
        raise WrongInput(
            f"{option} {text[:60]!r}: the address of a proxy is expected, such as 127.0.0.1, or "
            "its network, such as 10.0.0.0/24"
        )
    return found

"""TLS trust: which certificate authority a device accepts for its coordinator.

Either a single authority, pinned by fingerprint (`--ca sha256:HEX`) or given as a file, or, for a
public certificate such as a proxy's, the system's authorities. The pin is kept in the state folder.
The coordinator is verified before anything is sent, so that no stranger gets the token or key.
"""

import logging
import ssl
import time
from pathlib import Path

import httpx

from smidgen.edge_client.client.connection import (
    TOO_EARLY,
    Unreachable,
    address,
    http_client,
    is_coordinators,
    is_loopback,
    no_answer,
    objection,
    reached,
)
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.files import write_atomically
from smidgen.edge_client.wire.pins import (
    CA_PATH,
    MAX_CA_BYTES,
    PREFIX,
    certificates,
    certificates_alone,
    pin_of,
    read_pin,
)

SYSTEM = "system"
KEPT, IDENTITY = "ca.pem", "device.json"  # in the state folder
LOOK_S = 10.0
UNPACKED = {"Accept-Encoding": "identity"}  # a compressed answer would not be read
# OpenSSL's X509_V_ERR_...: CERT_HAS_EXPIRED, and names that do not match.
EXPIRED, OTHER_NAME = 10, (62, 64)
log = logging.getLogger(__name__)


class TrustError(WrongInput):
    """A coordinator that this device cannot believe, or that it cannot be told to."""


class NotBelieved(Failed):
    """A coordinator that cannot be believed now, as the device was set up: that may pass.

    A certificate will be renewed, a clock set, a stranger at the address go away.
    """


def trusted(
    url: str, ca: str, state: Path, patience_s: float, is_plain_fine: bool = False
) -> ssl.SSLContext | None:
    """Settle whose certificates are believed, and look whether the coordinator has one of them.

    Args:
        url: The coordinator's.
        ca: `sha256:HEX`, a file with the authority's certificate, `system`, or empty: as before.
        state: The device's folder, where the authority is kept.
        patience_s: How long the coordinator may be absent if its authority is asked of it.
        is_plain_fine: Whether plain HTTP may go to another machine.

    Returns:
        What every connection is verified by; None for plain HTTP.

    Raises:
        TrustError: Plain HTTP to another machine, no such authority, or at the first start a
            coordinator that shows a certificate of another one, for another name, or expired.
        NotBelieved: A later start finds such a coordinator, or any finds a certificate that is
            not valid yet.
        Unreachable: The authority had to be asked for, and nobody answered.
        ProxyError: A proxy of the environment cannot be used.
    """
    parsed = address(url)
    if parsed.scheme == "http":
        demand(
            ca == "", f"--ca says whom to believe over https://; {url} is plain HTTP", TrustError
        )
        demand(
            is_plain_fine or is_loopback(parsed.host),
            f"{url} is plain HTTP to another machine: everybody in between could read the token "
            "and change what comes; give https://, or --plain-http if that is meant",
            TrustError,
        )
        return None
    is_set_up = (state / KEPT).exists() or (state / IDENTITY).exists()
    kind: type[Exception] = NotBelieved if is_set_up else TrustError
    authority = _authority(url, ca, state, patience_s, kind)
    context = _context(authority, state)
    _look(url, context, authority, kind)
    return context


def _authority(
    url: str, ca: str, state: Path, patience_s: float, kind: type[Exception]
) -> bytes | None:
    """The certificate of the one authority that is believed, PEM; None: those of the system."""
    kept = state / KEPT
    if ca == SYSTEM:
        kept.unlink(missing_ok=True)
        return None
    if ca == "":
        return _read(f"{kept}, which holds the coordinator's CA,", kept) if kept.exists() else None
    if ca.startswith(PREFIX):
        pin = read_pin(ca)
        demand(pin is not None, f"--ca {ca[:80]!r}: sha256: and 64 hexadecimal digits", TrustError)
        assert pin is not None
        if kept.exists() and (body := kept.read_bytes()) and _pin_or_none(body) == pin:
            return body
        body = reached(lambda: _shown(url, kind), patience_s)
        _check_shown(url, body, pin, kind)
    else:
        body = _read(f"--ca {ca}", Path(ca))
    try:
        write_atomically(kept, certificates_alone(body), 0o600)  # a file may hold keys, too
    except OSError as error:
        raise TrustError(f"{kept} cannot be written: {error.strerror}") from error
    return certificates_alone(body)


def _read(what: str, path: Path) -> bytes:
    try:
        body = path.read_bytes()
        demand(bool(certificates(body)), f"{what} holds no certificate", TrustError)
        return body
    except (OSError, ValueError) as error:
        if isinstance(error, TrustError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "holds no certificate"
        ways = "sha256:HEX, a file with a certificate, or `system` is expected"
        raise TrustError(f"{what}: {reason}; for --ca, {ways}") from error


def _pin_or_none(body: bytes) -> str | None:
    try:
        return pin_of(body)
    except ValueError:
        return None


def _context(authority: bytes | None, state: Path) -> ssl.SSLContext:
    if authority is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the authority may itself be signed
    try:
        context.load_verify_locations(cadata=authority.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise TrustError(
            f"{state / KEPT} holds no certificate that OpenSSL reads; give --ca again"
        ) from error
    return context


def _shown(url: str, kind: type[Exception] = TrustError) -> bytes:
    """The authority's certificate as somebody at the address shows it; nobody vouches for it.

    Raises:
        Unreachable: No coordinator answers there.
        Exception: Of that kind; it shows none.
    """
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    body = b""
    try:
        with (
            http_client(url, anybody, timeout=LOOK_S, headers=UNPACKED) as http,
            http.stream("GET", CA_PATH) as response,
        ):
            if response.status_code >= 500 or not is_coordinators(response):
                raise Unreachable(
                    f"{url} answered {response.status_code}, and not as a coordinator; check "
                    "--coordinator, or what stands in between"
                )
            for part in response.iter_raw(4096):
                body += part
                if len(body) > MAX_CA_BYTES:
                    break
    except httpx.RequestError as error:
        _check_speaks_tls(url, error, kind)
        raise no_answer(url, error) from error
    is_there = response.status_code == 200 and _pin_or_none(body) is not None
    demand(
        is_there,
        f"{url} shows no CA of its own (HTTP {response.status_code}); check --coordinator, or give "
        "--ca system or the CA's file",
        kind,
    )
    return body


def _check_shown(url: str, body: bytes, pin: str, kind: type[Exception]) -> None:
    shown = pin_of(body)
    demand(
        shown == pin,
        f"{url} shows the CA {shown}, not --ca {pin}: check the line that `smidgen coordinator "
        "init` printed; if it says the same, somebody else answers there",
        kind,
    )


def _look(
    url: str, context: ssl.SSLContext, authority: bytes | None, kind: type[Exception]
) -> None:
    """Refuse a coordinator that cannot be believed; one that is absent is waited for later.

    Raises:
        NotBelieved: The clock is behind; at a first start, too, which may be a board's.
        Exception: Of that kind; says what is wrong with it, and what to do.
    """
    try:
        with http_client(url, context, timeout=LOOK_S) as http:
            http.head(CA_PATH)
    except httpx.RequestError as error:
        _check_speaks_tls(url, error, kind)
        if (found := objection(error)) is not None:
            kind = NotBelieved if found.verify_code == TOO_EARLY else kind
            raise kind(_in_words(url, found, context, authority)) from error
        log.debug("%s is not there: %s", url, error)


def _check_speaks_tls(url: str, error: Exception, kind: type[Exception]) -> None:
    """Refuse what answers a TLS handshake with something else.

    Raises:
        Exception: Of that kind; it speaks plain HTTP, it seems.
    """
    plain = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
    if any(word in str(error).upper().replace(" ", "_") for word in plain):
        raise kind(f"{url} does not speak TLS; check the port, or `smidgen coordinator init` there")


def _in_words(
    url: str,
    found: ssl.SSLCertVerificationError,
    context: ssl.SSLContext,
    authority: bytes | None,
) -> str:
    clock = f"this device's clock says {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC"
    if found.verify_code == TOO_EARLY:
        return f"{url} shows a certificate that is not valid yet, and {clock}; set the clock"
    if found.verify_code == EXPIRED:
        return f"{url} shows {_expired(context, authority)}; {clock}: set it if that is wrong"
    if found.verify_code in OTHER_NAME:
        return (
            f"{url} shows a certificate for another name ({found.verify_message}); give "
            "--coordinator as it was printed there, or `smidgen coordinator init --renew --host "
            "NAME` there"
        )
    if authority is None:
        return (
            f"{url} shows a certificate that this system does not believe ("
            f"{found.verify_message}); give --ca sha256:HEX as `smidgen coordinator init` printed"
        )
    return _other_authority(url, authority)


def _expired(context: ssl.SSLContext, authority: bytes | None) -> str:
    ends = [str(one["notAfter"]) for one in context.get_ca_certs()] if authority else []
    if any(ssl.cert_time_to_seconds(end) < time.time() for end in ends):
        return "a CA that has expired: its operator has to `init` again and give a new --ca"
    return "a certificate that has expired: `smidgen coordinator init --renew` there"


def _other_authority(url: str, authority: bytes) -> str:
    """What to say of a certificate that the kept authority has not signed."""
    mine = _pin_or_none(authority)
    try:
        shown = _pin_or_none(_shown(url))
    except (TrustError, Unreachable):
        shown = None
    if mine is None or shown is None or shown == mine:
        return (
            f"{url} shows a certificate that the CA {mine or 'of --ca'} has not signed: somebody "
            "else answers there, or its certificate is of another CA; nothing was sent"
        )
    return (
        f"{url} shows the CA {shown}, this device believes {mine} alone: if its operator says that "
        f"the first is right, start once with --ca {shown}; if not, somebody else answers there"
    )

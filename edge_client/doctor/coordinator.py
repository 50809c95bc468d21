"""Checks that the coordinator answers and is trusted; sends no token or key, stores nothing."""

import shutil
import ssl
import time
from collections.abc import Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from smidgen.edge_client.client.connection import Connection, TransportError, address
from smidgen.edge_client.client.trust import KEPT, LOOK_S, NotBelieved, TrustError, trusted
from smidgen.edge_client.doctor.machine import ERROR, OK, UNKNOWN, WARNING, Finding
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.proxies import ProxyError
from smidgen.edge_client.tables import span
from smidgen.edge_client.wire.pins import CA_PATH

CHECK, CLOCK = "coordinator", "coordinator's clock"
SOON_S = 14 * 86400.0  # until a certificate expires
DO_SO = "do as that says; neither token nor key was sent"
NOBODY = "is `smidgen coordinator serve` running there, and is the network up?"
SET_CLOCK = "set the clock of this device, or the coordinator's: certificates are dated"


def read_coordinator(
    url: str, ca: str, state: Path, is_plain_fine: bool, now_s: float
) -> Sequence[Finding]:
    """Reach for a coordinator as a client would at its start.

    Args:
        url: The coordinator's.
        ca: See `smidgen.edge_client.client.trust.trusted`; empty: what the state folder holds.
        state: The client's state folder, which is not changed.
        is_plain_fine: Whether plain HTTP may go to another machine.
        now_s: What this device's clock says.

    Raises:
        AddressError: The URL is not one.
    """
    address(url)
    try:
        with TemporaryDirectory(prefix="smidgen-doctor-") as folder:
            return _looked(url, ca, state, Path(folder), is_plain_fine, now_s)
    except OSError as error:
        told = f"{state / KEPT} cannot be read, or no copy be made: {error.strerror}"
        return [Finding(CHECK, UNKNOWN, told, "run it as the client's user")]


def _looked(
    url: str, ca: str, state: Path, copy: Path, is_plain_fine: bool, now_s: float
) -> Sequence[Finding]:
    if (state / KEPT).exists():
        shutil.copyfile(state / KEPT, copy / KEPT)
    try:
        context = trusted(url, ca, copy, 0.0, is_plain_fine)
        opened = Connection(url, "", LOOK_S, context)
    except (TrustError, NotBelieved, ProxyError) as error:
        return [Finding(CHECK, ERROR, str(error).replace(str(copy), str(state)), DO_SO)]
    except TransportError as error:
        return [Finding(CHECK, ERROR, str(error), NOBODY)]
    with closing(opened) as connection:
        try:
            with connection.asking("GET", CA_PATH, WorkMeter(), takes=(404,)) as response:
                return [_certificate(url, response, now_s), _clock(response, now_s)]
        except TransportError as error:
            return [Finding(CHECK, ERROR, str(error), NOBODY)]


def _certificate(url: str, response: httpx.Response, now_s: float) -> Finding:
    stream = response.extensions.get("network_stream")
    tls = stream.get_extra_info("ssl_object") if stream else None
    if url.startswith("http:"):
        return Finding(CHECK, OK, f"{url} answers, in plain HTTP")
    ends = str((tls.getpeercert() or {}).get("notAfter", "")) if tls else ""
    if not ends:
        return Finding(CHECK, OK, f"{url} answers, and its certificate is believed")
    ends_s = float(ssl.cert_time_to_seconds(ends))
    day = time.strftime("%Y-%m-%d", time.gmtime(ends_s))
    shown = f"{url} answers, and its certificate is believed until {day}"
    if ends_s - now_s < SOON_S:
        return Finding(CHECK, WARNING, shown, "smidgen coordinator init --renew, there")
    return Finding(CHECK, OK, shown)


def _clock(response: httpx.Response, now_s: float) -> Finding:
    """This device's clock beside the answer's own date."""
    try:
        theirs_s = parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return Finding(CLOCK, UNKNOWN, "its answer has no date", "compare the two clocks yourself")
    apart_s = abs(now_s - theirs_s)
    if apart_s > 300.0:  # between two clocks
        return Finding(CLOCK, WARNING, f"{span(apart_s)} from this device's", SET_CLOCK)
    return Finding(CLOCK, OK, f"{span(apart_s)} from this device's")

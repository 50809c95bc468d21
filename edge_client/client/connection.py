"""HTTP connection to a coordinator: requests, error classes, and size limits on responses.

The header `Smidgen-Protocol` marks a coordinator's own responses, as opposed to those of a proxy, a
login page or a stranger. A lost connection, a timeout, a 5xx and any foreign response raise
`Unreachable`, to be retried (`patiently`); a 4xx of the coordinator's own raises `Refused`.
Responses are never decompressed, since none is requested compressed.

Retries: which errors are waited out, with full jitter or the pause that the server asks for.

    given = patiently(lambda: coordinator.report(report, meter), math.inf)

Full jitter draws each pause between 0 and a bound that doubles, so devices that lost a coordinator
at the same moment do not return at the same moment.
"""

import ipaddress
import json
import logging
import math
import random
import re
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias, TypeVar

import httpx

from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.metering.work import Traffic, WorkMeter
from smidgen.edge_client.proxies import named_proxies
from smidgen.edge_client.wire.messages import MAX_JSON_BYTES, OWN, Message, WireError, decode

log = logging.getLogger(__name__)
Given = TypeVar("Given", bound=object)

FIRST_PAUSE_S = 0.2  # the longest that the first pause can be
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 600.0  # what a server may ask for; it would be taken for gone otherwise
SPREAD = 0.25  # of what was asked for, over which those who were asked come back
PASSING = (408, 425, 429)  # of 4xx: come again later


class TransportError(Failed):
    """The coordinator could not be asked, or did not give what was asked for."""


class Unreachable(TransportError):
    """The coordinator cannot be reached now, or what answers is not a coordinator.

    Args:
        message: For people.
        asked_s: For how long the server asked to be left alone.
        status: The HTTP status that something else than the coordinator answered with, or 0.
        is_own: Whether it is the coordinator itself that asks to come again.

    Attributes:
        is_further: Whether a part of what was to be moved has arrived since the last try.
        is_absent: Whether nobody could be connected to, in no try.
        is_body_alone: Whether the coordinator was heard just before: what did not get through is
            the body alone.
    """

    def __init__(
        self, message: str, asked_s: float = 0.0, status: int = 0, is_own: bool = False
    ) -> None:
        super().__init__(message)
        self.asked_s, self.status, self.is_own = asked_s, status, is_own
        self.is_further = self.is_absent = self.is_body_alone = False


class Refused(TransportError):
    """The coordinator answered with a 4xx and a reason of its own.

    Args:
        status: The HTTP status.
        detail: The coordinator's reason.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def asked_pause_s(headers: Mapping[str, str], now: datetime) -> float:
    """How long `Retry-After` asks to wait: 0 to `LONGEST_ASKED_S`; 0 where it says nothing.

    A date is compared with the answer's own `Date`: a board without a battery has no clock at boot.

    Args:
        headers: Of an answer, found whatever their case.
        now: Where the answer has no date.
    """
    said = headers.get("Retry-After", "").strip()
    if re.fullmatch("[0-9]{1,10}", said):
        return min(float(said), LONGEST_ASKED_S)
    until, since = _date(said), _date(headers.get("Date", "")) or now
    left_s = (until - since).total_seconds() if until else 0.0
    return min(max(left_s, 0.0), LONGEST_ASKED_S)


def _date(said: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(said)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def pause_s(
    failures: int, asked_s: float, uniform: Callable[[float, float], float] = random.uniform
) -> float:
    """How long to wait before the next try: what was asked for, and up to a growing bound more.

    Where everybody was asked to come again in 20 s, they come within the 5 s after that.

    Args:
        failures: Tries that failed one after the other, 1 or more.
        asked_s: What the server asked for.
        uniform: Draws between two numbers.
    """
    longest_s = max(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16), asked_s * SPREAD)
    return asked_s + uniform(0.0, min(longest_s, LONGEST_PAUSE_S))


def reached(call: Callable[[], Given], patience_s: float) -> Given:
    """As `patiently`, for the first words to a coordinator; says what to do if nobody is there.

    Args:
        call: See `patiently`.
        patience_s: What `--patience` says, or infinity.
    """
    try:
        return patiently(call, patience_s)
    except Unreachable as error:
        if not error.is_absent:
            raise
        unreachable = Unreachable(
            f"{error}; is the network up, and `smidgen coordinator serve` running there? "
            "--patience SECONDS waits longer"
        )
        unreachable.is_absent = True
        raise unreachable from error


def patiently(call: Callable[[], Given], give_up_after_s: float) -> Given:
    """Call until somebody answers.

    Args:
        call: Raises `Unreachable` when it should be tried again.
        give_up_after_s: Seconds after which the last `Unreachable` is raised; infinity for ever.
    """
    start, failures, is_told, is_absent = time.monotonic(), 0, False, True
    while True:
        try:
            given = call()
        except Unreachable as error:
            is_absent = error.is_absent = is_absent and error.is_absent
            left_s = give_up_after_s - (time.monotonic() - start)
            if left_s <= 0:
                raise
            if not is_told:
                until = f"for {give_up_after_s:g} s" if left_s < math.inf else "until it answers"
                log.warning("%s; trying again %s", error, until)
                is_told = True
            failures = 1 if error.is_further else failures + 1
            wait_s = pause_s(failures, error.asked_s)
        else:
            if is_told:
                log.info("connected again after %.0f s", time.monotonic() - start)
            return given
        time.sleep(min(left_s, wait_s))


TOO_EARLY = 9  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID
Trace: TypeAlias = Callable[[str, Mapping[str, Any]], None]


class AddressError(WrongInput):
    """An address that is not a coordinator's."""


def address(url: str) -> httpx.URL:
    """The address of a coordinator.

    Raises:
        AddressError: The URL is not one.
    """
    before, _, shown = url.rpartition("@")
    if before:  # it would take the place of this device's key, and is not shown
        raise AddressError(
            f"--coordinator {shown!r} has a name or password before it, which is not used; give an "
            "enrolment token by --token or SMIDGEN_TOKEN"
        )
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")  # as connecting will
    except (httpx.InvalidURL, UnicodeError) as error:
        raise AddressError(f"--coordinator {url!r} is not a URL: {error}") from error
    is_place = parsed.scheme in ("http", "https") and parsed.raw_path == b"/" and parsed.host
    port = 1 if parsed.port is None else parsed.port
    if not is_place or parsed.fragment or not 0 < port < 1 << 16:
        raise AddressError(f"--coordinator {url!r}: https://HOST:PORT is expected")
    return parsed


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by what is written; no name is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class _Client(httpx.Client):
    """One whose failures are all of one kind."""

    def send(self, request: httpx.Request, **said: Any) -> httpx.Response:
        """See httpx, which reads where an answer leads to, and raises another kind if that is no
        URL."""
        try:
            return super().send(request, **said)
        except httpx.InvalidURL as error:
            raise httpx.RemoteProtocolError(
                "the answer leads to what is no URL", request=request
            ) from error


def http_client(url: str, verify: ssl.SSLContext, **settings: Any) -> httpx.Client:
    """A client of the HTTP library; what goes to this machine goes through no proxy.

    Elsewhere the environment's proxies are used; through them TLS goes from end to end.

    Raises:
        ProxyError: One of them cannot be used.
    """
    is_proxied = not is_loopback(httpx.URL(url).host)
    with named_proxies():
        return _Client(base_url=url, verify=verify, trust_env=is_proxied, **settings)


def nobody() -> ssl.SSLContext:
    """A context that believes no certificate, for plain HTTP."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def no_answer(url: str, error: httpx.RequestError, is_heard: bool = False) -> Unreachable:
    """What a request that failed says of the coordinator.

    Args:
        url: Its address.
        error: How the request failed.
        is_heard: Whether this address has answered before.
    """
    told = f"no answer from {url}: {error or type(error).__name__}"
    is_plain = httpx.URL(url).scheme == "http"
    if is_plain and not is_heard and isinstance(error, httpx.RemoteProtocolError):
        told += " (if it speaks TLS, give https:// and --ca)"
    unreachable = Unreachable(told)
    # With SSL in its text it is a handshake that failed.
    unreachable.is_absent = "SSL" not in str(error) and isinstance(
        error, (httpx.ConnectError, httpx.ConnectTimeout)
    )
    return unreachable


def objection(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """What is wrong with a certificate, where that is why a request failed."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


class Connection:
    """A connection to a coordinator at a URL, made when it is needed, and again when it is lost.

    Args:
        url: Such as `https://host:8700`.
        key: The device's key.
        timeout_s: Limit on connecting and on every answer but the long poll's.
        verify: Whose certificates are believed, see `smidgen.edge_client.client.trust`; None:
            nobody's.
        trace: Called at each step of each request, as httpcore does it.
        on_asked: Called after each request, whether it was answered or not.

    Raises:
        AddressError: The URL is not one.
        ProxyError: A proxy of the environment cannot be used.

    Attributes:
        url: As it was given.
        traffic: All that went through it, by the kernel.
    """

    def __init__(
        self,
        url: str,
        key: str,
        timeout_s: float,
        verify: ssl.SSLContext | None,
        trace: Trace = lambda _event, _info: None,
        on_asked: Callable[[], None] = lambda: None,
    ) -> None:
        address(url)
        headers = {"User-Agent": "smidgen", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self.url, self.traffic, self._timeout_s, self._trace = url, Traffic(), timeout_s, trace
        self._on_asked = on_asked
        self._is_heard = False  # whether anybody has ever answered there
        self._http = http_client(url, verify or nobody(), timeout=timeout_s, headers=headers)
        for name in ("Accept", "Connection"):  # what they say goes without saying in HTTP/1.1
            del self._http.headers[name]

    def close(self) -> None:
        self._http.close()

    @contextmanager
    def asking(
        self,
        method: str,
        path: str,
        meter: WorkMeter,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        takes: Collection[int] = (),
        wait_s: float = 0.0,
    ) -> Iterator[httpx.Response]:
        """Ask, and let the answer be read inside.

        Args:
            method: Such as `GET`.
            path: From the URL on.
            meter: Counts.
            content: What is sent.
            headers: Beside those that every request has.
            takes: What is an answer too, besides 200 to 299.
            wait_s: How long the server may think before it answers.

        Raises:
            Unreachable: Nobody answers, or not as a coordinator does.
            Refused: The coordinator does not want it.
        """
        request = self._http.build_request(
            method,
            path,
            content=content,
            headers=headers,
            timeout=httpx.Timeout(self._timeout_s, read=wait_s + self._timeout_s),
            extensions={"trace": self._traced},
        )
        try:
            with closing(self._http.send(request, stream=True)) as response:
                self._is_heard = True
                meter.requests += 1
                meter.payload_up_bytes += len(content or b"")
                self._check(response, meter, takes)
                yield response
        except httpx.RequestError as error:
            raise no_answer(self.url, error, self._is_heard) from error
        finally:
            self._on_asked()

    def _traced(self, event: str, info: Mapping[str, Any]) -> None:
        self.traffic.trace(event, info)
        self._trace(event, info)

    def message(
        self,
        method: str,
        path: str,
        meter: WorkMeter,
        kind: type[Message],
        content: bytes | None = None,
        wait_s: float = 0.0,
    ) -> Message:
        """Ask, and decode the answer; an answer that is another thing is nobody's answer."""
        headers = {} if content is None else {"Content-Type": "application/json"}
        with self.asking(method, path, meter, content, headers, wait_s=wait_s) as response:
            return self.decoded(response, meter, kind)

    def decoded(self, response: httpx.Response, meter: WorkMeter, kind: type[Message]) -> Message:
        """Read and decode an answer.

        Raises:
            Unreachable: It is not a coordinator's.
        """
        try:
            return decode(b"".join(pieces(response, meter, MAX_JSON_BYTES)), kind)
        except WireError as error:
            raise Unreachable(f"{self.url} does not answer as a coordinator: {error}") from error

    def _check(self, response: httpx.Response, meter: WorkMeter, takes: Collection[int]) -> None:
        status, asked_s, is_own = response.status_code, 0.0, is_coordinators(response)
        if is_own and (200 <= status < 300 or status in takes):
            return
        if status >= 500 or status in PASSING:
            asked_s = asked_pause_s(response.headers, datetime.now(timezone.utc))
        elif is_own and 400 <= status < 500 and (detail := _detail(response, meter)) is not None:
            raise Refused(status, detail)
        said = f"{self.url} answered {status} to {response.request.method} "
        said += response.request.url.path
        if is_own:
            raise Unreachable(said, asked_s, is_own=True)
        said += f"; that was no coordinator of this protocol but something in between (no {OWN}); "
        said += "check host and port of --coordinator"
        raise Unreachable(said, asked_s, status)


def is_coordinators(response: httpx.Response) -> bool:
    """Whether an answer is a coordinator's own, whatever it says."""
    return OWN in response.headers


def pieces(response: httpx.Response, meter: WorkMeter, most_bytes: int) -> Iterator[bytes]:
    """The body of an answer as it comes.

    Raises:
        WireError: It is longer than it may be, or packed in a way that nobody asked for.
        httpx.RequestError: The connection was lost.
    """
    packed = response.headers.get("Content-Encoding", "identity")
    if packed != "identity":
        raise WireError(f"an answer in {packed[:20]!r}, which was not asked for")
    said = response.headers.get("Content-Length", "")
    length, more = 0, f"an answer of more than {most_bytes} bytes"
    is_told = said.isdecimal() and (len(said) > len(str(most_bytes)) or int(said) > most_bytes)
    demand(not is_told, more, WireError)
    for piece in response.iter_raw():
        meter.payload_down_bytes += len(piece)
        length += len(piece)
        demand(length <= most_bytes, more, WireError)
        yield piece


def _detail(response: httpx.Response, meter: WorkMeter) -> str | None:
    """The reason of a refusal, safe to show; None where it is not a coordinator that refuses."""
    try:
        detail = json.loads(b"".join(pieces(response, meter, MAX_JSON_BYTES)))["detail"]
    except (WireError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(detail, str):
        return None
    shown = "".join(letter if letter.isprintable() else " " for letter in detail)
    return " ".join(shown.split())[:500]  # characters of a reason that is shown

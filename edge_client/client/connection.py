"""HTTP connection to a coordinator: requests, error classes, and size limits on responses.

The header `Smidgen-Protocol` marks a coordinator's own responses, as opposed to those of a proxy, a
login page or a stranger. A lost connection, a timeout, a 5xx and any foreign response raise
`Unreachable`, to be retried (`smidgen.edge_client.client.retries`); a 4xx of the coordinator's own
raises `Refused`. Responses are never decompressed, since none is requested compressed.
"""

import ipaddress
import json
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import Any, TypeAlias

import httpx

from smidgen.edge_client.client.retries import PASSING, Refused, Unreachable, asked_pause_s
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.metering.traffic import Traffic
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.proxies import named_proxies
from smidgen.edge_client.wire.messages import MAX_JSON_BYTES, OWN, Message, WireError, decode

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

"""The device's side of the HTTP contract: one connection, patient, and counting what it moves.

A lost connection, a time-out or a 5xx is waited out with growing pauses; a 4xx is an answer and
is raised as `Refused`.
"""

import logging
import math
import random
import ssl
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

import httpx

from edge_client.errors import Failed, WrongInput
from edge_client.metering.traffic import Traffic
from edge_client.metering.work import WorkMeter
from edge_client.wire.fleet import Enrol, Enrolled, Membership
from edge_client.wire.messages import (
    Next,
    Receipt,
    Report,
    WireError,
    decode,
    encode,
    encode_brief,
)
from edge_client.wire.tensors import content_digest, sha256

log = logging.getLogger(__name__)
Given = TypeVar("Given", bound=object)

LONGEST_PAUSE_S = 30.0


class AddressError(WrongInput):
    """An address that is not a coordinator's."""


class TransportError(Failed):
    """The coordinator could not be asked, or did not give what was asked for."""


class Unreachable(TransportError):
    """Nobody answers at the coordinator's address."""


class Refused(TransportError):
    """The coordinator answered with a 4xx.

    Args:
        status: The HTTP status.
        detail: The coordinator's reason.
        body: All that it answered.
    """

    def __init__(self, status: int, detail: str, body: bytes = b"") -> None:
        super().__init__(detail)
        self.status, self.body = status, body


def address(url: str) -> httpx.URL:
    """The address of a coordinator.

    Raises:
        AddressError: The URL is not one.
    """
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")  # as connecting will
    except (httpx.InvalidURL, UnicodeError) as error:
        raise AddressError(f"--coordinator {url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise AddressError(f"--coordinator {url!r}: https://HOST:PORT is expected")
    return parsed


def nobody() -> ssl.SSLContext:
    """A context that believes no certificate, for plain HTTP."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Coordinator:
    """A coordinator at a URL.

    Args:
        url: Such as `https://host:8700`.
        key: The device key, or empty before enrolment.
        timeout_s: Limit on connecting and on every answer but the long poll's.
        verify: Whose certificates are believed, see `edge_client.client.trust`; None: nobody's.

    Raises:
        AddressError: The URL is not one.

    Attributes:
        url: As it was given.
        traffic: All that went through its connections, by the kernel.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        timeout_s: float = 30.0,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        address(url)
        headers = {"User-Agent": "smidgen", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self.url = url
        self.traffic = Traffic()
        verify = verify or nobody()
        self._http = httpx.Client(base_url=url, timeout=timeout_s, headers=headers, verify=verify)
        for name in ("Accept", "Connection"):  # what they say goes without saying in HTTP/1.1
            del self._http.headers[name]

    def close(self) -> None:
        self._http.close()

    def enrol(self, request: Enrol) -> Enrolled:
        """Say who this device is; with the same key again it stays the same device."""
        response = self._ask("POST", "/v1/enrol", WorkMeter(), json=encode(request))
        return decode(response.content, Enrolled)

    def next_work(self, wait_s: float, meter: WorkMeter) -> Next:
        """Wait for something to do; after `wait_s` seconds without, what a run waits for.

        Args:
            wait_s: How long to wait; 0 asks and comes back at once.
            meter: Counts.
        """
        timeout = httpx.Timeout(30.0, read=wait_s + 30.0)
        response = self._ask("GET", f"/v1/work?wait_s={wait_s:g}", meter, timeout=timeout)
        return decode(response.content, Next)

    def membership(self, run_id: str, membership: Membership) -> Receipt:
        """Say how this device stands to a run; the same may be said again."""
        path = f"/v1/runs/{quote(run_id, safe='')}/membership"
        response = self._ask("POST", path, WorkMeter(), json=encode_brief(membership))
        return decode(response.content, Receipt)

    def adapter(self, digest: str, meter: WorkMeter) -> bytes:
        """Download an adapter by its hash.

        Raises:
            WireError: The body has another hash.
        """
        body = self._ask("GET", f"/v1/adapters/{digest}", meter).content
        if sha256(body) != digest:
            raise WireError(f"adapter {digest[:12]} arrived damaged ({len(body)} bytes)")
        return body

    def upload(self, work_id: str, body: bytes, meter: WorkMeter) -> Receipt:
        """Send an update; the same body may be sent again and counts once."""
        response = self._ask("PUT", f"/v1/work/{work_id}/update", meter, tensors=body)
        return decode(response.content, Receipt)

    def report(self, report: Report, meter: WorkMeter) -> Receipt:
        """Send a report; the same report may be sent again."""
        path = f"/v1/work/{report.work_id}/report"
        response = self._ask("POST", path, meter, json=encode_brief(report))
        return decode(response.content, Receipt)

    def _ask(
        self,
        method: str,
        path: str,
        meter: WorkMeter,
        json: bytes | None = None,
        tensors: bytes | None = None,
        timeout: httpx.Timeout | None = None,
    ) -> httpx.Response:
        headers = {}
        if json is not None:
            headers["Content-Type"] = "application/json"
        if tensors is not None:
            headers["Content-Type"] = "application/octet-stream"
            headers["Content-Digest"] = content_digest(tensors)
        body = json if json is not None else tensors
        request = self._http.build_request(
            method,
            path,
            content=body,
            headers=headers,
            timeout=timeout or self._http.timeout,
            extensions={"trace": self.traffic.trace},
        )
        try:
            response = self._http.send(request)
        except httpx.RequestError as error:  # a body that cannot be decoded among them
            raise Unreachable(
                f"no answer from {self.url}: {error or type(error).__name__}"
            ) from error
        meter.requests += 1
        meter.payload_up_bytes += len(body or b"")
        meter.payload_down_bytes += response.num_bytes_downloaded
        if response.status_code >= 500:
            raise Unreachable(f"{self.url} answered {response.status_code} to {method} {path}")
        if response.status_code >= 400:
            raise Refused(response.status_code, _detail(response), response.content)
        return response


def _detail(response: httpx.Response) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"


def patiently(call: Callable[[], Given], give_up_after_s: float) -> Given:
    """Call until somebody answers, with pauses that grow from 0.2 s to 30 s.

    Args:
        call: Raises `Unreachable` when it should be tried again.
        give_up_after_s: Seconds after which the last `Unreachable` is raised; infinity for ever.
    """
    start, pause, is_told = time.monotonic(), 0.2, False
    while True:
        try:
            given = call()
        except Unreachable as error:
            left_s = give_up_after_s - (time.monotonic() - start)
            if left_s <= 0:
                raise
            if not is_told:
                until = (
                    f"for {give_up_after_s:g} s"
                    if give_up_after_s < math.inf
                    else "until it answers"
                )
                log.warning("%s; trying again %s", error, until)
                is_told = True
        else:
            if is_told:
                log.info("connected again after %.0f s", time.monotonic() - start)
            return given
        time.sleep(min(left_s, pause * random.uniform(0.75, 1.25)))
        pause = min(2 * pause, LONGEST_PAUSE_S)

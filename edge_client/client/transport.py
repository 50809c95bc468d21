"""The coordinator's HTTP API for devices: the routes of `smidgen.edge_client.wire.messages`.

Normally an adapter or an update takes one request; after a cut the next call moves only what is
missing. So the same call is repeated until it succeeds:

    patiently(lambda: coordinator.upload(work_id, body, meter), math.inf)
"""

import math
import re
import ssl
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote

from smidgen.edge_client.client.connection import (
    PASSING,
    AddressError,
    Connection,
    Refused,
    TransportError,
    Unreachable,
    patiently,
    pieces,
)
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.wire.fleet import Enrol, Enrolled, Membership
from smidgen.edge_client.wire.messages import (
    Message,
    Next,
    Receipt,
    Report,
    WireError,
    encode,
    encode_brief,
)
from smidgen.edge_client.wire.tensors import digest_header, sha256

__all__ = [
    "AddressError",
    "Coordinator",
    "Refused",
    "TransportError",
    "Unreachable",
    "patiently",
]
MOST_ADAPTER_BYTES = 256 << 20  # of an adapter whose size nobody has told
SHORTEST_POLL_S = 1.0
FRESH_S = 2.0  # what came with a receipt is asked for again after that: it may be closed by then
FEWEST_ANSWERED, MOST_ANSWERED = 10, 640  # polls before a longer one is tried
MOST_TURNS = 5  # of an upload: each time the coordinator says from where on it wants it


class Coordinator:
    """A coordinator at a URL.

    Args:
        url: Such as `https://host:8700`.
        key: The device's key.
        timeout_s: Limit on connecting and on every answer but the long poll's.
        verify: Whose certificates are believed, see `smidgen.edge_client.client.trust`; None:
            nobody's.
        life: What tells this client from others that hold the same key.
        on_asked: Called after each request, whether it was answered or not.

    Raises:
        AddressError: The URL is not one.

    Attributes:
        url: As it was given.
        life: As it was given.
        traffic: All that went through its connections, by the kernel.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        timeout_s: float = 30.0,
        verify: ssl.SSLContext | None = None,
        life: str = "",
        on_asked: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = Connection(url, key, timeout_s, verify, on_asked=on_asked)
        self.url, self.traffic, self.life = url, self._connection.traffic, life
        self._longest_poll_s = math.inf
        self._answered, self._raised_after = 0, FEWEST_ANSWERED  # polls, before it is raised
        self._is_raised = False
        self._reported = ""  # the work whose report was sent last
        self._given: tuple[Next | None, float, float] = (None, 0.0, 0.0)
        self._part = ("", bytearray())  # of a download that was cut: its hash, and what arrived
        self._begun: dict[str, int] = {}  # uploads that were cut: where the last try began

    def close(self) -> None:
        self._connection.close()

    def enrol(self, request: Enrol) -> Enrolled:
        """Say who this device is; with the same key again it stays the same device."""
        return self._connection.message("POST", "/v1/enrol", WorkMeter(), Enrolled, encode(request))

    def next_work(self, wait_s: float, meter: WorkMeter) -> Next:
        """What to do next; after `wait_s` seconds without anything, what is waited for.

        It is not asked for if it has just come with a receipt.

        Args:
            wait_s: How long to wait; 0 asks and comes back at once.
            meter: Counts.
        """
        (given, came_s, waited_s), self._given = self._given, (None, 0.0, 0.0)
        if given is not None and time.monotonic() - came_s < FRESH_S:
            meter.waited(waited_s)
            return given
        return self._polled("GET", "/v1/work", meter, Next, None, wait_s)

    def _polled(
        self,
        method: str,
        path: str,
        meter: WorkMeter,
        kind: type[Message],
        content: bytes | None,
        wait_s: float,
    ) -> Message:
        """The answer to a request that waits up to `wait_s` seconds for what is next.

        Where a proxy gives up earlier than the coordinator answers, the next one asks for less.
        """
        wait_s, began_s = min(wait_s, self._longest_poll_s), time.monotonic()
        path += f"?wait_s={wait_s:g}" + (f"&life={self.life}" if self.life else "")
        try:
            given = self._connection.message(method, path, meter, kind, content, wait_s)
        except Unreachable as error:
            spent_s = time.monotonic() - began_s
            # Of a proxy that waits no longer for an answer
            if error.status in (408, 504, 524) and wait_s and spent_s >= SHORTEST_POLL_S:
                self._shorten(spent_s)
            raise
        self._answered += wait_s > 0
        if self._answered >= self._raised_after:
            self._longest_poll_s, self._answered = 2 * self._longest_poll_s, 0
            self._is_raised = True
        return given

    def _shorten(self, spent_s: float) -> None:
        """Ask for less than a proxy gave; more is tried after some answers, and after more each
        time that this was in vain: an outage cuts polls as short as a proxy does.
        """
        if self._is_raised:
            self._raised_after = min(2 * self._raised_after, MOST_ANSWERED)
        self._longest_poll_s = max(round(spent_s / 2, 1), SHORTEST_POLL_S)
        self._answered, self._is_raised = 0, False

    def membership(self, run_id: str, membership: Membership) -> Receipt:
        """Say how this device stands to a run; the same may be said again."""
        path, content = f"/v1/runs/{quote(run_id, safe='')}/membership", encode_brief(membership)
        return self._connection.message("POST", path, WorkMeter(), Receipt, content)

    def report(self, report: Report, meter: WorkMeter, wait_s: float = 0.0) -> Receipt:
        """Send a report; the same report may be sent again, and then nothing is waited for.

        Args:
            report: What a piece of work gave.
            meter: Counts.
            wait_s: How long the receipt may wait for what is next, which `next_work` then gives.
        """
        path, content = f"/v1/work/{report.work_id}/report", encode_brief(report)
        is_first, self._reported = report.work_id != self._reported, report.work_id
        if not wait_s or not is_first:
            return self._connection.message("POST", path, meter, Receipt, content)
        began_s = time.monotonic()
        receipt = self._polled("POST", path, meter, Receipt, content, wait_s)
        now_s = time.monotonic()
        self._given = receipt.next, now_s, now_s - began_s  # with when it came, and the wait
        return receipt

    def adapter(self, digest: str, meter: WorkMeter, most_bytes: int = MOST_ADAPTER_BYTES) -> bytes:
        """Download an adapter by its hash; after a cut the next call goes on where it was.

        Args:
            digest: SHA-256 of the adapter.
            meter: Counts.
            most_bytes: How long it may be.

        Raises:
            WireError: The body has another hash, or is longer.
        """
        body = self._download(digest, meter, most_bytes)
        if sha256(body) != digest:  # damaged, or its two parts are not of one body
            body = self._download(digest, meter, most_bytes)
        if sha256(body) != digest:
            raise WireError(f"adapter {digest[:12]} arrived damaged ({len(body)} bytes)")
        return body

    def _download(self, digest: str, meter: WorkMeter, most_bytes: int) -> bytes:
        """What has arrived and the rest; of a rest that is cut, what arrives is kept."""
        part = self._part[1] if self._part[0] == digest else bytearray()
        had, headers, self._part = len(part), {}, ("", bytearray())
        if had and sha256(bytes(part)) == digest:  # cut after its last byte
            return bytes(part)
        if had:
            headers = {"Range": f"bytes={had}-", "If-Range": f'"{digest}"'}
        path, takes = f"/v1/adapters/{digest}", (416,)
        try:
            with self._connection.asking("GET", path, meter, None, headers, takes) as response:
                place = response.headers.get("Content-Range", "")
                if response.status_code != 206 or not place.startswith(f"bytes {had}-"):
                    part.clear()
                if response.status_code == 416:
                    raise Unreachable(f"{self.url} has less of adapter {digest[:12]} than is here")
                for piece in pieces(response, meter, most_bytes - len(part)):
                    part += piece
        except Unreachable as error:
            self._part, error.is_further = (digest, part), len(part) > had
            raise
        return bytes(part)

    def upload(
        self, work_id: str, body: bytes, meter: WorkMeter, is_begun: bool = False
    ) -> Receipt:
        """Send an update; after a cut the next call sends only what has not arrived.

        The same body may be sent again and counts once. One that is damaged on the way is sent
        once more at once, and then again as one that did not arrive.

        Args:
            work_id: The work it answers.
            body: The update.
            meter: Counts.
            is_begun: Whether an earlier life of this device may have begun to send it.

        Raises:
            Refused: The coordinator does not want it.
        """
        name, path, is_damaged = sha256(body), f"/v1/work/{work_id}/update", False
        digest = {"Repr-Digest": digest_header(name)}
        offset = last = self._begun.get(name, 0)
        is_heard = False
        try:
            if is_begun or name in self._begun:
                offset = self._arrived(path, digest, len(body), meter)
                is_heard = True
            for _ in range(MOST_TURNS):
                self._begun[name] = offset
                try:
                    given = self._put(path, digest, body, offset, meter)
                except Refused as error:
                    if error.status != 400:
                        raise
                    if is_damaged:
                        raise Unreachable(f"{self.url}: {error}", is_own=True) from error
                    given, is_damaged = 0, True
                if isinstance(given, Receipt):
                    del self._begun[name]
                    return given
                offset = given
            raise Unreachable(f"{self.url} wants another part of the update each time")
        except Unreachable as error:
            error.is_further, error.is_body_alone = offset > last, is_heard and not error.is_own
            raise
        except Refused:
            self._begun.pop(name, None)
            raise

    def _put(
        self, path: str, digest: Mapping[str, str], body: bytes, offset: int, meter: WorkMeter
    ) -> Receipt | int:
        """Send an update from an offset on: the receipt, or from where on it is wanted instead."""
        whole, rest = len(body), body[offset:]
        headers = {**digest, "Content-Type": "application/octet-stream"}
        if offset:
            place = f"{offset}-{whole - 1}" if rest else "*"
            headers["Content-Range"] = f"bytes {place}/{whole}"
        with self._connection.asking("PUT", path, meter, rest, headers, (409,)) as response:
            if response.status_code == 409:
                return _offset(response.headers, whole)
            return self._connection.decoded(response, meter, Receipt)

    def _arrived(self, path: str, digest: Mapping[str, str], whole: int, meter: WorkMeter) -> int:
        """How much of an update the coordinator has; 0 where it does not say."""
        takes = {*range(400, 500), 501} - set(PASSING)  # the PUT hears why
        try:
            with self._connection.asking("HEAD", path, meter, None, digest, takes) as response:
                is_said = 200 <= response.status_code < 300
                return _offset(response.headers, whole) if is_said else 0
        except Unreachable as error:
            is_final = 400 <= error.status < 500 and error.status not in PASSING
            if is_final or error.status == 501:  # something in between lets no HEAD through
                return 0
            raise


def _offset(headers: Mapping[str, str], whole: int) -> int:
    """Where an upload goes on; after the whole of it where nothing more is wanted."""
    if headers.get("Upload-Complete") == "?1":
        return whole
    said = headers.get("Upload-Offset", "")
    return min(int(said), whole) if re.fullmatch("[0-9]{1,15}", said) else 0

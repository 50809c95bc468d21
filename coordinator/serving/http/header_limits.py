"""HTTP/1.1 with limits on the size of a request's head and on the time it takes to arrive.

uvicorn's own parser buffers headers until all have arrived, however many and however slowly.
"""

import asyncio
import math
import time
from typing import Any, cast

from starlette.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from smidgen.coordinator.serving.http.connection_limits import (
    GUEST,
    ConnectionSlots,
    ConnectionTimeouts,
    OpenConnection,
)
from smidgen.coordinator.serving.http.handlers import LEAST_RATE, SIGNED

MOST_BYTES = 64 << 10
UVICORNS = "Invalid HTTP request received."
CLOSING_S = 1.0  # an answer is on its way, and then the other side may say that it has ended too


class BoundedHttp(HttpToolsProtocol):
    """Uvicorn's protocol; a head or a trailer that does not end is answered 400, or cut.

    Args:
        guests: Who is connected; None: nobody counts.

    Attributes:
        held_bytes: What has come since a request began, its head ended, or some of its body came.
        guest: Who is connected; of nobody who counts after the end.
    """

    held_bytes = 0
    guest: OpenConnection | None = None
    _is_ending = False

    def __init__(self, *args: Any, guests: ConnectionSlots | None = None, **told: Any) -> None:
        super().__init__(*args, **told)
        self._guests = guests
        self._patience = guests.patience if guests else ConnectionTimeouts()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """TLS, if there is any, was agreed on."""
        super().connection_made(transport)
        if self._guests is None:
            return
        self.guest = self._guests.at(transport.get_extra_info("socket").fileno())
        if self.guest is not None:
            self.guest.is_open, self.guest.abort = True, transport.abort
            self._due(self._patience.head_s)

    def data_received(self, data: bytes) -> None:
        self.held_bytes += len(data)
        super().data_received(data)
        if self.held_bytes > MOST_BYTES and not self.transport.is_closing():
            self.send_400_response(f"a request's line and headers end within {MOST_BYTES} bytes")
        if self.guest is not None and self.guest.due_s == math.inf and self._is_idle():
            self._due(self._patience.head_s, whoever=True)  # the head of the next request has begun

    def send_400_response(self, msg: str) -> None:
        """Answer what is not a request as everything is answered here, and end the connection."""
        body = JSONResponse(
            {"detail": "a request of HTTP/1.1 is expected" if msg == UVICORNS else msg}, 400
        )
        headers = [*body.raw_headers, SIGNED, (b"connection", b"close")]
        lines = [b"HTTP/1.1 400 Bad Request", *(b": ".join(pair) for pair in headers)]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(body.body)]))
        self.transport.close()
        if self._guests is not None:
            self._guests.complain(str(self.client[0]) if self.client else "nowhere")

    def on_message_begin(self) -> None:
        self.held_bytes = 0
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[GUEST] = self.guest

    def on_headers_complete(self) -> None:
        self.held_bytes = 0
        self._due(self._patience.body_s)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.held_bytes = 0
        if self.guest is not None and self.guest.is_stranger:
            self.guest.due_s += len(body) / LEAST_RATE
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._due(self._patience.answer_s)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._due(self._patience.head_s)
        super().on_response_complete()
        if self._is_ending:
            self._end_soon()

    def shutdown(self) -> None:
        """The server ends; over TLS it would wait for the other side to say so too."""
        self._is_ending = True
        is_idle = self._is_idle()
        super().shutdown()
        if is_idle:
            self._end_soon()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _end_soon(self) -> None:
        self.loop.call_later(CLOSING_S, self.transport.abort)

    def _due(self, within_s: float, whoever: bool = False) -> None:
        """Have a stranger, or whoever it is, go on within a time."""
        if self.guest is not None:
            is_hurried = whoever or self.guest.is_stranger
            self.guest.due_s = time.monotonic() + within_s if is_hurried else math.inf

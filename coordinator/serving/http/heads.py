"""HTTP/1.1 with a bound on what a request says beside its body.

The parser keeps a request's headers until all of them are here, however many they are.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_BYTES = 64 << 10
TOO_LONG = f"a request's line and headers end within {MOST_BYTES} bytes"


class BoundedHttp(HttpToolsProtocol):
    """Uvicorn's protocol; a head or a trailer that does not end is answered 400.

    Attributes:
        held_bytes: What has come since a request began, its head ended, or some of its body came.
    """

    held_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Take in what has come."""
        self.held_bytes += len(data)
        super().data_received(data)
        if self.held_bytes > MOST_BYTES and not self.transport.is_closing():
            self.send_400_response(TOO_LONG)

    def on_message_begin(self) -> None:
        """A request begins."""
        self.held_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is here."""
        self.held_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of its body is here."""
        self.held_bytes = 0
        super().on_body(body)

"""How long a source may take to give something: httpx itself bounds each single read alone.

    deadline = Deadline(30.0)
    request = client.build_request("GET", url, extensions={"trace": deadline.trace})
    with deadline.running():
        response = client.send(request, stream=True)

Who sends a byte of a header now and then would hold a device up for ever otherwise. Past its
deadline the connection is cut, by another thread, so that whoever reads from it goes on.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Timer
from typing import Any

import httpx

from edge_client.client.retries import Unreachable


class Deadline:
    """Cuts the connection of a client that has one at a time.

    Args:
        seconds: For each thing that is asked for.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._is_over = seconds, False
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpcore at each step of a request; learns of the connection."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._is_over:
                self._cut()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let what is done inside take that long and no longer.

        Raises:
            Unreachable: It took longer.
        """
        self._is_over = False
        timer = Timer(self._seconds, self._cut)
        timer.daemon = True
        timer.start()
        cause: Exception | None = None
        try:
            yield
        except (httpx.RequestError, Unreachable) as error:
            if not self._is_over:
                raise
            cause = error
        finally:
            timer.cancel()
        if self._is_over:  # a body without a length ends here as if it were whole
            raise Unreachable(f"nothing came within {self._seconds:g} s") from cause

    def _cut(self) -> None:
        self._is_over = True
        if self._socket is not None:
            with suppress(OSError):  # below TLS, which another thread is reading from
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

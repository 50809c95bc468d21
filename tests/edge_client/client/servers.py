"""Real sockets for transport tests: a scripted HTTP server, and a relay that counts bytes."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from smidgen.edge_client.wire.messages import OWN, PROTOCOL

Answer = tuple[int, bytes]


class Foreign(bytes):
    """The body of an answer that is not the server's, but something's in between."""


@contextmanager
def http_server(
    answer: Callable[[str, str, bytes], Answer],
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    is_asked: bool = False,
) -> Iterator[str]:
    """Serve `answer(method, path, body) -> (status, body)` on loopback; 0: on a free port.

    What it answers is a coordinator's own, unless its body is `Foreign`. To HEAD it answers 501,
    as some filters do, unless `is_asked`.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Header and body in one write: two small writes meet Nagle and delayed ACK (40 ms each).
        wbufsize = -1

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if not isinstance(content, Foreign):
                self.send_header(OWN, str(PROTOCOL))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = handle_any
        if is_asked:
            do_HEAD = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Relay:
    """A TCP relay on loopback that counts the bytes of each direction and can be cut.

    Args:
        target_port: Where connections go to.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.bytes_up = self.bytes_down = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every open connection; new ones are still taken."""
        for end in self._sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        """Break everything and take no more."""
        self._listener.close()
        self.cut()
        for end in self._sockets:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                return
            self._sockets += [near, far]
            threading.Thread(target=self._pump, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, "down"), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while block := source.recv(65536):
                if direction == "up":
                    self.bytes_up += len(block)
                else:
                    self.bytes_down += len(block)
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

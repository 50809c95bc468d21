import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from smidgen.edge_client.metering import work
from smidgen.edge_client.metering.work import NOTHING, Link, TcpBytes, Traffic, read_tcp
from tests.edge_client.client.servers import Relay

BODY = bytes(100_000)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/cut":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(context: ssl.SSLContext | None = None) -> Iterator[Relay]:
    """A server that sends back what it gets, behind a relay that counts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    relay = Relay(server.server_port)
    try:
        yield relay
    finally:
        relay.close()
        server.shutdown()
        thread.join()
        server.server_close()


def put(client: httpx.Client, path: str, counted: Traffic) -> None:
    client.put(path, content=BODY, extensions={"trace": counted.trace}).raise_for_status()


def test_one_connection_is_counted_to_the_byte() -> None:
    counted = Traffic()
    with served() as relay, httpx.Client(base_url=f"http://127.0.0.1:{relay.port}") as client:
        for _ in range(3):
            put(client, "/", counted)
        found = counted.total()
        assert found.connections == 1
        assert (found.acked_bytes, found.received_bytes) == (relay.bytes_up, relay.bytes_down)


def test_lost_connections_are_summed_up() -> None:
    counted = Traffic()
    with served() as relay, httpx.Client(base_url=f"http://127.0.0.1:{relay.port}") as client:
        put(client, "/", counted)
        with pytest.raises(httpx.RequestError):
            put(client, "/cut", counted)
        put(client, "/", counted)
        found = counted.total()
        assert found.connections == 2
        assert found.received_bytes == pytest.approx(relay.bytes_down, abs=1)  # its end is one
        assert found.acked_bytes == pytest.approx(relay.bytes_up, rel=0.005)


def test_tls_is_in_it(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    trusted = ssl.create_default_context(cafile=str(certificate))
    counted = Traffic()
    with (
        served(context) as relay,
        httpx.Client(base_url=f"https://127.0.0.1:{relay.port}", verify=trusted) as client,
    ):
        put(client, "/", counted)
        found = counted.total()
        assert found.connections == 1
        assert (found.acked_bytes, found.received_bytes) == (relay.bytes_up, relay.bytes_down)
        assert found.acked_bytes is not None and found.acked_bytes > len(BODY) + 400


def test_an_old_kernel_says_what_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = struct.pack("=120xQQ", 8, 9)
    for length, expected in ((104, TcpBytes(None, None, None, 1)), (136, TcpBytes(7, 9, None, 1))):

        class Old(socket.socket):
            def getsockopt(self, *args: int) -> bytes:  # type: ignore[override]
                return whole[:length]  # noqa: B023

        with Old() as opened:
            assert read_tcp(opened) == expected


def test_without_tcp_info_nothing_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "TCP_INFO", None)
    with socket.socket() as opened:
        assert read_tcp(opened) == TcpBytes(None, None, None, 1)
    assert NOTHING.plus(TcpBytes(None, 5, None, 1)) == TcpBytes(None, 5, None, 1)


def test_a_rate_whose_name_is_not_utf_8_is_none(tmp_path: Path) -> None:
    path = tmp_path / "link.json"
    path.write_bytes(b'{"bytes_pe\xf2_s":40152.9}')  # a bit has flipped
    assert Link(path).rate() is None

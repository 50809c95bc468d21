"""A coordinator with certificates, asked by real TLS clients, good ones and others."""

import logging
import os
import socket
import ssl
import time
from contextlib import ExitStack, closing, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import httpx
import psutil
import pytest

pytest.importorskip("fastapi")

from smidgen.coordinator.api.init import Initialized, init, renew_certificate
from smidgen.coordinator.api.serve import Server, serve
from smidgen.coordinator.serving.server import PortError
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.trust.folder import Trust, folder_of, put, read
from smidgen.coordinator.trust.making import make
from smidgen.edge_client.client.trust import NotBelieved, trusted
from smidgen.edge_client.errors import WrongInput
from tests.coordinator.devices import wait_for

NOW = datetime.now(timezone.utc)


@pytest.fixture
def made(tmp_path: Path) -> Initialized:
    return init(tmp_path / "store", ["pi.example"], port=8700)


def local(server: Server) -> str:
    """The server's address on loopback, which its certificate is for too."""
    return f"https://127.0.0.1:{server.url.rpartition(':')[2]}"


def start(made: Initialized) -> Server:
    return serve(made.certified.store, host="127.0.0.1", port=0)


def believing(made: Initialized) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder_of(made.certified.store) / "ca.pem")
    return context


def version(made: Initialized, server: Server, most: ssl.TLSVersion) -> str | None:
    """Which TLS is spoken with a client that knows no newer one."""
    context = believing(made)
    context.maximum_version = most
    port = int(server.url.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="pi.example") as opened,
    ):
        return opened.version()


def test_it_speaks_tls_for_its_name_and_shows_its_authority(made: Initialized) -> None:
    with start(made) as server:
        assert server.ca == made.certified.ca
        assert version(made, server, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert version(made, server, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with httpx.Client(verify=believing(made)) as http:
            shown = http.get(f"{local(server)}/v1/ca")
    assert shown.content == (folder_of(made.certified.store) / "ca.pem").read_bytes()
    assert shown.headers["content-type"] == "application/pem-certificate-chain"


def test_devices_are_told_what_init_said_where_every_network_is_served(
    made: Initialized,
) -> None:
    with serve(made.certified.store, port=0) as server:
        host, _, port = server.url.rpartition(":")
        assert host == "https://pi.example"
        with httpx.Client(verify=believing(made)) as http:
            assert http.get(f"https://127.0.0.1:{port}/healthz").status_code == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_older_tls_and_garbage_are_turned_away_without_a_word(
    made: Initialized, caplog: pytest.LogCaptureFixture
) -> None:
    with start(made) as server:
        caplog.clear()
        port = int(server.url.rpartition(":")[2])
        with pytest.raises((ssl.SSLError, OSError, ValueError)):
            version(made, server, ssl.TLSVersion.TLSv1_1)
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", os.urandom(500), b"") * 10:
            with socket.create_connection(("127.0.0.1", port), 10) as plain, suppress(OSError):
                plain.sendall(said)
                plain.shutdown(socket.SHUT_WR)
                plain.recv(1000)
        for context in (ssl.create_default_context(), believing(made)):  # who hang up on it
            with httpx.Client(verify=context) as http, suppress(httpx.ConnectError):
                http.get(f"https://127.0.0.2:{port}/")
        with httpx.Client(verify=believing(made)) as http:
            assert http.get(f"{local(server)}/healthz").status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_renewed_certificate_is_served_without_a_new_start(
    made: Initialized, tmp_path: Path
) -> None:
    def served(server: Server) -> str:
        context = believing(made)
        port = int(server.url.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as opened,
        ):
            return str((opened.getpeercert() or {})["serialNumber"])

    with start(made) as server:
        before = served(server)
        assert trusted(local(server), made.certified.ca, tmp_path, 0)
        renew_certificate(made.certified.store)
        wait_for(lambda: served(server) != before)
        assert trusted(local(server), "", tmp_path, 0)


def test_the_authority_that_is_shown_is_the_one_of_now(made: Initialized) -> None:
    folder = folder_of(made.certified.store)
    with start(made) as server:
        named = trust_of_another(made)
        put(made.certified.store, named, lambda _: None)

        def is_shown() -> bool:
            with httpx.Client(verify=False) as http:
                return http.get(f"{local(server)}/v1/ca").content == named.authority

        wait_for(is_shown)
        assert (folder / "ca.pem").read_bytes() == named.authority


def trust_of_another(made: Initialized) -> Trust:
    other = made.certified.store.with_name("another")
    other.mkdir()
    return make(other, ["pi.example"], 8700, 365, NOW)


def test_a_renewal_that_is_cut_in_between_changes_nothing(
    made: Initialized, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(made.certified.store)
    with start(made) as server:
        (folder / "server.key").write_bytes(b"half")
        (folder / "server.pem").touch()
        wait_for(lambda: "is served on: server.pem with server.key" in caplog.text)
        with httpx.Client(verify=believing(made)) as http:
            assert http.get(f"{local(server)}/healthz").status_code == 200


def test_a_store_that_began_anew_is_refused_by_its_devices(
    made: Initialized, tmp_path: Path
) -> None:
    with start(made) as server:
        port = int(server.url.rpartition(":")[2])
        assert trusted(local(server), made.certified.ca, tmp_path, 0)
    other = init(tmp_path / "other", ["pi.example"])
    with (
        serve(other.certified.store, host="127.0.0.1", port=port) as server,
        pytest.raises(NotBelieved, match=rf"{other.certified.ca}.*{made.certified.ca}"),
    ):
        trusted(local(server), "", tmp_path, 0)


@pytest.mark.parametrize(
    ("told", "listened_on"), [("127.0.0.1", "127.0.0.1"), ("pi.example", "0.0.0.0")]
)
def test_a_coordinator_for_this_machine_listens_on_loopback_alone(
    tmp_path: Path, told: str, listened_on: str
) -> None:
    made = init(tmp_path / "store", [told])
    with serve(made.certified.store, port=0) as server:
        port = int(server.url.rpartition(":")[2])
        mine = psutil.Process().net_connections(kind="tcp")
    listening = {tuple(one.laddr) for one in mine if one.status == psutil.CONN_LISTEN}
    assert {ip for ip, at in listening if at == port} == {listened_on}


def test_without_tls_other_machines_are_served_only_if_asked_for(tmp_path: Path) -> None:
    Store(tmp_path / "store").close()
    with pytest.raises(WrongInput, match=r"--host 0.0.0.0 .*coordinator init.*--plain-http"):
        serve(tmp_path / "store", host="0.0.0.0", port=0)
    with serve(tmp_path / "store", host="0.0.0.0", port=0, plain_http=True) as server:
        assert httpx.get(f"{server.url}/healthz").status_code == 200
    with serve(tmp_path / "store", port=0) as server:
        assert server.url.startswith("http://127.0.0.1:") and server.ca == ""
        assert httpx.get(f"{server.url}/v1/ca").status_code == 404


def test_a_proxy_is_served_plain_http_in_spite_of_certificates(made: Initialized) -> None:
    with serve(made.certified.store, port=0, plain_http=True) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_what_devices_would_refuse_is_not_served(tmp_path: Path) -> None:
    old = tmp_path / "old"
    Store(old).close()
    make(old, ["pi.example"], 8700, 5, NOW - timedelta(days=4))
    trust = read(folder_of(old))
    expired = make_expired(tmp_path)
    put(old, Trust(trust.address, expired.server, expired.authority), lambda _: None)
    with pytest.raises(WrongInput, match=r"server.pem has expired on .*init --renew"):
        serve(old, port=0)


def make_expired(folder: Path) -> Trust:
    other = folder / "expired"
    other.mkdir()
    return make(other, ["pi.example"], 8700, 5, NOW - timedelta(days=9))


@pytest.mark.slow
def test_a_port_in_use_is_told_in_one_line(made: Initialized) -> None:
    with start(made) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(PortError, match=rf"cannot listen on port {port} .*--port"):
            serve(made.certified.store, host="127.0.0.1", port=port)


@pytest.mark.slow
def test_a_waiting_device_costs_little_memory(made: Initialized) -> None:
    devices = 200
    with start(made) as server:
        port = int(server.url.rpartition(":")[2])
        context = believing(made)
        opened = []
        try:
            opened = [tls_to(context, port) for _ in range(20)]
            time.sleep(0.5)
            before = psutil.Process().memory_info().rss
            opened += [tls_to(context, port) for _ in range(devices)]
            time.sleep(0.5)
            each = (psutil.Process().memory_info().rss - before) / devices
        finally:
            for one in opened:
                one.close()
    print(f"{each / 1024:.0f} KiB for both ends of a connection")
    assert each < 200 * 1024  # both ends; asyncio's own buffer alone would be 256


def tls_to(context: ssl.SSLContext, port: int) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), 30)
    return context.wrap_socket(plain, server_hostname="pi.example")


def test_a_stop_does_not_wait_for_connections_that_say_nothing(made: Initialized) -> None:
    """A request under way has five seconds: a stop that waited so would never be faster."""
    assert any(stopped_after_s(made) < 4.5 for _ in range(5))


def stopped_after_s(made: Initialized) -> float:
    """How long a server with quiet connections takes to stop."""
    with start(made) as server, ExitStack() as stack:
        port = int(server.url.rpartition(":")[2])
        idle = [
            stack.enter_context(closing(tls_to(believing(made), port))) for _ in range(3)
        ]  # as a device at work has one
        for one in idle:
            one.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert one.recv(100).startswith(b"HTTP/1.1 200")
        for _ in range(3):  # and a handshake that does not begin
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), 10)))
        began_s = time.monotonic()
        server.stop()
        return time.monotonic() - began_s

"""What is not a coordinator's answer is waited out; nothing is read without a limit or unpacked."""

import gzip
import json
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from smidgen.edge_client.client.connection import AddressError, Refused, Unreachable, address
from smidgen.edge_client.client.transport import Coordinator
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.proxies import ProxyError
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import (
    MAX_JSON_BYTES,
    OWN,
    Receipt,
    Report,
    WireError,
    encode,
)
from smidgen.edge_client.wire.tensors import sha256
from tests.edge_client.client.servers import http_server

NAME = sha256(b"adapter")
MANGLED = int(os.environ.get("SMIDGEN_MANGLED", "60"))
NO = b'{"detail":"Not Found"}'  # a refusal in the coordinator's own form


@contextmanager
def saying(*answers: bytes, is_endless: bool = False) -> Iterator[str]:
    """A server that gives each request the next of these bytes; the last one again and again."""
    listening = socket.create_server(("127.0.0.1", 0))
    left = list(answers)

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(5.0)
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(65536)
                length = request.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
                body = len(request.partition(b"\r\n\r\n")[2])
                while body < int(length or 0):
                    body += len(connection.recv(65536))
                connection.sendall(left.pop(0) if len(left) > 1 else left[0])
                while is_endless:
                    connection.sendall(bytes(65536))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(60.0)


def foreign(status: int, body: bytes = b"", *headers: str) -> bytes:
    """An answer of something in between."""
    told = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*told, "", ""]).encode() + body


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    """An answer of a coordinator."""
    return foreign(status, body, f"{OWN}: 6", *headers)


@pytest.mark.parametrize("said", [answer, foreign])
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 507])
def test_who_asks_to_be_left_alone_is_obeyed(status: int, said: Callable[..., bytes]) -> None:
    with (
        saying(said(status, b"busy", "Retry-After: 17")) as url,
        closing(Coordinator(url)) as coordinator,
        pytest.raises(Unreachable, match=str(status)) as raised,
    ):
        coordinator.next_work(0, WorkMeter())
    assert raised.value.asked_s == 17.0


@pytest.mark.parametrize(
    "said",
    [
        foreign(404, b"<html>not here</html>"),
        foreign(404, NO, "Content-Type: application/json"),
        foreign(401, NO, "WWW-Authenticate: Basic"),
        foreign(403, NO),
        foreign(421, NO),
        foreign(422, NO),
        foreign(413, b"<html>too large</html>", "Content-Type: text/html"),
        foreign(302, b"", "Location: https://elsewhere.example/login"),
        foreign(302, b"", "Location: http://[nonsense"),
        foreign(200, b"<html>log in</html>"),
        foreign(200, b'{"accepted":true}'),
        foreign(204),
        foreign(999, b"?"),
        answer(200, b"<html>log in</html>"),
        answer(302, b"", "Location: https://elsewhere.example/login"),
        answer(200, b'{"accepted":true}', "Content-Length: 99"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"",
        answer(200, b"{}", "Content-Encoding: gzip"),
        answer(200, gzip.compress(b"{}"), "Content-Encoding: gzip"),
        answer(403, json.dumps({"detail": 7}).encode()),
        answer(200, b"[" * 100_000),
        b"not HTTP at all\r\n\r\n",
    ],
)
def test_what_is_not_a_coordinators_answer_is_waited_out(said: bytes) -> None:
    with saying(said) as url, closing(Coordinator(url)) as coordinator:
        with pytest.raises(Unreachable):
            coordinator.next_work(0, WorkMeter())
        with pytest.raises(Unreachable):
            coordinator.upload("w", b"body", WorkMeter())


def mangled(whole: bytes, chance: random.Random) -> bytes:
    """An answer cut, with bytes changed, missing or doubled."""
    first = chance.randrange(len(whole))
    last = chance.randrange(first, len(whole))
    return chance.choice(
        [
            whole[:first],
            whole[:first] + whole[last:],
            whole[:last] + whole[first:],
            whole[:first] + chance.randbytes(last - first) + whole[last:],
            whole[:first] + bytes([chance.randrange(256)]) + whole[first + 1 :],
            chance.randbytes(first),
        ]
    )


def test_a_mangled_answer_is_waited_out_or_is_the_coordinators(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("SMIDGEN_FAULT_SEED") or random.SystemRandom().randrange(10**6))
    chance = random.Random(seed)
    taken, part = answer(200, encode(Receipt(True))), answer(409, b"", "Upload-Offset: 2")
    whole = [taken, answer(422, NO), part]
    said = [mangled(chance.choice(whole), chance) for _ in range(MANGLED)]
    kinds: Counter[str] = Counter()
    with saying(*said, taken) as url:
        for _ in said:
            with closing(Coordinator(url, timeout_s=2.0)) as coordinator:
                try:
                    kinds[str(coordinator.report(Report("w", "done"), WorkMeter()).accepted)] += 1
                except (Unreachable, Refused) as error:
                    kinds[type(error).__name__] += 1
    with capsys.disabled():
        print(f"\nmangled answers, SMIDGEN_FAULT_SEED={seed}: {dict(kinds)}")
    assert kinds["Unreachable"] > kinds["Refused"] and not kinds["False"]


def test_a_refusal_is_shown_without_what_could_move_the_cursor() -> None:
    body = json.dumps({"detail": "no\x1b[2J\r\nmore " + "x" * 9999}).encode()
    with (
        saying(answer(422, body)) as url,
        closing(Coordinator(url)) as coordinator,
        pytest.raises(Refused) as raised,
    ):
        coordinator.next_work(0, WorkMeter())
    assert str(raised.value).startswith("no [2J more xxx") and len(str(raised.value)) == 500


def test_an_endless_answer_is_left_after_its_limit() -> None:
    head = f"HTTP/1.1 200 OK\r\n{OWN}: 6\r\nConnection: close\r\n\r\n".encode()
    with saying(head, is_endless=True) as url, closing(Coordinator(url)) as coordinator:
        meter = WorkMeter()
        with pytest.raises(Unreachable, match="more than"):
            coordinator.next_work(0, meter)
        assert meter.payload_down_bytes < MAX_JSON_BYTES + (1 << 17)
        meter = WorkMeter()
        with pytest.raises(WireError, match="more than 1000 bytes"):
            coordinator.adapter(NAME, meter, 1000)
        assert meter.payload_down_bytes < 1 << 17


def test_an_answer_that_says_that_it_is_too_long_is_not_read() -> None:
    body = answer(200, bytes(1 << 20), f"{OWN}: 6")
    with saying(body) as url, closing(Coordinator(url)) as coordinator:
        meter = WorkMeter()
        with pytest.raises(WireError, match="more than 1000 bytes"):
            coordinator.adapter(NAME, meter, 1000)
        assert meter.payload_down_bytes == 0


def test_an_adapter_that_is_packed_is_not_unpacked() -> None:
    bomb = answer(200, gzip.compress(bytes(1 << 20)), "Content-Encoding: gzip")
    with (
        saying(bomb) as url,
        closing(Coordinator(url)) as coordinator,
        pytest.raises(WireError, match="not asked for"),
    ):
        coordinator.adapter(NAME, WorkMeter(), 1 << 20)


def test_a_damaged_update_is_sent_once_more_and_then_again_later() -> None:
    damaged = answer(400, json.dumps({"detail": "damaged; send it again"}).encode())
    taken = answer(200, b'{"accepted":true}')
    with saying(damaged, taken) as url, closing(Coordinator(url)) as coordinator:
        assert coordinator.upload("w", b"body", WorkMeter()).accepted
    nothing = answer(200, b"", "Upload-Offset: 0")
    answers = damaged, damaged, nothing, taken
    with saying(*answers) as url, closing(Coordinator(url)) as coordinator:
        meter = WorkMeter()
        with pytest.raises(Unreachable, match="send it again"):
            coordinator.upload("w", b"body", meter)
        assert meter.requests == 2 and coordinator.upload("w", b"body", meter).accepted


def test_a_server_that_wants_another_part_for_ever_is_waited_out() -> None:
    confused = answer(409, b"", "Upload-Offset: 2")
    with (
        saying(confused) as url,
        closing(Coordinator(url)) as coordinator,
        pytest.raises(Unreachable, match="another part"),
    ):
        coordinator.upload("w", b"body", WorkMeter())


def test_a_rest_that_belongs_to_another_body_is_noticed_and_fetched_whole() -> None:
    body = bytes(range(200))
    head = f"HTTP/1.1 200 OK\r\n{OWN}: 6\r\nContent-Length: 200\r\n\r\n"
    half = head.encode() + body[:100]
    other = answer(206, b"x" * 100, "Content-Range: bytes 100-199/200")
    with (
        saying(half, other, answer(200, body)) as url,
        closing(Coordinator(url)) as coordinator,
    ):
        with pytest.raises(Unreachable):
            coordinator.adapter(sha256(body), WorkMeter(), 200)
        assert coordinator.adapter(sha256(body), WorkMeter(), 200) == body


def test_what_goes_to_this_machine_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_server(lambda *_: (200, encode(Receipt(True)))) as url, saying(b"") as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        with closing(Coordinator(url, "key")) as device:
            assert device.membership("run", Membership("joined")) == Receipt(True)
        there = Coordinator("http://coordinator.invalid", "key")
        with closing(there), pytest.raises(Unreachable, match="disconnected"):
            there.membership("run", Membership("joined"))


def test_a_proxy_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "foo://me:secret@x")
    for name in ("all_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ProxyError, match=r"^ALL_PROXY names no proxy that can be used"):
        Coordinator("http://coordinator.invalid", "key")
    Coordinator("http://127.0.0.1:1", "key").close()  # none is needed to this machine


def test_plain_http_that_is_cut_off_is_told_of_tls_until_somebody_has_answered() -> None:
    whole = answer(200, encode(Receipt(True)))
    with saying(b"", whole, b"") as url, closing(Coordinator(url)) as coordinator:
        said = []
        for _ in range(3):
            try:
                coordinator.membership("run", Membership("joined"))
            except Unreachable as error:
                said.append(str(error))
    assert len(said) == 2
    assert "if it speaks TLS, give https:// and --ca" in said[0] and "TLS" not in said[1]


@pytest.mark.parametrize(
    "url",
    [
        *(
            "localhost:8700",
            "ftp://h",
            "https://",
            "https://h:0",
            "https://h:99999",
            "https://h/v1",
        ),
        *("https://h/?run=1", "https://h/#top", "https://h:x"),
    ],
)
def test_what_is_no_address_is_said_before_anything_is_tried(url: str) -> None:
    with pytest.raises(AddressError, match=r"HOST:PORT is expected|is not a URL"):
        address(url)


@pytest.mark.parametrize("url", ["https://user:hush@h:8700", "https://hush@h:x", "hush@h"])
def test_a_password_in_an_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(AddressError, match="give an enrolment token by --token") as refused:
        address(url)
    assert "hush" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("url", ["https://h", "http://h:8700/", "https://[::1]:8700"])
def test_addresses_are_taken(url: str) -> None:
    assert address(url).host in ("h", "::1")

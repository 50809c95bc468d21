"""The light devices' HTTP against real sockets: whole answers, broken ones, and silence."""

import asyncio
import socket
import threading
import time
from contextlib import suppress

import pytest

from smidgen.profiling.fleet.device import Answer, Connection, ConnectionBroke

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-One: 1\r\n\r\nhello"


def say(listening: socket.socket, answers: list[bytes], pause_s: float) -> None:
    """Take one connection, and answer each of its requests with bytes."""
    connection, _ = listening.accept()
    with connection, suppress(OSError):
        for answer in answers:
            connection.recv(1000)
            connection.sendall(answer)
        time.sleep(pause_s)


def asked(answers: list[bytes], timeout_s: float = 5.0, pause_s: float = 0.0) -> list[Answer]:
    """What a connection gets from a server that says these bytes, one piece per request."""

    async def ask(port: int) -> list[Answer]:
        one = Connection(f"http://127.0.0.1:{port}", None, {"A": "b"}, timeout_s)
        try:
            found = [await one.ask("GET", "/x") for _ in answers]
            assert one.opened == 1
            return found
        finally:
            one.close()
            await asyncio.sleep(0)  # what was dropped is closed in the loop's next turn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=say, args=(listening, answers, pause_s))
        thread.start()
        try:
            return asyncio.run(ask(listening.getsockname()[1]))
        finally:
            thread.join()


def test_answers_come_whole_over_one_connection() -> None:
    first, second = asked([OK, OK])
    assert (first.status, first.body, first.headers["x-one"]) == (200, b"hello", "1")
    assert second == first


@pytest.mark.parametrize(
    "answer",
    [b"", OK[:-1], b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 xx\r\n\r\n"],
)
def test_a_broken_answer_is_one_line(answer: bytes) -> None:
    with pytest.raises(ConnectionBroke, match="no answer: "):
        asked([answer])


def test_a_server_that_is_silent_is_not_waited_for_for_ever() -> None:
    with pytest.raises(ConnectionBroke, match=r"no answer within 0\.1 s"):
        asked([OK[:-1]], timeout_s=0.1, pause_s=0.3)


def test_nobody_there_is_one_line() -> None:
    with pytest.raises(ConnectionBroke, match="cannot connect"):
        asyncio.run(Connection("http://127.0.0.1:1", None, {}, 5.0).ask("GET", "/"))

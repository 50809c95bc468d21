import os
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Barrier

import httpx
import pytest

pytest.importorskip("fastapi")

from smidgen.edge_client.client.connection import nobody
from smidgen.edge_client.wire.tensors import digest_header, sha256
from tests.coordinator.serving.small_server import SmallServer, serving

BODY = Random(1).randbytes(700_001)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SmallServer]:
    with serving(tmp_path) as small:
        yield small


def headers_of(body: bytes, part: str = "") -> dict[str, str]:
    told = {"Repr-Digest": digest_header(sha256(body))}
    return told | ({"Content-Range": f"bytes {part}"} if part else {})


def put(server: SmallServer, sent: bytes, whole: bytes = BODY, part: str = "") -> httpx.Response:
    url, headers = f"{server.url}/v1/work/w/update", headers_of(whole, part)
    return httpx.put(url, content=sent, headers=headers, timeout=120, verify=nobody())


def head(server: SmallServer, whole: bytes = BODY) -> httpx.Headers:
    url, headers = f"{server.url}/v1/work/w/update", headers_of(whole)
    found = httpx.head(url, headers=headers, timeout=120, verify=nobody())
    assert found.status_code == 204
    return found.headers


def cut_after(server: SmallServer, size: int, whole: bytes = BODY) -> int:
    """Send the beginning of a body and break off; how much of it arrived."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request(whole) + whole[:size])
        wait_for(server, size, whole)
    return int(head(server, whole)["Upload-Offset"])


def request(whole: bytes) -> bytes:
    digest = digest_header(sha256(whole))
    said = f"PUT /v1/work/w/update HTTP/1.1\r\nHost: x\r\nContent-Length: {len(whole)}\r\n"
    return f"{said}Repr-Digest: {digest}\r\n\r\n".encode()


def wait_for(server: SmallServer, size: int, whole: bytes = BODY) -> None:
    """Until nearly all of it is on the disk; less than a piece is still gathered."""
    end = time.monotonic() + 90
    while sum(path.stat().st_size for path in server.uploads.iterdir()) < size - (128 << 10):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_body_is_whole_on_the_disk_and_nothing_else_is(server: SmallServer) -> None:
    response = put(server, BODY)
    assert response.json() == {"accepted": True}
    assert server.body_of("w") == BODY
    assert list(server.uploads.iterdir()) == []
    assert head(server)["Upload-Complete"] == "?1"


def test_what_is_missing_is_enough(server: SmallServer) -> None:
    assert head(server)["Upload-Offset"] == "0"
    offset = cut_after(server, 400_000)
    assert 200_000 < offset <= 400_000
    last = len(BODY) - 1
    response = put(server, BODY[offset:], part=f"{offset}-{last}/{len(BODY)}")
    assert response.json()["accepted"] and server.body_of("w") == BODY
    again = put(server, b"", part=f"*/{len(BODY)}")
    assert again.json()["accepted"] and server.counted["w"] == 1


def test_another_part_than_the_missing_one_is_told_where_to_go_on(server: SmallServer) -> None:
    offset = cut_after(server, 400_000)
    for part in (f"1-{len(BODY) - 1}/{len(BODY)}", f"*/{len(BODY)}"):
        response = put(server, BODY[1:] if part[0] == "1" else b"", part=part)
        assert (response.status_code, response.headers["Upload-Offset"]) == (409, str(offset))
    for part in ("0-9/100", "9-5/6", "x", "0-99/*", f"{'9' * 20}-1/2"):
        assert put(server, BODY, part=part).status_code == 400


def test_a_wrong_digest_says_what_to_do_and_leaves_nothing(server: SmallServer) -> None:
    damaged = bytearray(BODY)
    damaged[123_456] ^= 1
    response = put(server, bytes(damaged))
    assert response.status_code == 400
    assert "send the whole update again" in response.json()["detail"]
    assert (head(server)["Upload-Offset"], list(server.uploads.iterdir())) == ("0", [])
    assert put(server, BODY).json()["accepted"]


@pytest.mark.parametrize("digest", ["", "md5=:AAAA:", "sha-256=:short=:", "sha-256=RK"])
def test_a_digest_that_names_nothing_is_refused(server: SmallServer, digest: str) -> None:
    url = f"{server.url}/v1/work/w/update"
    for method in ("PUT", "HEAD"):
        told = {"Repr-Digest": digest}
        assert httpx.request(method, url, content=b"x", headers=told).status_code == 422


def test_two_bodies_are_never_mixed(server: SmallServer) -> None:
    other = Random(2).randbytes(len(BODY))
    offset = cut_after(server, 400_000, other)
    assert offset > 0 and head(server)["Upload-Offset"] == "0"
    last = len(BODY) - 1
    response = put(server, BODY[offset:], part=f"{offset}-{last}/{len(BODY)}")
    assert (response.status_code, response.headers["Upload-Offset"]) == (409, "0")
    assert put(server, BODY).json()["accepted"]
    assert "answered already" in put(server, other, other).json()["reason"]
    assert server.body_of("w") == BODY and list(server.uploads.iterdir()) == []


def test_nothing_of_no_bytes_does_not_end_another_body(server: SmallServer) -> None:
    offset = cut_after(server, 400_000)
    response = put(server, b"", Random(2).randbytes(9), part="*/0")
    assert (response.status_code, response.headers["Upload-Offset"]) == (409, "0")
    assert int(head(server)["Upload-Offset"]) == offset
    assert put(server, BODY[offset:], part=f"{offset}-{len(BODY) - 1}/{len(BODY)}").is_success


def test_a_request_that_stands_still_is_overtaken(server: SmallServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request(BODY) + BODY[:400_000])
        wait_for(server, 400_000)
        assert put(server, BODY).json()["accepted"]
        connection.sendall(BODY[400_000:])  # too late, and none of it counts
        answer = connection.recv(100)
    assert b" 200 " in answer or b" 409 " in answer
    assert server.counted == {"w": 1} and server.body_of("w") == BODY


def test_the_same_body_many_times_at_once_counts_once(server: SmallServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda _: put(server, BODY), range(16)))
    assert {response.status_code for response in said} <= {200, 409}
    assert any(response.status_code == 200 for response in said)
    assert all(one.json()["accepted"] for one in said if one.status_code == 200)
    assert server.counted == {"w": 1} and server.body_of("w") == BODY
    assert list(server.uploads.iterdir()) == []


def test_of_many_bodies_at_once_one_counts_and_is_whole(server: SmallServer) -> None:
    bodies = [Random(seed).randbytes(300_000) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda body: put(server, body, body), bodies * 2))
    assert any(response.status_code == 200 for response in said)
    assert server.counted == {"w": 1} and server.body_of("w") in bodies
    assert list(server.uploads.iterdir()) == []


def test_a_body_that_is_too_long_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, most_bytes=500_000) as server:
        response = put(server, BODY)
        assert response.status_code == 413 and "over 500000 bytes" in response.json()["detail"]
        assert list(server.uploads.iterdir()) == []


def test_another_process_goes_on_where_one_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        offset = cut_after(server, 400_000)
    with serving(tmp_path) as server:
        assert head(server)["Upload-Offset"] == str(offset)
        last = len(BODY) - 1
        response = put(server, BODY[offset:], part=f"{offset}-{last}/{len(BODY)}")
        assert response.json()["accepted"] and server.body_of("w") == BODY


def test_what_a_power_cut_spoiled_is_sent_again(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        offset = cut_after(server, 400_000)
    (path,) = (tmp_path / "uploads").iterdir()
    path.write_bytes(bytes(offset))
    with serving(tmp_path) as server:
        last = len(BODY) - 1
        response = put(server, BODY[offset:], part=f"{offset}-{last}/{len(BODY)}")
        assert response.status_code == 400
        assert put(server, BODY).json()["accepted"] and server.body_of("w") == BODY


def test_a_file_that_vanished_is_sent_again(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        cut_after(server, 400_000)
        next(server.uploads.iterdir()).rename(tmp_path / "away")
        last = len(BODY) - 1
        offset = int(head(server)["Upload-Offset"])
        assert not put(server, BODY[offset:], part=f"{offset}-{last}/{len(BODY)}").is_success
        assert put(server, BODY).json()["accepted"]


def test_parts_that_are_old_are_swept_at_the_start(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        cut_after(server, 400_000)
    (path,) = (tmp_path / "uploads").iterdir()
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    (tmp_path / "uploads" / "stray").write_bytes(b"x")
    with serving(tmp_path) as server:
        assert (head(server)["Upload-Offset"], list(server.uploads.iterdir())) == ("0", [])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.fault
def test_a_full_disk_refuses_for_a_while_and_keeps_what_it_has(small_disk: Path) -> None:
    with serving(small_disk) as server:
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(500_000))
        for _ in range(2):
            response = put(server, BODY)
            assert (response.status_code, response.headers["Retry-After"]) == (507, "20")
            assert "disk is full" in response.json()["detail"]
            assert list(server.uploads.iterdir()) == []
        ballast.unlink()
        assert put(server, BODY).json()["accepted"] and server.body_of("w") == BODY


@pytest.mark.fault
def test_a_read_only_disk_refuses_for_a_while(small_disk: Path) -> None:
    """A coordinator that answered 500 was taken for something in between, and work was lost."""
    with serving(small_disk) as server:
        for how in ("ro", "rw"):
            subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)
            response = put(server, BODY)
            if how == "ro":
                assert (response.status_code, response.headers["Retry-After"]) == (503, "20")
                assert "disk is read-only" in response.json()["detail"]
        assert response.json()["accepted"] and server.body_of("w") == BODY


@pytest.mark.fault
@pytest.mark.parametrize("_time", range(3))
def test_of_parts_that_fill_a_disk_at_once_one_makes_room_for_the_others(
    small_disk: Path, _time: int
) -> None:
    bodies = [Random(seed).randbytes(400_000) for seed in range(4)]
    together = Barrier(4)
    with serving(small_disk) as server:

        def pieces(body: bytes) -> Iterator[bytes]:
            yield body[:250_000]
            together.wait(30)
            yield body[250_000:]

        def send(number: int) -> bool:
            url, body = f"{server.url}/v1/work/{number}/update", bodies[number]
            told = headers_of(body) | {"Content-Length": str(len(body))}
            return httpx.put(url, content=pieces(body), headers=told, verify=nobody()).is_success

        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(send, range(4)))
        assert 1 <= sum(taken) <= 2  # a third of 0.4 MB does not fit
        for number, is_taken in enumerate(taken):
            assert not is_taken or server.body_of(str(number)) == bodies[number]
        assert list(server.uploads.iterdir()) == []


def test_a_body_that_nobody_wants_is_answered_soon_however_slowly_it_comes(
    server: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("uploads", "handlers"):
        monkeypatch.setattr(f"smidgen.coordinator.serving.http.{module}.LINGER_S", 0.1)
    assert put(server, BODY).json()["accepted"]
    heard, end = b"", time.monotonic() + 5
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request(BODY))
        connection.settimeout(0.02)
        while not heard and time.monotonic() < end:
            connection.sendall(b"x")
            with suppress(TimeoutError):
                heard = connection.recv(65536)
    assert heard.startswith(b"HTTP/1.1 200") and b"connection: close" in heard


def test_a_request_without_an_end_holds_up_nobody(server: SmallServer) -> None:
    others = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    try:
        for connection in others:
            connection.sendall(request(BODY).replace(b"/w/", b"/o/") + BODY[:1000])
        assert put(server, BODY).json()["accepted"]
    finally:
        for connection in others:
            connection.close()

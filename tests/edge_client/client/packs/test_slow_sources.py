"""Sources that answer a byte at a time: nobody holds a device up, and what came is not lost."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from smidgen.edge_client.client.connection import Unreachable
from smidgen.edge_client.client.packs.fetch import JUDGED_S, LEAST_BYTES, Fetch, NotFetched
from smidgen.edge_client.client.packs.shelf import Shelf
from smidgen.edge_client.client.packs.sources import Folder, PackSource, Served, Web
from smidgen.edge_client.wire.messages import OWN, PROTOCOL
from tests.edge_client.client.packs.packs import (
    ROOM,
    Script,
    announced,
    contents,
    from_folder,
    make_pack,
    served,
)

WEIGHTS = "weights.safetensors"
PATIENCE_S = 0.3
Made = tuple[str, Path]
Write = Callable[[bytes], object]
Say = Callable[[Write], Iterator[bytes]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_pack(tmp_path_factory.mktemp("made"))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "packs", ROOM)


class Clock:
    """Time that passes as it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def trickling(clock: Clock, folder: Path, each_s: float, piece: int = 1) -> Script:
    """A source that takes so long for each piece of the weights."""

    def give(file: str, first: int) -> Iterator[bytes]:
        if file != WEIGHTS:
            yield from from_folder(folder)(file, first)
            return
        for part in from_folder(folder, piece)(file, first):
            clock.now_s += each_s
            yield part

    return Script(give, "slow")


def test_who_gives_little_for_long_is_left_for_the_next_source_which_goes_on(
    made: Made, shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    clock, quick = Clock(), Script(from_folder(made[1]), "quick")
    slow = trickling(clock, made[1], each_s=1.0)
    fetch = Fetch(shelf, made[0], announced(made[1]), [slow, quick], clock)
    assert fetch.go_on(math.inf) is not None
    assert slow.asked[-1] == (WEIGHTS, 0) and quick.asked == [(WEIGHTS, int(JUDGED_S))]
    assert f"slow: only {JUDGED_S:.0f} bytes came in {JUDGED_S:.0f} s" in caplog.text
    assert contents(shelf.folder / made[0]) == contents(made[1])


def test_where_all_are_too_slow_it_is_given_up_for_now_and_what_came_is_kept(
    made: Made, shelf: Shelf
) -> None:
    clock = Clock()
    slow = trickling(clock, made[1], each_s=1.0)
    fetch = Fetch(shelf, made[0], announced(made[1]), [slow], clock, most_rounds=1)
    with pytest.raises(NotFetched, match="cannot be fetched now: slow: only 30 bytes came"):
        fetch.go_on(math.inf)
    assert (shelf.partial(made[0]) / WEIGHTS).stat().st_size == JUDGED_S


def test_a_line_that_is_slow_but_not_that_slow_is_borne(made: Made, shelf: Shelf) -> None:
    clock = Clock()
    slow = trickling(clock, made[1], each_s=1.0, piece=LEAST_BYTES // int(JUDGED_S))
    fetch = Fetch(shelf, made[0], announced(made[1]), [slow], clock, most_rounds=1)
    assert fetch.go_on(math.inf) is not None and clock.now_s > JUDGED_S


def test_time_in_which_nobody_waits_for_a_source_is_not_its_fault(made: Made, shelf: Shelf) -> None:
    clock = Clock()
    slow = trickling(clock, made[1], each_s=1.0, piece=LEAST_BYTES // int(JUDGED_S))
    fetch = Fetch(shelf, made[0], announced(made[1]), [slow], clock, most_rounds=1)
    while fetch.go_on(clock.now_s + 5.0) is None:
        clock.now_s += 3600.0  # of other work
    assert [file for file, _ in slow.asked].count(WEIGHTS) == 1


def test_a_line_that_breaks_after_a_little_each_time_is_given_up_for_now(
    made: Made, shelf: Shelf
) -> None:
    def broken(file: str, first: int) -> Iterator[bytes]:
        yield (made[1] / file).read_bytes()[first : first + 10]
        raise Unreachable("cut")

    few = Script(broken)
    fetch = Fetch(shelf, made[0], announced(made[1]), [few], most_rounds=2)
    with pytest.raises(NotFetched, match="cannot be fetched now: script: cut"):
        fetch.go_on(time.monotonic() + 1.0)
    assert [first for _, first in few.asked] == [0, 10]


def begins(say: Write) -> Iterator[bytes]:
    """Never ends its headers."""
    say(b"HTTP/1.1 200 OK\r\n")
    while True:
        yield b"X-More: 1\r\n"


def chunks(say: Write) -> Iterator[bytes]:
    """Never ends the first chunk's own header, of which no reader hears."""
    own = f"{OWN}: {PROTOCOL}".encode()
    say(b"HTTP/1.1 200 OK\r\n" + own + b"\r\nTransfer-Encoding: chunked\r\n\r\n5;x=")
    while True:
        yield b"x"


def without_length(say: Write) -> Iterator[bytes]:
    """Gives nothing more of a body whose length nobody knows."""
    own = f"{OWN}: {PROTOCOL}".encode()
    say(b"HTTP/1.1 200 OK\r\n" + own + b"\r\nConnection: close\r\n\r\n")
    while True:
        yield b""


def web(url: str) -> PackSource:
    return Web(url, PATIENCE_S)


def coordinator(url: str) -> PackSource:
    return Served(url, "key", None, PATIENCE_S)


def test_a_file_that_is_asked_of_the_coordinator_is_a_sign_of_life(
    made: Made, shelf: Shelf
) -> None:
    asked = list[str]()
    with served(BaseHTTPRequestHandler) as url:  # which answers 501
        source = Served(url, "key", None, PATIENCE_S, lambda: asked.append(url))
        fetch = Fetch(shelf, made[0], announced(made[1]), [source, Folder(made[1])])
        assert fetch.go_on(math.inf) is not None
    assert asked


@pytest.mark.parametrize("source_of", [web, coordinator])
@pytest.mark.parametrize("says", [begins, chunks, without_length])
def test_who_trickles_below_what_httpx_sees_is_cut_off_and_the_next_one_helps(
    says: Say, source_of: Callable[[str], PackSource], made: Made, shelf: Shelf
) -> None:
    asked = list[str]()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            with suppress(OSError):
                for more in says(self.wfile.write):
                    self.wfile.write(more)
                    time.sleep(PATIENCE_S / 10)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(Slow) as url:
        began_s = time.monotonic()
        sources = [source_of(url), Folder(made[1])]
        fetch = Fetch(shelf, made[0], announced(made[1]), sources)
        assert fetch.go_on(math.inf) is not None
        assert time.monotonic() - began_s < 30.0  # it would go on for ever
    assert len(asked) in (1, 2)  # the slow one is asked for one file or two
    assert contents(shelf.folder / made[0]) == contents(made[1])

"""A pack on its way to a device: cut, wrong, too long, and whole in the end. Nothing is mocked."""

import errno
import math
import os
import resource
import stat
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from smidgen.edge_client.client.connection import Unreachable
from smidgen.edge_client.client.packs.fetch import Fetch, NotFetched
from smidgen.edge_client.client.packs.shelf import NoRoom, Shelf
from smidgen.edge_client.client.packs.sources import Folder, Web, source_of
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.fleet import MANIFEST, PackFile
from tests.edge_client.client.packs.packs import (
    ROOM,
    Script,
    announced,
    contents,
    fetch_of,
    from_folder,
    make_pack,
    served,
    told_of,
)

WEIGHTS = "weights.safetensors"
Made = tuple[str, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_pack(tmp_path_factory.mktemp("made"))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "packs", ROOM)


def assert_is_whole(shelf: Shelf, made: Made) -> None:
    place = shelf.folder / made[0]
    assert contents(place) == contents(made[1])
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
    assert [path.name for path in shelf.folder.iterdir()] == [made[0]]


def test_a_pack_from_a_folder_of_packs_is_installed_as_it_is(made: Made, shelf: Shelf) -> None:
    base = fetch_of(shelf, made, Folder(made[1].parent)).go_on(math.inf)
    assert base is not None and base.base_id == made[0] and base.folder == shelf.folder / made[0]
    assert shelf.base(made[0]) == base
    assert_is_whole(shelf, made)


def test_what_has_arrived_is_not_fetched_again_in_the_next_life(made: Made, shelf: Shelf) -> None:
    def cut(file: str, first: int) -> Iterator[bytes]:
        if file == WEIGHTS and not first:
            yield (made[1] / file).read_bytes()[:5000]
        if file == WEIGHTS:
            raise Unreachable("cut")
        yield from from_folder(made[1])(file, first)

    with pytest.raises(NotFetched, match="what came is kept for the next try"):
        fetch_of(shelf, made, Script(cut), most_rounds=1).go_on(math.inf)
    there = Script(from_folder(made[1]))
    fetch = fetch_of(Shelf(shelf.folder, ROOM), made, there)
    assert fetch.go_on(math.inf) is not None
    assert there.asked == [(WEIGHTS, 5000)]
    assert fetch.came_bytes == (made[1] / WEIGHTS).stat().st_size - 5000
    assert_is_whole(shelf, made)


def test_a_part_that_a_power_cut_damaged_is_fetched_anew(made: Made, shelf: Shelf) -> None:
    (shelf.partial(made[0]) / WEIGHTS).write_bytes(bytes(5000))
    there = Script(from_folder(made[1]))
    assert fetch_of(shelf, made, there).go_on(math.inf) is not None
    assert [first for file, first in there.asked if file == WEIGHTS] == [5000, 0]
    assert_is_whole(shelf, made)


def test_a_whole_file_that_a_power_cut_damaged_is_fetched_anew(made: Made, shelf: Shelf) -> None:
    size = (made[1] / WEIGHTS).stat().st_size
    (shelf.partial(made[0]) / WEIGHTS).write_bytes(bytes(size))
    assert fetch_of(shelf, made, Script(from_folder(made[1]))).go_on(math.inf) is not None
    assert_is_whole(shelf, made)


def test_a_mirror_with_wrong_bytes_is_asked_once_and_the_next_one_helps(
    made: Made, shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(file: str, first: int) -> Iterator[bytes]:
        body = (made[1] / file).read_bytes()
        yield (body if file != WEIGHTS else bytes(len(body)))[first:]

    liar, there = Script(wrong, "liar"), Script(from_folder(made[1]), "honest")
    assert fetch_of(shelf, made, liar, there).go_on(math.inf) is not None
    assert [file for file, _ in liar.asked].count(WEIGHTS) == 1
    assert there.asked == [(WEIGHTS, 0)]
    assert "liar: weights.safetensors has another SHA-256" in caplog.text
    assert_is_whole(shelf, made)


def test_a_source_that_ends_another_ones_file_wrongly_gets_a_second_try(
    made: Made, shelf: Shelf
) -> None:
    (shelf.partial(made[0]) / WEIGHTS).write_bytes(b"from somewhere else")
    assert fetch_of(shelf, made, Folder(made[1])).go_on(math.inf) is not None
    assert_is_whole(shelf, made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: bytes(len(body)), "has another SHA-256"),
        (lambda body: body + b"x", "is longer"),
        (lambda body: body[:-1], "is cut short"),
    ],
)
def test_a_wrong_pack_is_told_in_one_line_and_not_installed(
    change: object, said: str, made: Made, shelf: Shelf
) -> None:
    assert callable(change)
    wrong = Script(lambda file, first: iter([change((made[1] / file).read_bytes())[first:]]))
    with pytest.raises(NotFetched, match=said) as raised:
        fetch_of(shelf, made, wrong).go_on(math.inf)
    assert "\n" not in str(raised.value) and "give --pack-mirror" in str(raised.value)
    assert not (shelf.folder / made[0]).exists()


def test_an_endless_file_takes_no_more_room_than_was_announced(made: Made, shelf: Shelf) -> None:
    def endless(file: str, first: int) -> Iterator[bytes]:
        while True:
            yield bytes(100)

    with pytest.raises(NotFetched, match=r"manifest\.json is longer"):
        fetch_of(shelf, made, Script(endless)).go_on(math.inf)
    assert sum(path.stat().st_size for path in shelf.partial(made[0]).iterdir()) == 0


def test_a_source_that_gives_whole_files_alone_is_used(made: Made, shelf: Shelf) -> None:
    (shelf.partial(made[0]) / WEIGHTS).write_bytes((made[1] / WEIGHTS).read_bytes()[:100])
    plain = Script(from_folder(made[1]), is_ranged=False)
    assert fetch_of(shelf, made, plain).go_on(math.inf) is not None
    assert_is_whole(shelf, made)


def test_nobody_who_answers_is_told_in_one_line_and_what_came_stays(
    made: Made, shelf: Shelf
) -> None:
    def silent(file: str, first: int) -> Iterator[bytes]:
        if file == WEIGHTS:
            raise Unreachable("no answer")
        yield from from_folder(made[1])(file, first)

    with pytest.raises(NotFetched, match="cannot be fetched now: script: no answer"):
        fetch_of(shelf, made, Script(silent)).go_on(math.inf)
    assert (shelf.partial(made[0]) / MANIFEST).is_file()


def test_a_full_disk_is_told_in_one_line_and_nothing_is_left(made: Made, shelf: Shelf) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 13, limits[1]))
    try:
        with pytest.raises(NoRoom, match="are needed: free some space") as raised:
            fetch_of(shelf, made, Folder(made[1])).go_on(math.inf)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(raised.value)
    assert list(shelf.folder.iterdir()) == []


def test_a_disk_that_fails_at_the_last_moment_is_told_in_one_line_and_nothing_is_left(
    made: Made, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    fetch = fetch_of(shelf, made, Folder(made[1]))
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(NoRoom, match=r"cannot be written to .*: Input/output error"):
        fetch.go_on(math.inf)
    fetch.close()
    assert list(shelf.folder.iterdir()) == []


def test_a_manifest_of_another_base_is_refused(made: Made, shelf: Shelf) -> None:
    other = "0" * 64
    fetch = Fetch(shelf, other, announced(made[1]), [Script(from_folder(made[1]))])
    with pytest.raises(NotFetched, match="not the run's base 000000000000"):
        fetch.go_on(math.inf)
    assert list(shelf.folder.iterdir()) == []


def test_an_announcement_that_differs_from_the_manifest_is_refused(
    made: Made, shelf: Shelf
) -> None:
    told = announced(made[1])
    for wrong in (
        replace(told, files=told.files | {WEIGHTS: told_of(b"other")}),
        replace(told, licence="apache-2.0"),
    ):
        with pytest.raises(NotFetched, match="not the run's base"):
            Fetch(shelf, made[0], wrong, [Folder(made[1])]).go_on(math.inf)


def test_files_that_no_pack_has_are_refused_before_anybody_is_asked(
    made: Made, shelf: Shelf
) -> None:
    told = announced(made[1])
    with pytest.raises(NotFetched, match=r"lists 'run\.sh'"):
        Fetch(shelf, made[0], replace(told, files=told.files | {"run.sh": told_of(b"")}), [])
    few = {name: one for name, one in told.files.items() if name != WEIGHTS}
    with pytest.raises(NotFetched, match=r"lacks weights\.safetensors"):
        Fetch(shelf, made[0], replace(told, files=few), [])
    with pytest.raises(NotFetched, match="nobody is known who has the pack"):
        Fetch(shelf, made[0], told, [])


@pytest.mark.parametrize("is_hard", [False, True])
def test_a_link_in_the_place_of_a_part_is_removed_and_not_followed(
    is_hard: bool, made: Made, shelf: Shelf, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    place = shelf.partial(made[0]) / WEIGHTS
    place.hardlink_to(victim) if is_hard else place.symlink_to(victim)
    assert fetch_of(shelf, made, Folder(made[1])).go_on(math.inf) is not None
    assert victim.read_text() == "mine"
    assert_is_whole(shelf, made)


def test_a_link_in_the_place_of_a_pack_is_removed_and_not_followed(
    made: Made, shelf: Shelf, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("mine")
    (shelf.folder / f".{made[0]}.fetching").symlink_to(victim)
    (shelf.folder / made[0]).symlink_to(victim)
    assert shelf.base(made[0]) is None
    assert fetch_of(shelf, made, Folder(made[1])).go_on(math.inf) is not None
    assert contents(victim) == {"file": b"mine"}
    assert_is_whole(shelf, made)


def test_a_pipe_in_a_mirror_holds_nobody_up(made: Made, shelf: Shelf, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror" / made[0]
    mirror.mkdir(parents=True)
    (mirror / MANIFEST).write_bytes((made[1] / MANIFEST).read_bytes())
    os.mkfifo(mirror / "tokenizer_config.json")  # the smallest comes next
    with pytest.raises(NotFetched, match=r"tokenizer_config\.json is not a file"):
        fetch_of(shelf, made, Folder(mirror.parent)).go_on(math.inf)


def test_a_mirror_that_cannot_be_read_loses_nothing_and_the_next_one_helps(
    made: Made, shelf: Shelf
) -> None:
    class Closed(Folder):
        def _found(self, base_id: str) -> Path:
            raise PermissionError(13, "Permission denied")

    def cut(file: str, first: int) -> Iterator[bytes]:
        yield (made[1] / file).read_bytes()[first : first + 100]
        raise Unreachable("cut")

    with pytest.raises(NotFetched, match="cannot be fetched now"):
        fetch_of(shelf, made, Script(cut), Closed(made[1]), most_rounds=1).go_on(math.inf)
    assert any(shelf.partial(made[0]).iterdir())  # what came is there
    assert fetch_of(shelf, made, Closed(made[1]), Folder(made[1])).go_on(math.inf) is not None


def test_the_same_bytes_again_and_again_are_given_up(made: Made, shelf: Shelf) -> None:
    def cut(file: str, first: int) -> Iterator[bytes]:
        yield (made[1] / file).read_bytes()[:1000]
        raise Unreachable("cut")

    source = Script(cut, is_ranged=False)
    with pytest.raises(NotFetched, match="cannot be fetched now"):
        fetch_of(shelf, made, source, most_rounds=3).go_on(math.inf)
    assert len(source.asked) <= 4


def test_a_mirror_that_is_not_there_is_named(made: Made, shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(NotFetched, match=r"--pack-mirror .*gone: No such file"):
        fetch_of(shelf, made, Folder(tmp_path / "gone")).go_on(math.inf)


@pytest.mark.parametrize("said", ["ftp://host/x", "https://", "http://"])
def test_a_mirror_is_an_address_or_a_folder(said: str) -> None:
    with pytest.raises(WrongInput, match="--pack-mirror"):
        source_of(said)


@pytest.fixture
def web(made: Made) -> Iterator[str]:
    """The folder of packs by their ids over HTTP, by a server that knows no ranges."""
    shown = made[1].parent / "shown"
    shown.mkdir(exist_ok=True)
    if not (shown / made[0]).exists():
        (shown / made[0]).symlink_to(made[1])

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(partial(Quiet, directory=str(shown))) as url:
        yield url


def test_a_pack_comes_from_a_web_server_that_knows_no_ranges(
    made: Made, shelf: Shelf, web: str
) -> None:
    (shelf.partial(made[0]) / WEIGHTS).write_bytes(b"a beginning")
    assert fetch_of(shelf, made, Web(web)).go_on(math.inf) is not None
    assert_is_whole(shelf, made)


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (302, {"Location": "/elsewhere"}, "leads elsewhere"),
        (404, {}, "answered 404"),
        (200, {"Content-Encoding": "gzip"}, "comes packed"),
        (206, {"Content-Range": "bytes 7-8/9"}, "another part"),
        (416, {}, "shorter"),
        (500, {}, "answered 500"),
    ],
)
def test_an_address_that_answers_otherwise_is_named(
    status: int, headers: dict[str, str], said: str, made: Made, shelf: Shelf
) -> None:
    class Otherwise(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert "Authorization" not in self.headers
            self.send_response(status)
            for name, value in ({"Content-Length": "0"} | headers).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(Otherwise) as url, pytest.raises(NotFetched, match=said):
        fetch_of(shelf, made, Web(url), most_rounds=1).go_on(math.inf)


def test_a_proxy_that_cannot_be_used_is_named_and_the_next_source_helps(
    made: Made, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("all_proxy", "foo://me:secret@x")
    mirror = Web("http://mirror.example/packs")
    with pytest.raises(NotFetched, match=r"mirror\.example/packs: all_proxy names no proxy"):
        fetch_of(shelf, made, mirror).go_on(math.inf)
    assert fetch_of(shelf, made, mirror, Folder(made[1])).go_on(math.inf) is not None
    assert "all_proxy names no proxy" in caplog.text and "secret" not in caplog.text


def test_a_size_beyond_the_disk_is_refused_before_anybody_is_asked(
    made: Made, shelf: Shelf
) -> None:
    told = announced(made[1])
    huge = replace(told, files=told.files | {WEIGHTS: PackFile(2**50, "0" * 64)})
    with pytest.raises(NoRoom, match=r"--packs-size allows 1\.00 GiB; raise it"):
        shelf.make_room(made[0], huge.total_bytes, ())

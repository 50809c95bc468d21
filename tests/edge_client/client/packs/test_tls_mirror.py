"""A pack mirror over TLS with a real certificate of an authority that few believe."""

import math
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from smidgen.coordinator.trust.folder import Pair, draw_authority, sign_server
from smidgen.edge_client.client.packs.fetch import NotFetched
from smidgen.edge_client.client.packs.shelf import Shelf
from smidgen.edge_client.client.packs.sources import Folder, Web
from tests.edge_client.client.packs.packs import ROOM, contents, fetch_of, make_pack, served
from tests.edge_client.client.test_trust import context_of

NOW = datetime.now(timezone.utc)
Made = tuple[str, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_pack(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def ours() -> Pair:
    return draw_authority(NOW)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "packs", ROOM)


def mirror(folder: Path, made: Made, pair: Pair) -> Iterator[str]:
    """The pack by its id over https."""
    shown = folder / "shown"
    shown.mkdir()
    (shown / made[0]).symlink_to(made[1])

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = partial(Quiet, directory=str(shown))
    with served(handler, context_of(folder / "served", pair)) as url:
        yield url


def test_a_mirror_s_authority_is_believed_where_the_system_is_told_of_it(
    made: Made, shelf: Shelf, ours: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_bytes(ours.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    for url in mirror(tmp_path, made, sign_server(ours, ["127.0.0.1"], NOW, 365)):
        assert fetch_of(shelf, made, Web(url)).go_on(math.inf) is not None
    assert contents(shelf.folder / made[0]) == contents(made[1])


def test_without_it_the_mirror_is_refused_in_one_line_and_the_next_one_helps(
    made: Made, shelf: Shelf, ours: Pair, tmp_path: Path
) -> None:
    for url in mirror(tmp_path, made, sign_server(ours, ["127.0.0.1"], NOW, 365)):
        with pytest.raises(NotFetched, match="does not believe") as raised:
            fetch_of(shelf, made, Web(url)).go_on(math.inf)
        assert "\n" not in str(raised.value) and "name it by SSL_CERT_FILE" in str(raised.value)
        assert raised.value.exit_code == 1
        assert fetch_of(shelf, made, Web(url), Folder(made[1])).go_on(math.inf) is not None


def test_a_certificate_of_a_believed_authority_that_has_expired_is_refused(
    made: Made, shelf: Shelf, ours: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_bytes(ours.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    old = sign_server(ours, [], NOW - timedelta(days=800), 365)
    for url in mirror(tmp_path, made, old):
        with pytest.raises(NotFetched, match="certificate has expired"):
            fetch_of(shelf, made, Web(url)).go_on(math.inf)

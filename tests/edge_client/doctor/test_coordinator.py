"""What is said of a coordinator: real servers on real sockets, some with a wrong certificate."""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from socket import create_server

import pytest

pytest.importorskip("cryptography")

from smidgen.coordinator.trust.folder import draw_authority
from smidgen.edge_client.client.connection import AddressError
from smidgen.edge_client.client.trust import KEPT
from smidgen.edge_client.doctor.coordinator import read_coordinator
from smidgen.edge_client.doctor.machine import ERROR, OK, WARNING, Finding
from smidgen.edge_client.wire.pins import pin_of
from tests.edge_client.client.servers import Answer, Foreign, http_server
from tests.edge_client.client.test_trust import NOW, coordinator, server_of

OURS, THEIRS = draw_authority(NOW), draw_authority(NOW)
CA = pin_of(OURS.certificate)


@dataclass
class Asked:
    """What a server was asked."""

    lines: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        self.lines.append(f"{method} {path} {body!r}")
        return 404, b'{"detail": "no CA"}'


def look(url: str, state: Path, ca: str = "", late_s: float = 0.0) -> list[Finding]:
    return list(read_coordinator(url, ca, state, False, time.time() - late_s))


def test_a_coordinator_that_answers_is_ok_and_hears_nothing_of_the_device(tmp_path: Path) -> None:
    asked = Asked()
    with http_server(asked.answer) as url:
        answers, clock = look(url, tmp_path)
    assert (answers.state, answers.found) == (OK, f"{url} answers, in plain HTTP")
    assert clock.state == OK and clock.found.endswith(" s from this device's")
    assert asked.lines == ["GET /v1/ca b''"]


def test_a_certificate_that_is_believed_is_told_with_its_end(tmp_path: Path) -> None:
    with coordinator(tmp_path, server_of(OURS, days=365), OURS.certificate) as (url, _):
        found = look(url, tmp_path / "state", CA)[0]
    until = (NOW + timedelta(days=365)).strftime("%Y-%m-%d")
    assert found.state == OK and found.found.endswith(f"its certificate is believed until {until}")
    assert not (tmp_path / "state").exists()


def test_the_kept_authority_is_believed_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / KEPT).write_bytes(OURS.certificate)
    with coordinator(tmp_path, server_of(OURS), OURS.certificate) as (url, _):
        assert look(url, tmp_path)[0].state == OK
        assert look(url, tmp_path, "system")[0].state == ERROR
        assert look(url, tmp_path, pin_of(THEIRS.certificate))[0].state == ERROR
    assert (tmp_path / KEPT).read_bytes() == OURS.certificate


def test_a_certificate_that_soon_ends_is_a_warning(tmp_path: Path) -> None:
    with coordinator(tmp_path, server_of(OURS, days=10), OURS.certificate) as (url, _):
        found = look(url, tmp_path, CA)[0]
    assert found.state == WARNING and "--renew" in found.todo


@pytest.mark.parametrize(
    ("since_days", "days", "said"),
    [
        (-40, 30, "a certificate that has expired: `smidgen coordinator init --renew` there"),
        (5, 30, "not valid yet, and this device's clock says"),
    ],
)
def test_a_certificate_out_of_its_time_is_told(
    tmp_path: Path, since_days: int, days: int, said: str
) -> None:
    since = NOW + timedelta(days=since_days)
    authority = draw_authority(NOW - timedelta(days=100))
    shown = server_of(authority, since=since, days=days)
    with coordinator(tmp_path, shown, authority.certificate) as (url, _):
        (found,) = look(url, tmp_path / "state", pin_of(authority.certificate))
    assert found.state == ERROR and said in found.found


def test_a_certificate_of_another_authority_is_an_error(tmp_path: Path) -> None:
    with coordinator(tmp_path, server_of(THEIRS), THEIRS.certificate) as (url, _):
        (found,) = look(url, tmp_path / "state", CA)
    assert found.state == ERROR and "shows the CA" in found.found and "was sent" in found.todo


def test_a_broken_kept_authority_is_named_by_its_own_path(tmp_path: Path) -> None:
    (tmp_path / KEPT).write_text("nonsense")
    with coordinator(tmp_path, server_of(OURS), OURS.certificate) as (url, _):
        (found,) = look(url, tmp_path)
    assert found.state == ERROR and str(tmp_path / KEPT) in found.found


def test_nobody_there_is_one_finding(tmp_path: Path) -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for scheme in ("http", "https"):
        (found,) = look(f"{scheme}://127.0.0.1:{port}", tmp_path)
        assert found.state == ERROR and "network" in found.todo, found


def test_something_else_that_answers_is_an_error(tmp_path: Path) -> None:
    with http_server(lambda *_: (200, Foreign(b"<html>log in"))) as url:
        (found,) = look(url, tmp_path)
    assert found.state == ERROR and "no coordinator of this protocol" in found.found


def test_a_clock_that_is_far_from_the_coordinators_is_a_warning(tmp_path: Path) -> None:
    with http_server(Asked().answer) as url:
        clock = look(url, tmp_path, late_s=90 * 86400.0)[1]
    assert clock.state == WARNING and clock.found.startswith("90 d from")


def test_plain_http_to_another_machine_is_an_error_and_nonsense_is_wrong_use(
    tmp_path: Path,
) -> None:
    (found,) = look("http://hub.example:8700", tmp_path)
    assert found.state == ERROR and "--plain-http" in found.found
    with pytest.raises(AddressError):
        look("ftp://x", tmp_path)


def test_a_proxy_that_is_none_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "foo://x")
    for url in ("https://hub.example:8700", "http://hub.example:8700"):
        (found,) = read_coordinator(url, "", tmp_path, True, time.time())
        assert found.state == ERROR and "names no proxy that can be used" in found.found

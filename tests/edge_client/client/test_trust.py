"""Whom a device believes, tried against real TLS servers of every kind."""

import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from smidgen.coordinator.trust.checks import server_context
from smidgen.coordinator.trust.folder import Pair, draw_authority, sign_server
from smidgen.edge_client.client.transport import Coordinator, Unreachable
from smidgen.edge_client.client.trust import IDENTITY, KEPT, NotBelieved, TrustError, trusted
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.wire.messages import Receipt, encode
from smidgen.edge_client.wire.pins import pin_of
from smidgen.edge_client.wire.tensors import sha256
from tests.edge_client.client.servers import Answer, http_server

NOW = datetime.now(timezone.utc)
YEAR = timedelta(days=365)
BLOB = b"x" * 200_000


@pytest.fixture(scope="module")
def ours() -> Pair:
    return draw_authority(NOW)


@pytest.fixture(scope="module")
def theirs() -> Pair:
    return draw_authority(NOW)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def context_of(folder: Path, pair: Pair) -> ssl.SSLContext:
    folder.mkdir(exist_ok=True)
    (folder / "server.pem").write_bytes(pair.certificate)
    (folder / "server.key").write_bytes(pair.key)
    return server_context(folder)


@contextmanager
def coordinator(
    folder: Path, pair: Pair, shown: bytes = b"", host: str = "127.0.0.1"
) -> Iterator[tuple[str, list[str]]]:
    """A server with this certificate that shows an authority; what it is asked for is noted."""
    asked: list[str] = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        asked.append(path)
        if path == "/v1/ca":
            return (200, shown) if shown else (404, b"{}")
        return 200, encode(Receipt(True)) if method == "PUT" else BLOB

    with http_server(answer, context_of(folder / "served", pair), host) as url:
        yield url, asked


def server_of(authority: Pair, *names: str, since: datetime = NOW, days: int = 365) -> Pair:
    return sign_server(authority, names or ["pi.example"], since, days)


def test_the_pasted_fingerprint_finds_its_authority_and_is_kept(
    tmp_path: Path, state: Path, ours: Pair
) -> None:
    ca = pin_of(ours.certificate)
    with coordinator(tmp_path, server_of(ours), ours.certificate) as (url, _):
        assert trusted(url, ca.upper().replace("SHA256:", "sha256:"), state, 0)
        context = trusted(url, "", state, 0)
        with closing(Coordinator(url, "key", verify=context)) as device:
            assert device.adapter(sha256(BLOB), WorkMeter()) == BLOB
    assert (state / KEPT).read_bytes() == ours.certificate


def test_a_file_with_the_authority_is_as_good(tmp_path: Path, state: Path, ours: Pair) -> None:
    (tmp_path / "ca.pem").write_bytes(ours.certificate)
    with coordinator(tmp_path, server_of(ours)) as (url, _):
        assert trusted(url, f"{tmp_path}/ca.pem", state, 0)
        assert trusted(url, "", state, 0)


def test_another_authority_than_the_pasted_one_is_refused(
    tmp_path: Path, state: Path, ours: Pair, theirs: Pair
) -> None:
    mine = pin_of(ours.certificate)
    with (
        coordinator(tmp_path, server_of(theirs), theirs.certificate) as (url, _),
        pytest.raises(TrustError, match=rf"shows the CA {pin_of(theirs.certificate)}.* {mine}"),
    ):
        trusted(url, mine, state, 0)
    assert not (state / KEPT).exists()


def test_an_authority_that_changed_is_told_with_both_fingerprints(
    tmp_path: Path, state: Path, ours: Pair, theirs: Pair
) -> None:
    (state / KEPT).write_bytes(ours.certificate)
    shown, mine = pin_of(theirs.certificate), pin_of(ours.certificate)
    with coordinator(tmp_path, server_of(theirs), theirs.certificate) as (url, _):
        with pytest.raises(NotBelieved, match=rf"the CA {shown}.*{mine}.*--ca {shown}"):
            trusted(url, "", state, 0)
        assert trusted(url, shown, state, 0)  # the owner says that it is right
        assert trusted(url, "", state, 0)


def test_who_shows_the_true_authority_with_a_key_of_its_own_hears_nothing(
    tmp_path: Path, state: Path, ours: Pair, theirs: Pair
) -> None:
    with coordinator(tmp_path, server_of(theirs), ours.certificate) as (url, asked):
        with pytest.raises(TrustError, match="has not signed: somebody else answers"):
            trusted(url, pin_of(ours.certificate), state, 0)
        assert set(asked) == {"/v1/ca"}


def test_a_forged_signature_under_the_true_name_is_refused(
    tmp_path: Path, state: Path, ours: Pair, theirs: Pair
) -> None:
    forged = server_of(Pair(ours.certificate, theirs.key))
    with (
        coordinator(tmp_path, forged, ours.certificate) as (url, _),
        pytest.raises(TrustError, match="has not signed"),
    ):
        trusted(url, pin_of(ours.certificate), state, 0)


def test_a_certificate_for_another_name_is_refused(tmp_path: Path, state: Path, ours: Pair) -> None:
    served = coordinator(tmp_path, server_of(ours), ours.certificate, "127.0.0.2")
    with (
        served as (url, asked),
        pytest.raises(TrustError, match=r"another name.*'127.0.0.2'.*--renew --host"),
    ):
        trusted(url, pin_of(ours.certificate), state, 0)
    assert set(asked) == {"/v1/ca"}


@pytest.mark.parametrize(
    ("since", "kind", "words"),
    [
        (
            NOW - 2 * YEAR,
            TrustError,
            r"has expired: `smidgen coordinator init --renew`.*clock says .* UTC: set it if",
        ),
        (NOW + YEAR, NotBelieved, r"not valid yet, and this device's clock says 20.*set the clock"),
    ],
)
def test_a_certificate_of_another_time_is_refused(
    tmp_path: Path, state: Path, since: datetime, kind: type[Exception], words: str
) -> None:
    authority = draw_authority(NOW - 3 * YEAR)
    pair = server_of(authority, since=since)
    with (
        coordinator(tmp_path, pair, authority.certificate) as (url, _),
        pytest.raises(kind, match=words),
    ):
        trusted(url, pin_of(authority.certificate), state, 0)


def test_what_may_pass_at_a_device_that_is_set_up_is_worth_another_start(
    tmp_path: Path, state: Path, ours: Pair, theirs: Pair
) -> None:
    ca = pin_of(ours.certificate)
    (state / KEPT).write_bytes(ours.certificate)
    expired = server_of(ours, since=NOW - timedelta(days=2), days=1)
    for pair, words in ((expired, "certificate that has expired"), (server_of(theirs), "else")):
        with coordinator(tmp_path, pair, ours.certificate) as (url, _):
            for given in ("", ca):
                with pytest.raises(NotBelieved, match=words):
                    trusted(url, given, state, 0)
    with (
        http_server(lambda *_: (200, b"")) as url,
        pytest.raises(NotBelieved, match="does not speak TLS"),
    ):
        trusted(url.replace("http", "https"), ca, state, 0)
    assert NotBelieved.exit_code == 1


def test_a_device_that_enrolled_by_the_system_s_authorities_starts_again(
    tmp_path: Path, state: Path, ours: Pair
) -> None:
    (state / IDENTITY).write_text("{}")
    with (
        coordinator(tmp_path, server_of(ours)) as (url, _),
        pytest.raises(NotBelieved, match="system does not believe"),
    ):
        trusted(url, "system", state, 0)


def test_of_a_file_with_a_key_the_certificates_alone_are_kept(
    tmp_path: Path, state: Path, ours: Pair
) -> None:
    (tmp_path / "both.pem").write_bytes(ours.key + ours.certificate)
    trusted("https://127.0.0.1:1", f"{tmp_path}/both.pem", state, 0)
    assert (state / KEPT).read_bytes() == ours.certificate
    assert (state / KEPT).stat().st_mode & 0o777 == 0o600


def test_an_authority_that_has_expired_is_refused(tmp_path: Path, state: Path) -> None:
    authority = draw_authority(NOW - 2 * YEAR, days=365)
    pair = server_of(authority, since=NOW - 2 * YEAR)
    with (
        coordinator(tmp_path, pair, authority.certificate) as (url, _),
        pytest.raises(TrustError, match="a CA that has expired: its operator has to `init` again"),
    ):
        trusted(url, pin_of(authority.certificate), state, 0)


def test_a_renewed_certificate_is_believed_as_before(
    tmp_path: Path, state: Path, ours: Pair
) -> None:
    for _ in range(2):
        with coordinator(tmp_path, server_of(ours), ours.certificate) as (url, _):
            assert trusted(url, pin_of(ours.certificate), state, 0)


def test_system_believes_what_the_system_does(
    tmp_path: Path, state: Path, ours: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / KEPT).write_bytes(ours.certificate)
    with coordinator(tmp_path, server_of(ours)) as (url, _):
        with pytest.raises(NotBelieved, match=r"system does not believe.*give --ca sha256:HEX"):
            trusted(url, "system", state, 0)
        (tmp_path / "bundle.pem").write_bytes(ours.certificate)
        monkeypatch.setenv("SSL_CERT_FILE", f"{tmp_path}/bundle.pem")
        assert trusted(url, "system", state, 0)
        assert trusted(url, "", state, 0)
    assert not (state / KEPT).exists()


def test_plain_http_goes_to_this_machine_alone_unless_asked_for(state: Path) -> None:
    for url in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "http://127.9.9.9"):
        assert trusted(url, "", state, 0) is None
    for url in ("http://192.168.1.5:8700", "http://pi.local", "http://localhost.example"):
        with pytest.raises(TrustError, match=r"plain HTTP to another machine.*--plain-http"):
            trusted(url, "", state, 0)
        assert trusted(url, "", state, 0, is_plain_fine=True) is None


def test_an_authority_for_plain_http_is_a_mistake(state: Path) -> None:
    with pytest.raises(TrustError, match="plain HTTP"):
        trusted("http://127.0.0.1:1", "system", state, 0)


def test_a_coordinator_without_tls_is_named(state: Path, ours: Pair) -> None:
    with http_server(lambda *_: (200, b"")) as url:
        tls = url.replace("http", "https")
        with pytest.raises(TrustError, match="does not speak TLS"):
            trusted(tls, pin_of(ours.certificate), state, 0)
        (state / KEPT).write_bytes(ours.certificate)
        with pytest.raises(NotBelieved, match="does not speak TLS"):
            trusted(tls, "", state, 0)


@pytest.mark.parametrize("shown", [b"", b"no certificate", b"x" * 200_000])
def test_a_coordinator_without_an_authority_is_named(
    tmp_path: Path, state: Path, ours: Pair, shown: bytes
) -> None:
    with (
        coordinator(tmp_path, server_of(ours), shown) as (url, _),
        pytest.raises(TrustError, match="shows no CA of its own"),
    ):
        trusted(url, pin_of(ours.certificate), state, 0)


@pytest.mark.parametrize("ca", ["sha256:", "sha256:12", "/nowhere/ca.pem", "nonsense", "x" * 5000])
def test_what_is_no_authority_is_told_in_one_line(state: Path, ca: str) -> None:
    with pytest.raises(TrustError, match=r"^--ca [^\n]*$"):
        trusted("https://127.0.0.1:1", ca, state, 0)


def test_a_file_without_a_certificate_is_told(tmp_path: Path, state: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----")
    with pytest.raises(TrustError, match="certificate"):
        trusted("https://127.0.0.1:1", f"{tmp_path}/ca.pem", state, 0)


def test_who_is_absent_is_waited_for_once_the_authority_is_known(state: Path, ours: Pair) -> None:
    with pytest.raises(Unreachable, match=r"^no answer from https.*coordinator serve`.*--patience"):
        trusted("https://127.0.0.1:1", pin_of(ours.certificate), state, 0)
    (state / KEPT).write_bytes(ours.certificate)
    assert trusted("https://127.0.0.1:1", "", state, 0)


def test_bytes_over_tls_are_counted_by_the_kernel(tmp_path: Path, state: Path, ours: Pair) -> None:
    with coordinator(tmp_path, server_of(ours), ours.certificate) as (url, _):
        context = trusted(url, pin_of(ours.certificate), state, 0)
        with closing(Coordinator(url, verify=context)) as device:
            device.adapter(sha256(BLOB), WorkMeter())
            first = device.traffic.total()
            assert device.upload("work", BLOB, WorkMeter()).accepted
            both = device.traffic.total()
    moved = both.since(first)
    assert first.connections == both.connections == 1
    assert first.received_bytes and moved.acked_bytes and moved.received_bytes
    assert len(BLOB) + 1000 < first.received_bytes < 1.05 * len(BLOB)
    assert len(BLOB) < moved.acked_bytes < 1.02 * len(BLOB)

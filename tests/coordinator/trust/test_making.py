import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from smidgen.coordinator.trust.checks import Secured, is_for, names_of
from smidgen.coordinator.trust.folder import (
    Pair,
    TrustError,
    ca_of,
    draw_authority,
    folder_of,
    read,
    sign_server,
)
from smidgen.coordinator.trust.making import Given, make, renew, take, take_again
from smidgen.edge_client.wire.pins import pin_of

NOW = datetime.now(timezone.utc)
YEAR = timedelta(days=365)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def authority() -> Pair:
    return draw_authority(NOW - 2 * YEAR)


def given(folder: Path, pair: Pair, ca: bytes | None = None) -> Given:
    files = {"fullchain.pem": pair.certificate, "privkey.pem": pair.key, "root.pem": ca or b""}
    for name, body in files.items():
        (folder / name).write_bytes(body)
    root = folder / "root.pem" if ca is not None else None
    return Given(folder / "fullchain.pem", folder / "privkey.pem", root)


def test_keys_are_for_their_owner_alone(store: Path) -> None:
    make(store, ["pi.example"], 8700, 365, NOW)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder_of(store).iterdir()}
    assert modes["ca.key"] == modes["server.key"] == 0o600
    assert folder_of(store).stat().st_mode & 0o777 == 0o700


def test_what_was_made_is_what_is_served(store: Path) -> None:
    made = make(store, ["pi.example", "10.0.0.7"], 8701, 365, NOW)
    secured = Secured(store, NOW)
    assert secured.trust == made == read(folder_of(store))
    assert made.address.url == "https://pi.example:8701"
    assert secured.ca == ca_of(made) == pin_of(made.authority or b"")
    assert is_for(folder_of(store), made)


def test_a_second_authority_is_refused_for_devices_believe_the_first(store: Path) -> None:
    make(store, ["pi.example"], 8700, 365, NOW)
    with pytest.raises(TrustError, match="has certificates already; --renew"):
        make(store, ["pi.example"], 8700, 365, NOW)


def test_a_renewal_keeps_authority_names_and_address(store: Path) -> None:
    old = make(store, ["10.0.0.7", "pi.example"], 8701, 365, NOW - YEAR)
    new = renew(store, [], None, 365, NOW)
    assert (new.authority, new.address) == (old.authority, old.address)
    assert new.server.key != old.server.key
    assert set(names_of(new.server.certificate)) == set(names_of(old.server.certificate))
    assert read(folder_of(store)) == new


def test_a_renewal_may_be_for_other_names(store: Path) -> None:
    make(store, ["pi.example"], 8701, 365, NOW)
    new = renew(store, ["hub.example"], 9000, 365, NOW)
    assert new.address.url == "https://hub.example:9000"
    assert "pi.example" not in names_of(new.server.certificate)


def test_there_must_be_something_to_renew(store: Path) -> None:
    with pytest.raises(TrustError, match="to renew; `init` without --renew"):
        renew(store, [], None, 365, NOW)


def test_an_expired_authority_renews_nothing(store: Path) -> None:
    old = make(store, ["pi.example"], 8700, 365, NOW - 11 * YEAR + timedelta(days=400))
    with pytest.raises(TrustError, match=r"the CA ca.pem has expired on .*every device the new"):
        renew(store, [], None, 365, NOW + YEAR)
    assert read(folder_of(store)) == old


def test_given_certificates_are_taken_as_they_are(
    tmp_path: Path, store: Path, authority: Pair
) -> None:
    pair = sign_server(authority, ["hub.example"], NOW, 90)
    trust = take(store, given(tmp_path, pair, authority.certificate), [], 443, NOW)
    assert trust.address.url == "https://hub.example:443"
    assert trust.server == pair and ca_of(trust) == pin_of(authority.certificate)
    with pytest.raises(TrustError, match="was given; renew it where it comes from"):
        renew(store, [], None, 365, NOW)
    later = sign_server(authority, ["hub.example"], NOW, 180)
    assert take_again(store, given(tmp_path, later), [], None, NOW).server == later
    assert read(folder_of(store)).authority == authority.certificate


def test_a_public_certificate_leaves_devices_to_their_system(
    tmp_path: Path, store: Path, authority: Pair
) -> None:
    pair = sign_server(authority, ["hub.example"], NOW, 90)
    assert ca_of(take(store, given(tmp_path, pair), [], 443, NOW)) == "system"
    assert not (folder_of(store) / "ca.pem").exists()


def test_given_certificates_that_cannot_serve_are_refused_and_nothing_stays(
    tmp_path: Path, store: Path, authority: Pair
) -> None:
    good = sign_server(authority, ["hub.example"], NOW, 90)
    stranger = draw_authority(NOW)
    leaf = (
        good.certificate.split(b"-----END CERTIFICATE-----\n")[0] + b"-----END CERTIFICATE-----\n"
    )
    locked = good.key.replace(b"PRIVATE", b"ENCRYPTED PRIVATE")
    old = sign_server(authority, ["hub.example"], NOW - 2 * YEAR, 90)
    young = sign_server(authority, ["hub.example"], NOW + YEAR / 2, 90)
    cases = [
        (Pair(good.certificate, stranger.key), None, "privkey.pem is not the key of .*fullchain"),
        (Pair(good.certificate, locked), None, "privkey.pem is locked by a password"),
        (Pair(b"nothing", good.key), None, "holds no certificate"),
        (Pair(good.certificate, b"nothing"), None, "privkey.pem cannot be used"),
        (Pair(leaf, good.key), stranger.certificate, "does not lead to the CA .*root.pem"),
        (old, None, r"the certificate .*fullchain.pem has expired on"),
        (young, None, r"is valid from .* clock says"),
        (good, b"nothing", "--ca .*: one certificate is expected, 0 came"),
    ]
    for pair, ca, words in cases:
        with pytest.raises(TrustError, match=words) as refused:
            take(store, given(tmp_path, pair, ca), ["hub.example"], 443, NOW)
        assert "\n" not in str(refused.value)
    with pytest.raises(TrustError, match=r"is for hub.example, .*devices are told other.example"):
        take(store, given(tmp_path, good), ["other.example"], 443, NOW)
    with pytest.raises(TrustError, match=r"--key /nowhere/k: No such file"):
        take(store, Given(tmp_path / "fullchain.pem", Path("/nowhere/k")), [], 443, NOW)
    assert not list(store.iterdir())


def served(store: Path, days: float) -> Secured:
    return Secured(store, NOW + timedelta(days=days))


def test_what_every_device_would_refuse_is_not_served(store: Path) -> None:
    make(store, ["pi.example"], 8700, 365, NOW)
    assert served(store, 364)
    with pytest.raises(TrustError, match=r"tls: the certificate server.pem has expired on 20"):
        served(store, 366)
    with pytest.raises(TrustError, match=r"the CA ca.pem has expired on 20.*new --ca"):
        served(store, 3651)
    with pytest.raises(TrustError, match=r"the CA ca.pem is valid from .*set the clock"):
        served(store, -2)


def test_a_folder_that_was_damaged_is_told(store: Path) -> None:
    make(store, ["pi.example"], 8700, 365, NOW)
    folder = folder_of(store)
    other = sign_server(draw_authority(NOW), ["pi.example"], NOW, 365)
    cases = {
        "server.key": (other.key, "server.key is not the key of server.pem"),
        "address.json": (b"{}", r"address.json is damaged; restore"),
        "ca.pem": (draw_authority(NOW).certificate, "does not lead to the CA"),
        "server.pem": (b"", "server.pem holds no certificate"),
    }
    for name, (body, words) in cases.items():
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(body)
        with pytest.raises(TrustError, match=words):
            served(store, 0)
        (folder / name).write_bytes(whole)
    (folder / "server.key").unlink()
    with pytest.raises(TrustError, match=r"server.key: No such file.*restore"):
        served(store, 0)


def test_a_name_that_devices_were_not_told_is_warned_of(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(store, ["pi.example"], 8700, 40, NOW)
    (folder_of(store) / "address.json").write_text('{"host": "hub.example", "port": 1}')
    secured = served(store, 0)
    secured.look(NOW)
    (line,) = caplog.messages
    assert "devices were told hub.example, but the certificate is for pi.example" in line


def test_an_end_that_is_near_is_told_once_a_day(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(store, ["pi.example"], 8700, 40, NOW)
    secured = served(store, 0)
    for hours in range(0, 30 * 24, 12):
        secured.look(NOW + timedelta(hours=hours))
    assert len(caplog.messages) == 20
    assert caplog.messages[0].startswith("the certificate is valid for 29 more days")


def test_a_certificate_that_is_copied_before_its_key_is_served_once_both_are_there(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(store, ["pi.example"], 8700, 365, NOW)
    secured, folder = served(store, 0), folder_of(store)
    other = tmp_path / "other"
    shutil.copytree(store, other)
    new = renew(other, [], None, 365, NOW)
    (folder / "server.pem").write_bytes(new.server.certificate)
    for seconds in range(0, 60, 5):
        secured.look(NOW + timedelta(seconds=seconds))
    (line,) = caplog.messages
    assert "is served on: server.key is not the key of server.pem" in line
    assert secured.trust.server != new.server
    (folder / "server.key").write_bytes(new.server.key)
    secured.look(NOW + timedelta(seconds=61))
    assert secured.trust.server == new.server

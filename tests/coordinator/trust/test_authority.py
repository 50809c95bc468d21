import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509

from smidgen.coordinator.trust.checks import names_of, proxy_of
from smidgen.coordinator.trust.folder import HostError, draw_authority, sign_server
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.pins import certificates, pin_of, read_pin

NOW = datetime.now(timezone.utc)


def test_openssl_finds_nothing_against_them_in_its_strict_mode(tmp_path: Path) -> None:
    authority = draw_authority(NOW)
    server = sign_server(authority, ["pi.example"], NOW, 365)
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    (tmp_path / "server.pem").write_bytes(server.certificate)
    strict = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver"]
    names = ["-CAfile", "ca.pem", "-verify_hostname", "pi.example", "server.pem"]
    done = subprocess.run([*strict, *names], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_certificate_is_for_its_names_and_for_loopback() -> None:
    server = sign_server(draw_authority(NOW), ["Pi.Example", "10.0.0.7", "bücher.example"], NOW, 9)
    names = ["pi.example", "xn--bcher-kva.example", "localhost", "10.0.0.7", "127.0.0.1", "::1"]
    assert names_of(server.certificate) == names


def test_a_certificate_ends_no_later_than_its_authority() -> None:
    authority = draw_authority(NOW, days=10)
    ca = x509.load_pem_x509_certificate(authority.certificate)
    (server, _) = x509.load_pem_x509_certificates(
        sign_server(authority, ["pi"], NOW, 365).certificate
    )
    assert server.not_valid_after_utc == ca.not_valid_after_utc
    assert ca.not_valid_before_utc < NOW - timedelta(hours=23)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "x" * 300,
        "pi:8700",
        "https://pi",
        "-pi",
        "a..b",
        "0.0.0.0",
        "fe80::1%eth0",
        "\udcff",
    ],
)
def test_what_is_no_host_is_told(name: str) -> None:
    with pytest.raises(HostError, match=r"--host .* is expected"):
        sign_server(draw_authority(NOW), [name], NOW, 9)


def test_what_may_be_a_password_is_not_shown() -> None:
    with pytest.raises(HostError, match="--host 'pi:8700': a host name") as told:
        sign_server(draw_authority(NOW), ["https://me:sEcReT@pi:8700"], NOW, 9)
    with pytest.raises(WrongInput, match="--trusted-proxy 'proxy': the address") as also:
        proxy_of("--trusted-proxy", "me:sEcReT@proxy")
    assert "sEcReT" not in f"{told.value} {also.value}"


def test_a_pin_is_the_hash_of_one_certificate() -> None:
    one, other = draw_authority(NOW).certificate, draw_authority(NOW).certificate
    pin = pin_of(b"a comment\n" + one)
    assert read_pin(pin) == pin == pin_of(one) != pin_of(other)
    digits = pin.removeprefix("sha256:").upper()
    colons = ":".join(digits[place : place + 2] for place in range(0, 64, 2))
    assert read_pin(f"sha256:{colons}") == pin
    for several in (b"", one + other):
        with pytest.raises(ValueError, match="one certificate is expected"):
            pin_of(several)


@pytest.mark.parametrize(
    "text", ["", "sha256:", f"sha256:{'g' * 64}", f"sha1:{'0' * 64}", "0" * 64]
)
def test_what_is_no_pin_is_none(text: str) -> None:
    assert read_pin(text) is None


def test_marks_without_base64_between_are_no_certificate() -> None:
    with pytest.raises(ValueError, match="not a certificate"):
        certificates(b"-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n")

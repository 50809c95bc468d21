"""A proxy of the environment that no HTTP library can use is told by the name of its variable."""

import sys
from pathlib import Path

import httpx
import pytest

from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.proxies import KINDS, ProxyError, named_proxies

NO_PROXY = "names no proxy that can be used: http://HOST:PORT is expected"
NO_HOST = "holds what is no host: names and addresses with commas in between are expected"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (*KINDS, "no"):
        for name in (f"{kind}_proxy", f"{kind}_PROXY".upper()):
            monkeypatch.delenv(name, raising=False)


def build() -> None:
    with named_proxies():
        httpx.Client().close()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ALL_PROXY", "foo://me:secret@x", NO_PROXY),
        ("https_proxy", "me:secret@h:1:2", NO_PROXY),
        ("HTTP_PROXY", "http://secret:port", NO_PROXY),
        ("HTTPS_PROXY", "http://\udcff:1", NO_PROXY),
        ("NO_PROXY", "localhost,[::1]", NO_HOST),
        ("no_proxy", "fe80::/10", NO_HOST),
    ],
)
def test_the_variable_is_named_without_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ProxyError, match=f"^{name} {told}") as found:
        build()
    assert value not in str(found.value) and "secret" not in str(found.value)


def test_a_socks_proxy_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # where it is installed
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(ProxyError, match=r"^all_proxy names a SOCKS proxy: `pip install socksio`"):
        build()


def test_of_two_the_one_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "localhost,::1,10.0.0.0/8")
    build()
    monkeypatch.setenv("https_proxy", "foo://x")
    with pytest.raises(ProxyError, match=r"^https_proxy names no proxy"):
        build()


def test_what_no_proxy_is_the_reason_of_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "localhost,::1,.example.org,10.0.0.0/8")
    with pytest.raises(KeyError), named_proxies():
        raise KeyError("another")


def test_a_base_of_the_hub_is_not_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub.utils import close_session

    monkeypatch.setenv("ALL_PROXY", "foo://x")
    close_session()  # of another test, with a client that is built
    with pytest.raises(ProxyError, match=r"^ALL_PROXY names no proxy"):
        open_base("some/model")

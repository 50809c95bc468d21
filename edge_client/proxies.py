"""Proxy environment variables, which HTTP libraries read when a client is built.

Libraries raise many kinds of errors for an unusable proxy, and none names the variable:

    with named_proxies():  # a ProxyError names ALL_PROXY, and what is expected there
        client = httpx.Client()
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from smidgen.edge_client.errors import WrongInput

KINDS = ("http", "https", "all")


class ProxyError(WrongInput):
    """A variable that no client can be built with; its value, maybe a password, is not said."""


@contextmanager
def named_proxies() -> Iterator[None]:
    """Around what builds an HTTP client by the environment.

    Raises:
        ProxyError: It cannot be built; names the variable that is the reason.
    """
    try:
        yield
    except Exception as error:  # ImportError, ValueError, each library's own InvalidURL
        if (told := _at_fault()) is None:
            raise
        raise ProxyError(told) from error


def _at_fault() -> str | None:
    """Which variable no client can be built with, and what is expected there; None: none is."""
    from urllib.request import getproxies  # as the HTTP libraries do

    import httpx  # heavy, and here only once something is wrong

    found = getproxies()
    for kind in KINDS:
        if (told := _objection(found.get(kind, ""))) is not None:
            return f"{_name(kind)} {told}"
    try:
        httpx.Client(verify=False).close()
    except httpx.InvalidURL:  # no proxy is the reason, so it is where none is to be used
        return (
            f"{_name('no')} holds what is no host: names and addresses with commas in between are "
            "expected, IPv6 without brackets and without /LENGTH; mend or unset it"
        )
    return None


def _objection(proxy: str) -> str | None:
    import httpx

    if not proxy:
        return None
    url = proxy if "://" in proxy else f"http://{proxy}"
    try:
        httpx.Client(proxy=url, trust_env=False, verify=False).close()
    except ImportError:
        return "names a SOCKS proxy: `pip install socksio`, name http://HOST:PORT, or unset it"
    except (ValueError, httpx.InvalidURL):
        return "names no proxy that can be used: http://HOST:PORT is expected; mend or unset it"
    return None


def _name(kind: str) -> str:
    """The variable as it is set; of two the one in small letters counts."""
    small = f"{kind}_proxy"
    return small if os.environ.get(small) else small.upper()

"""Where devices find this machine, and whether a host is this machine alone."""

import ipaddress
import socket
from contextlib import suppress

from edge_client.errors import WrongInput


def own_address() -> str | None:
    """The address of the way out of this machine; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address kept for documentation
        return str(probe.getsockname()[0])
    return None


def names_loopback(host: str) -> bool:
    """Whether a host is loopback by what it says, without asking anybody."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches a host that is listened on."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True  # it cannot be listened on, which is told then
    return all(ipaddress.ip_address(str(entry[4][0]).split("%")[0]).is_loopback for entry in found)


def proxy_of(option: str, text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The address or network of a proxy that somebody named.

    Raises:
        WrongInput: It is neither, or every address there is.
    """
    try:
        found = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        found = None
    if found is None or not found.prefixlen:
        raise WrongInput(
            f"{option} {text[:60]!r}: the address of a proxy is expected, such as 127.0.0.1, or "
            "its network, such as 10.0.0.0/24"
        )
    return found

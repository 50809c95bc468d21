"""What the service manager is told, sd_notify(3): ready, alive, what it does, ending.

    tell("READY=1", "STATUS=waiting for work")

Where nobody has set NOTIFY_SOCKET, and where it is not heard, nothing happens.
"""

import os
import socket
import time
from contextlib import suppress

LEAST_S = 1.0  # between two signs of life
PATIENCE_S = 0.1  # with a manager that hangs
LONGEST = 300  # characters of a status


def tell(*fields: str) -> None:
    """Send `NAME=VALUE` fields, which may not hold line ends."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place[:1] not in ("/", "@"):
        return
    address = "\0" + place[1:] if place[0] == "@" else place  # an abstract socket
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE_S)  # a manager that does not read stops nobody
        sender.connect(address)
        sender.sendall("\n".join(fields).encode())


def status(text: str) -> None:
    """Say what the client does now."""
    tell(f"STATUS={' '.join(text.split())[:LONGEST]}")


class Alive:
    """Signs of life, for a watchdog; given only where something was really done."""

    def __init__(self) -> None:
        self._told_s = -LEAST_S

    def __call__(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= LEAST_S:
            self._told_s = now_s
            tell("WATCHDOG=1")

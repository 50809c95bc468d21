"""Connection limits: few short-lived slots for unauthenticated peers; and rates by token bucket.

A connection is unauthenticated until a request on it carries a valid key or token. When the slots
are full, the oldest unauthenticated connection is closed. Devices behind one proxy or NAT share an
address, so authenticated ones never count against it.
"""

import errno
import ipaddress
import logging
import math
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.types import Scope

MOST = 10_000  # that are remembered: whoever is forgotten begins anew


class TokenBuckets:
    """A pace for each of many, such as devices or addresses.

    Args:
        at_once: How often it may happen without a pause.
        per_s: How often a second for as long as one likes.
    """

    def __init__(self, at_once: int, per_s: float) -> None:
        self._at_once, self._per_s = at_once, per_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # and since when

    def take(self, who: str, now_s: float) -> int:
        """Count one; 0 where it may happen, else after how many seconds one may.

        Args:
            who: Whose pace it is.
            now_s: Monotonic time.
        """
        left, at_s = self._left.pop(who, (float(self._at_once), now_s))
        left = min(float(self._at_once), left + (now_s - at_s) * self._per_s)
        may = left >= 1
        self._left[who] = (left - 1 if may else left), now_s
        if len(self._left) > MOST:
            self._left.popitem(last=False)
        return 0 if may else math.ceil((1 - left) / self._per_s)


OWN_FILES = 128  # of this process beside connections: database, blobs, uploads
EACH = 8  # connections of one device or person that count as let in
COMPLAINTS = 5  # lines a minute of what is not HTTP, whoever says it
A_TURN = 8  # connections that are taken before whoever is connected has a turn
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
GUEST = "smidgen.guest"  # of a request's scope
LOG = logging.getLogger(__name__)
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class ConnectionTimeouts:
    """How long strangers may take.

    Attributes:
        handshake_s: For TLS: a crowd that comes at once is served one after another.
        head_s: For a request's line and headers, and before them; whoever it is.
        body_s: For a body, and longer for a long one that comes.
        answer_s: For being answered, and for reading it.
        grace_s: Before they make room for others.
    """

    handshake_s: float = 30.0
    head_s: float = 20.0
    body_s: float = 30.0
    answer_s: float = 60.0
    grace_s: float = 3.0


@dataclass(frozen=True)
class ConnectionBounds:
    """How many connections there may be, and how long strangers may take.

    Attributes:
        most: In all.
        strangers: Of them, of nobody who was let in.
        each_address: Of these, from one address.
        patience: With them.
    """

    most: int
    strangers: int
    each_address: int
    patience: ConnectionTimeouts = ConnectionTimeouts()


def room_within(files: int) -> ConnectionBounds:
    """What fits into so many open files."""
    most = max(files - OWN_FILES, 8)
    strangers = min(4096, most // 2)
    return ConnectionBounds(most, strangers, min(1024, max(strangers // 2, 1)))


@dataclass(eq=False)
class OpenConnection:
    """One connection.

    Attributes:
        address: Where it comes from; empty behind a trusted proxy, which speaks for many.
        came_s: When, monotonic.
        abort: Cuts it.
        hall: Where it is.
        owner: Who was let in on it; empty for a stranger.
        due_s: When it is cut unless it has gone on; monotonic.
        is_open: Whether TLS, if there is any, was agreed on.
    """

    address: str
    came_s: float
    abort: Callable[[], object]
    hall: "ConnectionSlots" = field(repr=False)
    owner: str = ""
    due_s: float = math.inf
    is_open: bool = False

    @property
    def is_stranger(self) -> bool:
        return not self.owner


class ConnectionSlots:
    """All connections of one server; used on its event loop only.

    Args:
        room: How many there may be.
        trusted: Addresses of proxies.

    Attributes:
        patience: With strangers.
        cut: How many were cut or turned away: of strangers, to make room or because they stood
            still.
    """

    def __init__(self, room: ConnectionBounds, trusted: Sequence[Network] = ()) -> None:
        self._room, self._trusted = room, trusted
        self.patience = room.patience
        self._strangers: dict[
            OpenConnection, None
        ] = {}  # in the order in which they came, as all of these
        self._from: dict[str, dict[OpenConnection, None]] = {}
        self._of: dict[str, dict[OpenConnection, None]] = {}
        self._at: dict[int, OpenConnection] = {}  # by the number of a connection's file
        self._known = 0
        self._swept_s = 0.0
        self.cut = 0
        self._complaints, self._unsaid = TokenBuckets(COMPLAINTS, COMPLAINTS / 60), 0

    def __len__(self) -> int:
        return len(self._strangers) + self._known

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    def enter(self, address: str, abort: Callable[[], object]) -> OpenConnection | None:
        """A connection comes; None where there is no room for it."""
        now_s = time.monotonic()
        address = self._counted(address)
        here = self._from.get(address, {})
        if address and len(here) >= self._room.each_address and not self._cut_first(here, now_s):
            return None
        is_full = (
            len(self._strangers) >= self._room.strangers
            or len(self._strangers) + self._known >= self._room.most
        )
        if is_full and not self._cut_first(self._strangers, now_s):
            return None
        guest = OpenConnection(address, now_s, abort, self, due_s=now_s + self.patience.handshake_s)
        self._add_stranger(guest)
        return guest

    def let_in(self, guest: OpenConnection, owner: str) -> None:
        """A request on a connection was this owner's; its oldest one too many is a stranger's."""
        if guest.owner == owner or guest.hall is not self or not self._leave(guest):
            return
        guest.owner, guest.due_s = owner, math.inf
        own = self._of.setdefault(owner, {})
        own[guest] = None
        self._known += 1
        if len(own) > EACH:
            oldest = next(iter(own))
            self._leave(oldest)
            oldest.owner, oldest.came_s = "", time.monotonic()
            oldest.due_s = oldest.came_s + self.patience.answer_s
            self._add_stranger(oldest)

    def seat(self, file: int, guest: OpenConnection) -> None:
        self._at[file] = guest

    def at(self, file: int) -> OpenConnection | None:
        return self._at.get(file)

    def leave(self, file: int, guest: OpenConnection) -> None:
        self._leave(guest)
        self._at.pop(file, None)
        guest.abort = lambda: None

    def make_room(self) -> None:
        """Cut the oldest stranger."""
        self._cut_first(self._strangers, math.inf)

    def complain(self, address: str) -> None:
        """Log that somebody said something else than requests; a few times a minute."""
        if self._complaints.take("", time.monotonic()):
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} times more before)" if self._unsaid else ""
        LOG.warning("%s said what is not HTTP/1.1 and was refused%s", address, more)
        self._unsaid = 0

    def look(self) -> None:
        """Cut who stands still; looks twice a second at most."""
        now_s = time.monotonic()
        if now_s - self._swept_s < 0.5:
            return
        self._swept_s = now_s
        for guest in [one for one in self._strangers if one.due_s <= now_s]:
            self._cut(guest)
        for own in list(self._of.values()):
            for guest in [one for one in own if one.due_s <= now_s]:
                self._cut(guest)

    def end(self) -> None:
        """Cut whoever has not agreed on TLS yet: nobody waits for them."""
        for guest in [one for one in self._strangers if not one.is_open]:
            self._cut(guest)

    def _counted(self, address: str) -> str:
        """What an address counts as: who has an IPv6 address has all of its network."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return address
        found = getattr(found, "ipv4_mapped", None) or found
        if any(found in network for network in self._trusted):
            return ""
        return site_of(str(found))

    def _cut_first(self, guests: dict[OpenConnection, None], now_s: float) -> bool:
        """Cut the one that came first, unless it came just now."""
        first = next(iter(guests), None)
        if first is None or now_s - first.came_s < self.patience.grace_s:
            self.cut += 1
            return False
        self._cut(first)
        return True

    def _cut(self, guest: OpenConnection) -> None:
        self.cut += 1
        self._leave(guest)
        guest.abort()

    def _add_stranger(self, guest: OpenConnection) -> None:
        self._strangers[guest] = None
        if guest.address:
            self._from.setdefault(guest.address, {})[guest] = None

    def _leave(self, guest: OpenConnection) -> bool:
        """Count a connection no more; whether it was counted."""
        if guest.owner:
            own = self._of.get(guest.owner, {})
            if guest not in own:
                return False
            del own[guest]
            self._known -= 1
            if not own:
                del self._of[guest.owner]
            return True
        if guest not in self._strangers:
            return False
        del self._strangers[guest]
        if guest.address:
            here = self._from[guest.address]
            del here[guest]
            if not here:
                del self._from[guest.address]
        return True


def site_of(address: str) -> str:
    """What counts as one address: of IPv6 the network of 64 bits, which one site has whole."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)


def let_in(scope: Scope, owner: str) -> None:
    """The connection of a request is this owner's."""
    guest = scope.get(GUEST)
    if isinstance(guest, OpenConnection):
        guest.hall.let_in(guest, owner)


class _Connection(socket.socket):
    """A socket that tells when it is closed."""

    guest: OpenConnection | None = None

    def close(self) -> None:
        guest, file, self.guest = self.guest, self.fileno(), None
        super().close()
        if guest is not None:
            guest.hall.leave(file, guest)

    def cut(self) -> None:
        """End it as if the other side had: whoever reads from it then closes it."""
        with suppress(OSError):  # the other side did
            self.shutdown(socket.SHUT_RDWR)


class Door(socket.socket):
    """A socket that is listened on, of whose connections `ConnectionSlots` decides.

    Asyncio asks it for connections until there are none; every few it says so though there may be
    more, for whoever is connected to have a turn.

    Args:
        bound: The socket; this one takes its place.
        guests: Who is connected.
    """

    def __init__(self, bound: socket.socket, guests: ConnectionSlots) -> None:
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self.guests = guests
        self._taken = 0
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection; see the class."""
        self._taken = (self._taken + 1) % A_TURN
        if not self._taken:
            raise BlockingIOError
        try:
            taken, address = super().accept()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._turn_away(error)
            raise BlockingIOError from error
        connection = _Connection(taken.family, taken.type, taken.proto, fileno=taken.detach())
        connection.guest = self.guests.enter(str(address[0]), connection.cut)
        if connection.guest is None:
            connection.close()
            raise BlockingIOError
        self.guests.seat(connection.fileno(), connection.guest)
        return connection, address

    def close(self) -> None:
        super().close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _turn_away(self, error: OSError) -> None:
        """There is no file for it: it would be told as ready again and again."""
        LOG.warning("no file for another connection (%s); raise `ulimit -n`", error.strerror)
        self.guests.make_room()
        os.close(self._spare)
        with suppress(OSError):
            super().accept()[0].close()
        self._spare = os.open(os.devnull, os.O_RDONLY)

"""A coordinator that other machines can use: its store, its certificates, and its operator."""

import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from smidgen.coordinator.api.ready import PORT
from smidgen.coordinator.api.stores import AtStore, new_store
from smidgen.coordinator.storage.credentials import add_operator
from smidgen.coordinator.storage.database import place_of
from smidgen.coordinator.trust.checks import names_of, own_address, valid_until
from smidgen.coordinator.trust.folder import AUTHORITY_DAYS, SERVER_DAYS, Trust, ca_of
from smidgen.coordinator.trust.making import Given, check_new, make, renew, take, take_again
from smidgen.edge_client.errors import demand

FIRST_YEAR = 2025  # that a clock shows which was set; boards without a battery start in 1970


@dataclass(frozen=True)
class Certified:
    """A coordinator's certificate.

    Attributes:
        store: The store's folder.
        url: What devices are told.
        ca: What devices are given as --ca.
        names: The hosts that the certificate is for.
        valid_until: When it ends.
    """

    store: Path
    url: str
    ca: str
    names: tuple[str, ...]
    valid_until: datetime


@dataclass(frozen=True)
class Initialized:
    """A new coordinator.

    Attributes:
        certified: Its certificate.
        operator_token: For the page and the operator's API; stored as a hash only.
    """

    certified: Certified
    operator_token: str


def init(
    store: AtStore,
    hosts: Sequence[str] = (),
    port: int | None = None,
    days: int | None = None,
    given: Given | None = None,
) -> Initialized:
    """Make a store's certificates, or take given ones, and let an operator in.

    Args:
        store: Folder of the coordinator's store; made if it is new.
        hosts: Names and addresses of this machine; devices are told the first. By default the
            address on its network, and its name.
        port: What devices are told; 8700 by default.
        days: How long the certificate is valid; a year by default.
        given: Certificates from elsewhere.

    Raises:
        WrongInput: It has certificates, or a value, a name or a given file cannot be used.
    """
    place, now = place_of(store), _now()
    folder = place.folder
    _check_numbers(port, days, given)
    check_new(folder)
    told = PORT if port is None else port
    with closing(new_store(place)) as opened:
        if given is None:
            trust = make(folder, hosts or _own_names(), told, days or SERVER_DAYS, now)
        else:
            trust = take(folder, given, hosts, told, now)
        opened.marks.secure(True)
        operator_token = add_operator(opened, "operator", now.timestamp())
    return Initialized(_certified(folder, trust), operator_token)


def renew_certificate(
    store: AtStore,
    hosts: Sequence[str] = (),
    port: int | None = None,
    days: int | None = None,
    given: Given | None = None,
) -> Certified:
    """Make another certificate by the same authority, or take a given one; devices go on.

    A coordinator that is serving takes it within seconds.

    Raises:
        WrongInput: There is none to renew, or a value, a name or a given file cannot be used.
    """
    folder = place_of(store).folder
    _check_numbers(port, days, given)
    if given is None:
        trust = renew(folder, hosts, port, days or SERVER_DAYS, _now())
    else:
        trust = take_again(folder, given, hosts, port, _now())
    return _certified(folder, trust)


def _certified(folder: Path, trust: Trust) -> Certified:
    certificate = trust.server.certificate
    names = tuple(names_of(certificate))
    return Certified(folder, trust.address.url, ca_of(trust), names, valid_until(certificate))


def _check_numbers(port: int | None, days: int | None, given: Given | None) -> None:
    demand(port is None or 0 < port < 65536, f"--port {port}: 1 to 65535 is expected")
    is_period = days is None or 0 < days <= AUTHORITY_DAYS
    demand(is_period, f"--days {days}: 1 to {AUTHORITY_DAYS} is expected")
    demand(days is None or given is None, "--days: how long --cert is valid is written in it")


def _own_names() -> list[str]:
    found = own_address()
    name = socket.gethostname()
    return [found, name] if found else [name]


def _now() -> datetime:
    """The time, of which certificates are made.

    Raises:
        WrongInput: The clock was never set, as that of a board without a battery.
    """
    now = datetime.now(timezone.utc)
    demand(
        now.year >= FIRST_YEAR,
        f"this machine's clock says {now:%Y-%m-%d}, so its certificates would end before devices "
        f"believe them; set it (`timedatectl`), to {FIRST_YEAR} or later",
    )
    return now

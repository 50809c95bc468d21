"""Certificates of a store: created, renewed, or given by the operator.

Each is checked before it is stored, so a store never holds what `serve` refuses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from smidgen.coordinator.trust.checks import check, check_authority, is_for, names_of
from smidgen.coordinator.trust.folder import (
    LOOPBACK,
    Address,
    Pair,
    Trust,
    TrustError,
    draw_authority,
    folder_of,
    is_there,
    put,
    read,
    sign_server,
)
from smidgen.edge_client.errors import demand
from smidgen.edge_client.wire.pins import pin_of


@dataclass(frozen=True)
class Given:
    """Certificates from elsewhere, as PEM files.

    Attributes:
        cert: The coordinator's certificate and those between it and the authority.
        key: Its key, without a password.
        ca: The authority, if devices are to believe it alone; else they trust their system's.
    """

    cert: Path
    key: Path
    ca: Path | None = None


def make(store: Path, names: Sequence[str], port: int, days: int, now: datetime) -> Trust:
    """Draw an authority and a certificate for names, of which devices are told the first.

    Raises:
        TrustError: There is an authority already, or the folder cannot be written.
    """
    check_new(store)
    authority = draw_authority(now)
    server = sign_server(authority, names, now, days)
    trust = Trust(Address(names[0], port), server, authority.certificate, authority.key)
    put(store, trust, lambda folder: check(folder, now))
    return trust


def check_new(store: Path) -> None:
    """Refuse a store that has certificates.

    Raises:
        TrustError: Says what to do.
    """
    if is_there(store):
        raise TrustError(
            f"{folder_of(store)} is there: this coordinator has certificates already; --renew "
            "makes another by the same CA, so that devices go on"
        )


def renew(store: Path, names: Sequence[str], port: int | None, days: int, now: datetime) -> Trust:
    """Sign another certificate by the same authority; for the names of before if none are given.

    Raises:
        TrustError: There is nothing to renew, or the authority was given or has expired.
    """
    old = _old(store)
    if old.authority is None or old.authority_key is None:
        raise TrustError(
            f"the certificate in {folder_of(store)} was given; renew it where it comes from, and "
            "give it with --renew --cert FILE --key FILE"
        )
    try:
        check_authority(old, now)
    except TrustError as error:
        raise TrustError(f"{folder_of(store)}: {error}") from error
    before = [name for name in names_of(old.server.certificate) if name not in LOOPBACK]
    authority = Pair(old.authority, old.authority_key)
    server = sign_server(authority, names or before, now, days)
    trust = replace(old, address=_address(old, names, port), server=server)
    return _put(store, trust, now)


def take(store: Path, given: Given, names: Sequence[str], port: int, now: datetime) -> Trust:
    """Take certificates from elsewhere; without a name, devices are told the certificate's first.

    Raises:
        TrustError: They cannot be used, or are not for that name.
    """
    check_new(store)
    server, authority = _read_given(given)
    names = names or _first_name(given, server)
    return _put_given(store, given, Trust(Address(names[0], port), server, authority), now)


def take_again(
    store: Path, given: Given, names: Sequence[str], port: int | None, now: datetime
) -> Trust:
    """Take renewed certificates from elsewhere; the authority of before, unless one is given.

    Raises:
        TrustError: They cannot be used, or are not for the name that devices were told.
    """
    old = _old(store)
    server, authority = _read_given(given)
    is_kept = authority is None
    trust = Trust(
        _address(old, names, port),
        server,
        old.authority if is_kept else authority,
        old.authority_key if is_kept else None,
    )
    return _put_given(store, given, trust, now)


def _old(store: Path) -> Trust:
    folder = folder_of(store)
    demand(is_there(store), f"no {folder} to renew; `init` without --renew makes it", TrustError)
    try:
        return read(folder)
    except TrustError as error:
        raise TrustError(f"{folder}: {error}") from error


def _address(old: Trust, names: Sequence[str], port: int | None) -> Address:
    host = names[0] if names else old.address.host
    return Address(host, old.address.port if port is None else port)


def _read_given(given: Given) -> tuple[Pair, bytes | None]:
    def body(option: str, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise TrustError(f"{option} {path}: {error.strerror}") from error

    authority = None if given.ca is None else body("--ca", given.ca)
    if authority is not None:
        try:
            pin_of(authority)
        except ValueError as error:
            raise TrustError(f"--ca {given.ca}: {error}") from error
    return Pair(body("--cert", given.cert), body("--key", given.key)), authority


def _first_name(given: Given, server: Pair) -> list[str]:
    try:
        found = [name for name in names_of(server.certificate) if "*" not in name]
    except ValueError as error:
        raise TrustError(f"--cert {given.cert} holds no certificate ({error})") from error
    demand(
        bool(found),
        f"--cert {given.cert} is for no single host; say with --host what devices are told",
        TrustError,
    )
    return found[:1]


def _put(store: Path, trust: Trust, now: datetime) -> Trust:
    put(store, trust, lambda folder: check(folder, now))
    return trust


def _put_given(store: Path, given: Given, trust: Trust, now: datetime) -> Trust:
    def look(folder: Path) -> None:
        try:
            check(folder, now)
        except TrustError as error:
            said = str(error).replace("server.pem", str(given.cert))
            said = said.replace("server.key", str(given.key)).replace("ca.pem", str(given.ca))
            raise TrustError(said) from error
        if not is_for(folder, trust):
            names = ", ".join(names_of(trust.server.certificate))
            raise TrustError(
                f"--cert {given.cert} is for {names}, and devices are told {trust.address.host}: "
                "give another certificate, or one of its names with --host"
            )

    put(store, trust, look)
    return trust

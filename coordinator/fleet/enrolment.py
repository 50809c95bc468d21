"""Enrolment of devices, and their sign-in at each start.

The device's key is its identity: an enrolment repeated because its answer was lost is the same
device. The cost does not grow with the fleet.
"""

from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.storage.credentials import Token, hash_secret, spend, token_of
from smidgen.coordinator.storage.database import Connection
from smidgen.coordinator.storage.devices import (
    Device,
    add_device,
    device_of_key,
    free_name,
    said_at_s,
    start,
)
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.wire.fleet import REVOKED, Enrol, device_id_of
from smidgen.edge_client.wire.messages import PROTOCOL

KEY_LENGTHS = range(20, 201)
NO_KEY = "a device's key is expected as `Authorization: Bearer KEY`"


def enrol(
    store: Store, message: Enrol, key: str | None, now_s: float, wall_s: float | None = None
) -> Device:
    """Let a device in by its token, or by its key where that is known.

    Args:
        store: Holds both.
        message: What the device says of itself.
        key: Its key.
        now_s: Unix time, as the coordinator goes by it.
        wall_s: The wall clock's, by which tokens expire; None: the same.

    Raises:
        Refusal: 422 another protocol; 401 no key, a token that lets nobody in, a revoked device.
    """
    if message.protocol != PROTOCOL:
        raise Refusal(
            422,
            f"protocol {message.protocol}; this coordinator speaks {PROTOCOL}: install the same "
            "version of smidgen on both sides",
        )
    if key is None or len(key) not in KEY_LENGTHS:
        raise Refusal(401, f"{NO_KEY}, of {KEY_LENGTHS[0]} to {KEY_LENGTHS[-1]} characters")
    today_s = now_s if wall_s is None else wall_s
    with store.database.reading() as connection:
        # Before it shares a commit: one that is refused would have all that share it begin anew.
        if device_of_key(connection, hash_secret(key)) is None:
            _token(connection, message, today_s)
    return store.database.share(lambda open_: _let_in(open_, message, key, now_s, today_s))


def _token(connection: Connection, message: Enrol, wall_s: float) -> Token:
    """The token that lets a device in.

    Raises:
        Refusal: 401.
    """
    token = token_of(connection, message.token)
    lack = token.lack(wall_s) if token else "is not known"
    if token is None or lack:
        raise Refusal(401, f"this enrolment token {lack}; ask the operator for one")
    return token


def _let_in(
    connection: Connection, message: Enrol, key: str, now_s: float, wall_s: float
) -> Device:
    key_sha256 = hash_secret(key)
    known = device_of_key(connection, key_sha256)
    if known is not None:
        if known.revoked_at_s is not None:
            raise Refusal(401, REVOKED)
        # A life is told from the last one, and from what was said in it, by its time: also after
        # a start of the coordinator with a clock that was set back.
        last_s = max(known.started_at_s, said_at_s(connection, known.device_id))
        started_at_s = max(now_s, last_s + 0.001)
        return start(
            connection, known, message.tags, message.facts, started_at_s, now_s, message.life
        )
    token = _token(connection, message, wall_s)
    if not spend(connection, token.token_id):  # others came at the same moment
        raise Refusal(401, "this enrolment token was used up; ask the operator for one")
    device_id = device_id_of(key)
    name = free_name(connection, message.name, device_id)
    new = Device(
        device_id=device_id,
        key_sha256=key_sha256,
        name=name[0],
        own_tags=message.tags,
        tags=token.tags,
        facts=message.facts,
        token_id=token.token_id,
        enrolled_at_s=now_s,
        started_at_s=now_s,
        last_seen_s=now_s,
        revoked_at_s=None,
        life=message.life,
    )
    return add_device(connection, new, stem=name[1], number=name[2])

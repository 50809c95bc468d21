"""Operators (viewers may look, operators may change) by bearer token, and their page sessions.

On the page a session's secret stands for the token for half a day. Sessions are stored, so that a
restart asks nobody to log in again; one ends by logout, expiry, or when its operator is revoked.
"""

import secrets
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sql

from coordinator.storage.errors import StoreError
from coordinator.storage.keys import draw_secret, hash_secret
from coordinator.storage.schema import OPERATORS, SESSIONS
from coordinator.storage.store import Store

Role = Literal["operator", "viewer"]
SESSION_S = 12 * 3600.0
MOST_SESSIONS = 20  # of one operator; the oldest ends where another begins


@dataclass(frozen=True)
class Operator:
    """Somebody who was let in.

    Attributes:
        operator_id: Names them; the token itself is stored as a hash.
        role: What they may do.
        created_at_s: Unix time.
        revoked_at_s: Since when their token no longer counts; None while it does.
    """

    operator_id: str
    role: Role
    created_at_s: float
    revoked_at_s: float | None


def add_operator(store: Store, role: Role, now_s: float) -> str:
    """Let somebody in; their token, of which the store keeps the hash alone."""
    token = draw_secret()
    row = {
        "operator_id": f"o{secrets.token_hex(5)}",
        "token_sha256": hash_secret(token),
        "role": role,
        "created_at_s": now_s,
    }
    store.database.write(sql.insert(OPERATORS).values(**row))
    return token


def operator_of_token(store: Store, token: str) -> Operator | None:
    """Whose token it is; None if it is nobody's, or revoked."""
    mine = OPERATORS.c.token_sha256 == hash_secret(token)
    found = _chosen(store, sql.select(OPERATORS).where(mine, OPERATORS.c.revoked_at_s.is_(None)))
    return found[0] if found else None


def operators(store: Store) -> list[Operator]:
    """Everybody who was ever let in, the newest first."""
    order = (OPERATORS.c.created_at_s.desc(), OPERATORS.c.operator_id)
    return _chosen(store, sql.select(OPERATORS).order_by(*order))


def revoke_operator(store: Store, operator_id: str, now_s: float) -> Operator:
    """Let a token count no longer; more than once is as good as once.

    Raises:
        StoreError: Nobody has that id.
    """
    here = OPERATORS.c.operator_id == operator_id
    fresh = here & OPERATORS.c.revoked_at_s.is_(None)
    store.database.write(sql.update(OPERATORS).where(fresh).values(revoked_at_s=now_s))
    found = _chosen(store, sql.select(OPERATORS).where(here))
    if not found:
        raise StoreError(
            f"no operator {operator_id[:64]!r}; `smidgen coordinator operators list` shows them"
        )
    return found[0]


def _chosen(store: Store, chosen: "sql.Select[tuple[object, ...]]") -> list[Operator]:
    names = ("operator_id", "role", "created_at_s", "revoked_at_s")
    return [Operator(**{name: row[name] for name in names}) for row in store.database.rows(chosen)]


def open_session(store: Store, token: str, now_s: float) -> tuple[str, Role] | None:
    """Log in by a token.

    Returns:
        The new session's secret and its role, None where nobody has this token.
    """
    found = operator_of_token(store, token)
    if found is None:
        return None
    operator_id, secret = found.operator_id, draw_secret()
    newest = (
        sql.select(SESSIONS.c.session_sha256)
        .where(SESSIONS.c.operator_id == operator_id)
        .order_by(SESSIONS.c.expires_at_s.desc())
        .limit(MOST_SESSIONS - 1)
    )
    kept = [row["session_sha256"] for row in store.database.rows(newest)]
    is_old = SESSIONS.c.expires_at_s <= now_s
    is_over = (SESSIONS.c.operator_id == operator_id) & SESSIONS.c.session_sha256.not_in(kept)
    row = {
        "session_sha256": hash_secret(secret),
        "operator_id": operator_id,
        "expires_at_s": now_s + SESSION_S,
    }
    store.database.write(
        sql.delete(SESSIONS).where(is_old | is_over), sql.insert(SESSIONS).values(**row)
    )
    return secret, found.role


def role_of_session(store: Store, secret: str, now_s: float) -> Role | None:
    here = (
        (SESSIONS.c.session_sha256 == hash_secret(secret))
        & (SESSIONS.c.expires_at_s > now_s)
        & (OPERATORS.c.operator_id == SESSIONS.c.operator_id)
        & OPERATORS.c.revoked_at_s.is_(None)
    )
    found = store.database.rows(sql.select(OPERATORS.c.role).where(here))
    return found[0]["role"] if found else None


def close_session(store: Store, secret: str) -> None:
    """Log out; a session that is not there is closed."""
    here = SESSIONS.c.session_sha256 == hash_secret(secret)
    store.database.write(sql.delete(SESSIONS).where(here))

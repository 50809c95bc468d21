"""Credentials: enrolment tokens, device keys and operators; only their SHA-256 is stored.

Both are 256 random bits, so a plain hash suffices: there is no dictionary to try.

On the page a session's secret stands for the token for half a day. Sessions are stored, so that a
restart asks nobody to log in again; one ends by logout, expiry, or when its operator is revoked.
"""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sql

from smidgen.coordinator.storage.database import Database, StoreError
from smidgen.coordinator.storage.schema import OPERATORS, SESSIONS, TOKENS
from smidgen.coordinator.storage.store import Store


def draw_secret() -> str:
    """A new token or key: 256 random bits, safe in a URL and in a shell."""
    # A leading dash would read as an option on a command line.
    return "s" + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def bearer(header: str | None) -> str | None:
    """The secret of an `Authorization: Bearer SECRET` header, None if it is another kind."""
    scheme, _, secret = (header or "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" and secret.strip() else None


@dataclass(frozen=True)
class Token:
    """What lets devices enrol.

    Attributes:
        token_id: Names it for people.
        created_at_s: Unix time.
        expires_at_s: Unix time from which on it lets nobody in; None for never.
        uses: Devices that it lets in; None for any number.
        used: Devices that came with it.
        tags: What devices that come with it are tagged, as by the operator.
        revoked_at_s: Unix time from which on it lets nobody in; None while it does.
    """

    token_id: str
    created_at_s: float
    expires_at_s: float | None
    uses: int | None
    used: int
    tags: dict[str, str]
    revoked_at_s: float | None

    def lack(self, now_s: float) -> str:
        """Why it lets nobody in; empty where it does."""
        if self.revoked_at_s is not None:
            return "was revoked"
        if self.expires_at_s is not None and now_s >= self.expires_at_s:
            return "has expired"
        if self.uses is not None and self.used >= self.uses:
            return f"has let in its {self.uses} device{'' if self.uses == 1 else 's'}"
        return ""


def insert_token(
    secret: str,
    now_s: float,
    uses: int | None = None,
    expires_at_s: float | None = None,
    tags: Mapping[str, str] | None = None,
) -> tuple[str, sql.Executable]:
    """The id of a new token, and the statement that adds it."""
    token_id = f"t{secrets.token_hex(5)}"
    values = {
        "token_id": token_id,
        "token_sha256": hash_secret(secret),
        "created_at_s": now_s,
        "expires_at_s": expires_at_s,
        "uses": uses,
        "used": 0,
        "tags": dict(tags or {}),
    }
    return token_id, sql.insert(TOKENS).values(**values)


def tokens(database: Database) -> list[Token]:
    order = (TOKENS.c.created_at_s, TOKENS.c.token_id)
    return [_token(row) for row in database.rows(sql.select(TOKENS).order_by(*order))]


def token_of(connection: sql.Connection, secret: str) -> Token | None:
    here = TOKENS.c.token_sha256 == hash_secret(secret)
    row = connection.execute(sql.select(TOKENS).where(here)).mappings().one_or_none()
    return _token(row) if row else None


def spend(connection: sql.Connection, token_id: str) -> bool:
    """Count a use of a token; False where it had none left."""
    is_left = TOKENS.c.uses.is_(None) | (TOKENS.c.used < TOKENS.c.uses)
    here = (TOKENS.c.token_id == token_id) & is_left
    counted = connection.execute(sql.update(TOKENS).where(here).values(used=TOKENS.c.used + 1))
    return counted.rowcount == 1


def revoke(database: Database, token_id: str, now_s: float) -> None:
    """Let nobody in with a token any more; devices that came with it stay."""
    here = (TOKENS.c.token_id == token_id) & TOKENS.c.revoked_at_s.is_(None)
    database.write(sql.update(TOKENS).where(here).values(revoked_at_s=now_s))


def _token(row: Mapping[Any, Any]) -> Token:
    return Token(**{name: row[name] for name in Token.__dataclass_fields__})


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
    return _chosen(
        store,
        sql.select(OPERATORS).order_by(OPERATORS.c.created_at_s.desc(), OPERATORS.c.operator_id),
    )


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
    here = SESSIONS.c.session_sha256 == hash_secret(secret)
    store.database.write(sql.delete(SESSIONS).where(here))

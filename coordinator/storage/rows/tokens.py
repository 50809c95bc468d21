"""Rows of enrolment tokens: limited in uses and time, revocable; only their hash is stored."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from coordinator.storage.database import Database
from coordinator.storage.keys import hash_secret
from coordinator.storage.schema import TOKENS


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

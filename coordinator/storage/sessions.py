"""Who is logged in on the page: a cookie's secret stands for an operator's token for half a day.

Kept in the store, so that a coordinator that starts again asks nobody to log in again; a session
ends when it is closed, when it expires, and when its operator is revoked.
"""

import sqlalchemy as sql

from coordinator.storage.keys import draw_secret, hash_secret
from coordinator.storage.operators import Role
from coordinator.storage.schema import OPERATORS, SESSIONS
from coordinator.storage.store import Store

LASTS_S = 12 * 3600.0
MOST = 20  # sessions of one operator; the oldest ends where another begins


def open_session(store: Store, token: str, now_s: float) -> tuple[str, Role] | None:
    """Log in by a token.

    Returns:
        The new session's secret and its role, None where nobody has this token.
    """
    here = (OPERATORS.c.token_sha256 == hash_secret(token)) & OPERATORS.c.revoked_at_s.is_(None)
    found = store.database.rows(sql.select(OPERATORS).where(here))
    if not found:
        return None
    operator_id, secret = found[0]["operator_id"], draw_secret()
    newest = (
        sql.select(SESSIONS.c.session_sha256)
        .where(SESSIONS.c.operator_id == operator_id)
        .order_by(SESSIONS.c.expires_at_s.desc())
        .limit(MOST - 1)
    )
    kept = [row["session_sha256"] for row in store.database.rows(newest)]
    is_old = SESSIONS.c.expires_at_s <= now_s
    is_over = (SESSIONS.c.operator_id == operator_id) & SESSIONS.c.session_sha256.not_in(kept)
    row = {
        "session_sha256": hash_secret(secret),
        "operator_id": operator_id,
        "expires_at_s": now_s + LASTS_S,
    }
    store.database.write(
        sql.delete(SESSIONS).where(is_old | is_over), sql.insert(SESSIONS).values(**row)
    )
    return secret, found[0]["role"]


def role_of_session(store: Store, secret: str, now_s: float) -> Role | None:
    """The role of a session that is open."""
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

"""Who may look at a coordinator (viewer) and who may change it (operator), by bearer token."""

import secrets
from typing import Literal

import sqlalchemy as sql

from coordinator.storage.keys import draw_secret, hash_secret
from coordinator.storage.schema import OPERATORS
from coordinator.storage.store import Store

Role = Literal["operator", "viewer"]


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

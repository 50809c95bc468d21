"""Secrets: enrolment tokens and device keys, of which only the SHA-256 is stored.

Both are 256 random bits, so a plain hash suffices: there is no dictionary to try.
"""

import hashlib
import secrets


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

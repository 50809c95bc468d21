"""Who asks: by a bearer token, or by the cookie of the page.

The cookie is `SameSite=Strict`, and no other site can send the header that goes with a change: a
link or a form elsewhere changes nothing here.
"""

from starlette.requests import Request

from coordinator.rounds.admission import Refusal
from coordinator.storage.keys import bearer
from coordinator.storage.operators import Role, operator_of_token, role_of_session
from coordinator.storage.store import Store

COOKIE = "smidgen_session"
HEADER = "X-Smidgen-Page"
READS = {"GET", "HEAD"}


def role_of(store: Store, request: Request, now_s: float) -> Role | None:
    """What whoever asks may do; None for nobody.

    Raises:
        Refusal: 403, a change by cookie without the page's header.
    """
    if "authorization" in request.headers:
        token = bearer(request.headers["authorization"])
        found = operator_of_token(store, token) if token else None
        return found.role if found else None
    secret = request.cookies.get(COOKIE)
    role = role_of_session(store, secret, now_s) if secret else None
    if role is not None:
        check_header(request)
    return role


def check_header(request: Request) -> None:
    """Refuse a change that does not come from the page itself.

    Raises:
        Refusal: 403.
    """
    if request.method not in READS and HEADER.lower() not in request.headers:
        raise Refusal(403, f"a change by cookie needs the header {HEADER}")

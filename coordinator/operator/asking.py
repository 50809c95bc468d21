"""What all routes of the operator's API share: who may ask, refusals, pages of lists."""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from fastapi.security import APIKeyCookie, HTTPBearer

from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.connection_limits import let_in
from smidgen.coordinator.serving.http.handlers import refusals
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.credentials import Role, bearer, operator_of_token, role_of_session
from smidgen.coordinator.storage.store import Store

COOKIE = "smidgen_session"
HEADER = "X-Smidgen-Page"


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
    if request.method not in {"GET", "HEAD"} and HEADER.lower() not in request.headers:
        raise Refusal(403, f"a change by cookie needs the header {HEADER}")


Item = TypeVar("Item")
Limit = Annotated[int, Query(ge=1, le=200, description="Most rows of this page.")]
After = Annotated[
    str | None,
    Query(max_length=200, description="`next` of the page before; none for the first."),
]
REFUSALS = refusals(400, 401, 403, 404, 408, 409, 413, 422, 429, 507)
NOBODY = "an operator's or a viewer's token is expected as `Authorization: Bearer TOKEN`"
# For the OpenAPI document; `role_of` reads the request itself.
BEARER = HTTPBearer(
    scheme_name="Token", description="An operator's or a viewer's token.", auto_error=False
)
CARRIED = APIKeyCookie(
    name=COOKIE, scheme_name="Cookie", description="The page's, of its log-in.", auto_error=False
)


def viewers(service: Service) -> Callable[..., Role]:
    """A dependency that lets everybody in who has a role."""

    def check(
        request: Request,
        _token: Annotated[Any, Depends(BEARER)],
        _: Annotated[Any, Depends(CARRIED)],
    ) -> Role:
        role = role_of(service.store, request, time.time())
        if role is None:
            raise Refusal(401, NOBODY)
        welcome(request, role)
        return role

    return check


def welcome(request: Request, role: Role) -> None:
    """Whoever has a role is no stranger on the connection of a request."""
    host = request.client.host if request.client else ""
    let_in(request.scope, f"{role} at {host}")


def operators(service: Service) -> Callable[..., Role]:

    def check(role: Annotated[Role, Depends(viewers(service))]) -> Role:
        if role != "operator":
            raise Refusal(403, f"a {role} may look, not change; an operator's token is expected")
        return role

    return check


def page(
    items: Sequence[Item], key: Callable[[Item], str], after: str | None, limit: int
) -> tuple[list[Item], str | None]:
    """A page of a list, and the key that the next one comes after; None on the last.

    Args:
        items: The whole list, in its order.
        key: Names an item.
        after: Key of the item before the page; None for the first page.
        limit: Most items of it.

    Raises:
        Refusal: 422, no item has that key.
    """
    start = 0
    if after is not None:
        place = next((at for at, item in enumerate(items) if key(item) == after), None)
        if place is None:
            raise Refusal(422, "after: not a `next` of this list, or its item is gone")
        start = place + 1
    found = list(items[start : start + limit])
    return found, key(found[-1]) if found and start + limit < len(items) else None

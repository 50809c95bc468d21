"""What all routes of the operator's API share: who may ask, refusals, pages of lists."""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from fastapi.security import APIKeyCookie, HTTPBearer

from coordinator.operator.roles import COOKIE, role_of
from coordinator.operator.schemas import Detail
from coordinator.rounds.admission import Refusal
from coordinator.serving.service import Service
from coordinator.storage.operators import Role

Item = TypeVar("Item")
MOST_ROWS = 200  # of a page of a list
LONGEST_CURSOR = 200
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="Most rows of this page.")]
After = Annotated[
    str | None,
    Query(max_length=LONGEST_CURSOR, description="`next` of the page before; none for the first."),
]
SAID = {
    400: "The body is not JSON.",
    401: "No operator's or viewer's token came, or one that was revoked.",
    403: "This role may not do that.",
    404: "There is no such thing.",
    409: "It cannot be done as things stand.",
    413: "The body is longer than a message may be.",
    422: "A value that is not expected.",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Detail, "description": text} for status, text in SAID.items()
}
NOBODY = "an operator's or a viewer's token is expected as `Authorization: Bearer TOKEN`"
# For the OpenAPI document; `role_of` reads the request itself.
BEARER = HTTPBearer(auto_error=False, description="An operator's or a viewer's token.")
CARRIED = APIKeyCookie(name=COOKIE, auto_error=False, description="The page's, of its log-in.")


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
        return role

    return check


def operators(service: Service) -> Callable[..., Role]:
    """A dependency that lets operators in."""

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

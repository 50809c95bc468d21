"""The operator's API, added to the coordinator's application: everything under /v1/operator."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute

from coordinator.operator.access_routes import add_people_routes, add_token_routes
from coordinator.operator.asking import REFUSALS, operators, viewers
from coordinator.operator.device_routes import add_device_routes
from coordinator.operator.run_routes import add_run_routes
from coordinator.serving.http.handlers import read_body
from coordinator.serving.http.polls import Bells
from coordinator.serving.service import Service
from edge_client.wire.messages import MAX_JSON_BYTES

PREFIX = "/v1/operator"


class Bounded(APIRoute):
    """A route that reads no more of a body than a message may have, whoever sends it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            # Starlette gives what is here to whoever asks for the body.
            request._body = await read_body(request, MAX_JSON_BYTES)
            return await handle(request)

        return bounded


def add_operator_routes(app: FastAPI, service: Service, bells: Bells) -> None:
    """Add the routes that `coordinator.operator.schemas` lists."""
    viewer, operator = (
        APIRouter(
            prefix=PREFIX,
            dependencies=[Depends(check(service))],
            responses=REFUSALS,
            route_class=Bounded,
        )
        for check in (viewers, operators)
    )
    add_run_routes(viewer, operator, service, bells)
    add_device_routes(viewer, operator, service, bells)
    add_token_routes(viewer, operator, service)
    add_people_routes(operator, service)
    app.include_router(viewer)
    app.include_router(operator)

"""The operator's API, added to the coordinator's application: everything under /v1/operator."""

from fastapi import APIRouter, Depends, FastAPI

from coordinator.operator.access_routes import add_people_routes, add_token_routes
from coordinator.operator.asking import REFUSALS, operators, viewers
from coordinator.operator.device_routes import add_device_routes
from coordinator.operator.run_routes import add_run_routes
from coordinator.serving.polls import Bells
from coordinator.serving.service import Service

PREFIX = "/v1/operator"


def add_operator_routes(app: FastAPI, service: Service, bells: Bells) -> None:
    """Add the routes that `coordinator.operator.schemas` lists."""
    viewer, operator = (
        APIRouter(prefix=PREFIX, dependencies=[Depends(check(service))], responses=REFUSALS)
        for check in (viewers, operators)
    )
    add_run_routes(viewer, operator, service, bells)
    add_device_routes(viewer, operator, service, bells)
    add_token_routes(viewer, operator, service)
    add_people_routes(operator, service)
    app.include_router(viewer)
    app.include_router(operator)

"""The coordinator with the operator's API."""

import pytest

from coordinator.operator.routes import add_operator_routes
from coordinator.serving.server import Part


@pytest.fixture
def parts() -> tuple[Part, ...]:
    return (add_operator_routes,)

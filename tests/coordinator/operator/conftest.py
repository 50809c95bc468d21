"""The coordinator with the operator's API."""

import pytest

from smidgen.coordinator.operator.routes import add_operator_routes
from smidgen.coordinator.serving.server import Part


@pytest.fixture
def parts() -> tuple[Part, ...]:
    return (add_operator_routes,)

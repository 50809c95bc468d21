"""Every answer of a coordinator says that it is one."""

from collections.abc import Callable

from smidgen.edge_client.wire.messages import OWN, PROTOCOL
from tests.coordinator.conftest import Live


def test_every_answer_is_signed(start: Callable[..., Live]) -> None:
    http = start().http
    asked = [
        *(("GET", "/healthz"), ("GET", "/v1/work"), ("GET", "/v1/ca"), ("GET", "/nowhere")),
        *(("PUT", "/healthz"), ("POST", "/v1/enrol"), ("HEAD", "/v1/work/w/update")),
        *(("GET", "/v1/work?wait_s=x"), ("GET", "/openapi.json")),
    ]
    found = {(what, path): http.request(what, path) for what, path in asked}
    assert {answer.headers.get(OWN) for answer in found.values()} == {str(PROTOCOL)}
    assert {200, 401, 404, 405, 422} <= {answer.status_code for answer in found.values()}

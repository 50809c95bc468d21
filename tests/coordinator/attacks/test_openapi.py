"""Every route of the coordinator's OpenAPI document, asked by everybody, with right and odd values.

Whatever comes, the answer is one that the document says: its status, its type, its shape. A
refusal has one line of reason.
"""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.breadth import first_fast
from tests.coordinator.attacks.callers import PAGE, Scene, scene
from tests.coordinator.attacks.test_every_route import EXPECTED
from tests.coordinator.page.conftest import Served

ENDLESS = "/v1/operator/events"  # a stream; its own tests read it
FILES = {"/", "/page/{name}", "/openapi.json"}  # what people open or fetch; it is no API
CALLERS = ("operator", "nobody", "viewer", "device", "revoked device")
CHECKS = ("status_code", "content_type", "response_headers", "response_schema")
Start = Callable[..., Served]


def document(served: Served) -> dict[str, Any]:
    told: dict[str, Any] = served.http.get("/openapi.json").json()
    return told


def real_names(served: Served, there: Scene) -> dict[str, str]:
    """What stands in a path, as there is."""
    return {
        "run_id": served.run_id,
        "device_id": there.device.device_id,
        "work_id": there.work.work_id,
        "name": there.work.adapter_sha256,
        "token_id": "t0",
        "operator_id": "o0",
    }


def test_the_document_holds_every_route_but_the_pages_files(start: Start) -> None:
    told = document(start())["paths"]
    found = {(method.upper(), path) for path, methods in told.items() for method in methods}
    known = {(method, path.replace(":path}", "}")) for method, path in EXPECTED}
    assert {route for route in known if route[1] not in FILES} == found


def test_every_route_says_what_it_answers_and_shows_an_example(start: Start) -> None:
    told = document(start())
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            assert operation["description"] and operation["tags"], (method, path)
            done = [key for key in operation["responses"] if key.startswith("2")]
            assert done, (method, path)
            bodies = [operation["responses"][key].get("content", {}) for key in done]
            bodies.append(operation.get("requestBody", {}).get("content", {}))
            for kind, body in ((kind, body) for one in bodies for kind, body in one.items()):
                schema = body["schema"]
                name = schema.get("$ref", "").rpartition("/")[2]
                shown = told["components"]["schemas"].get(name, schema)
                is_shown = "example" in body or "examples" in shown
                assert is_shown or kind != "application/json", (method, path)
                assert shown.get("properties") or kind != "application/json", (method, path)


def test_every_refusal_is_documented_as_one_line(start: Start) -> None:
    told = document(start())
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            refused = {key: one for key, one in operation["responses"].items() if key[0] == "4"}
            assert method == "head" or all(
                one["content"]["application/json"]["schema"]["$ref"].endswith("/Detail")
                for one in refused.values()
            ), (method, path)
            is_for_some = "security" in operation
            assert not is_for_some or "401" in refused, (method, path)


def tried(served: Served, who: str, examples: int) -> None:
    """Ask every operation with values that schemathesis makes, right ones and wrong ones."""
    schemathesis = pytest.importorskip("schemathesis")  # here: its import takes a second
    checks = import_module("schemathesis.specs.openapi.checks")
    conform = [getattr(checks, f"{name}_conformance") for name in CHECKS]
    there = scene(served)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_dict(document(served)).exclude(path=ENDLESS)
    schema.config.update(base_url=served.url)
    names, own = real_names(served, there), there.headers[who]
    found: Any
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(), is_real=st.booleans())
        def one(case: Any, is_real: bool) -> None:
            if is_real:
                known = case.path_parameters or {}
                case.path_parameters = {key: names.get(key, known[key]) for key in known}
            if "wait_s" in (case.query or {}):
                case.query["wait_s"] = 0
            case.cookies = {}
            case.headers = {
                key: value
                for key, value in (case.headers or {}).items()
                if key.lower() not in ("authorization", "cookie")
            }
            answer = case.call(headers=own | PAGE)
            assert answer.status_code < 500, (who, case.method, case.path, answer.text)
            case.validate_response(answer, checks=conform)
            if answer.status_code >= 400 and case.method != "HEAD":
                detail = answer.json()["detail"]
                assert detail and "\n" not in detail, (who, case.method, case.path)

        one()


@pytest.mark.parametrize("who", first_fast(CALLERS))
def test_odd_values_end_in_an_answer_or_a_reason(start: Start, who: str) -> None:
    tried(start(rounds=50), who, examples=1)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("who", CALLERS)
def test_whatever_comes_ends_in_an_answer_or_a_reason(start: Start, who: str) -> None:
    tried(start(rounds=50), who, examples=40)

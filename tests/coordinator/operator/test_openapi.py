"""Every route of the coordinator's OpenAPI document, asked by everybody, with right and odd values.

Whatever comes, the answer is what the document says or 4xx with one line of reason.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("schemathesis")

import schemathesis
from schemathesis.specs.openapi.checks import response_schema_conformance

from coordinator.config import RunConfig
from coordinator.storage.store import Store
from tests.coordinator.conftest import Live, serving
from tests.coordinator.devices import Device
from tests.coordinator.operator.operators import PREFIX, Person, person

ENDLESS = f"{PREFIX}/events"  # a stream; its own tests read it
ROLES = ("nobody", "viewer", "operator", "device", "revoked")
WRITES = {"POST", "PUT", "PATCH", "DELETE"}
Start = Callable[..., Live]


def tokens(live: Live) -> dict[str, str]:
    """What each role brings."""
    (device,) = live.join("a")
    gone = person(live.http, live.store)
    (mine,) = [one for one in gone.get("/operators")["operators"] if one["role"] == "operator"][:1]
    boss = person(live.http, live.store)
    boss.post(f"/operators/{mine['operator_id']}/revoke")
    viewer = person(live.http, live.store, "viewer")
    known = {"nobody": "", "viewer": viewer.token, "operator": boss.token, "device": device.key}
    return known | {"revoked": gone.token}


def document(live: Live) -> dict[str, Any]:
    told: dict[str, Any] = live.http.get("/openapi.json").json()
    return told


def real_names(live: Live) -> dict[str, str]:
    """What stands in a path, as there is."""
    (run,) = live.service.runs()
    return {
        "run_id": live.run_id,
        "device_id": live.service.fleet.all()[0].device_id,
        "work_id": next(iter(run.works.values()), "w"),
        "name": run.state.adapter_sha256,
        "token_id": "t0",
        "operator_id": "o0",
    }


def routes(live: Live) -> Iterator[tuple[str, str, str]]:
    """Method, path with names in braces, and the same with real names, of the operator's API."""
    names = real_names(live)
    for path, methods in document(live)["paths"].items():
        for method in methods:
            if path.startswith(PREFIX) and not path.endswith(("/session", "/events")):
                yield method.upper(), path, path.format_map(names)


def test_each_role_on_every_route_is_let_in_or_told_why_not(start: Start) -> None:
    live = start()
    known = tokens(live)
    for method, path, place in routes(live):
        for role, token in known.items():
            headers = Person(live.http, token).headers
            response = live.http.request(method, place, headers=headers, json={})
            is_closed = method in WRITES or path == f"{PREFIX}/operators"
            if role in ("nobody", "device", "revoked"):
                assert response.status_code == 401, (role, method, path)
                assert response.headers["www-authenticate"] == "Bearer"
            elif role == "viewer" and is_closed:
                assert response.status_code == 403, (role, method, path)
            else:
                assert response.status_code not in (401, 403), (role, method, path)
            if not response.is_success:
                detail = response.json()["detail"]
                assert detail and "\n" not in detail and len(detail) <= 500


def test_an_operators_token_is_no_devices(start: Start) -> None:
    live = start()
    headers = person(live.http, live.store).headers
    for method, path in (("GET", "/v1/work"), ("GET", f"/v1/adapters/{'0' * 64}")):
        assert live.http.request(method, path, headers=headers).status_code == 401


def test_another_devices_work_is_refused(start: Start) -> None:
    live = start(min_clients=2)
    mine, other = live.join("a", "b")
    work = mine.work()
    stolen = Device(live.http, other.key, other.enrolled)
    assert stolen.put(work.work_id, b"x").status_code == 403
    path = f"/v1/work/{work.work_id}/report"
    body = {"work_id": work.work_id, "outcome": "failed", "failure": "texts"}
    refused = live.http.post(path, json=body, headers=other.headers)
    assert refused.status_code == 403 and "another device" in refused.json()["detail"]


def test_every_route_says_what_it_answers_and_shows_an_example(start: Start) -> None:
    told = document(start())
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            if not path.startswith(PREFIX) or path.endswith(("/events", "/session")):
                continue
            assert operation["description"], (method, path)
            assert {"401", "403", "422"} <= operation["responses"].keys(), (method, path)
            done = next(
                operation["responses"][key]
                for key in ("200", "201", "202")
                if key in operation["responses"]
            )
            name = done["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert told["components"]["schemas"][name]["examples"], name


def tried(live: Live, role: str, token: str, examples: int) -> None:
    """Ask every operation with values that schemathesis makes, right ones and wrong ones."""
    url = str(live.http.base_url).rstrip("/")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_dict(document(live)).exclude(path=ENDLESS)
    schema.config.update(base_url=url)
    names = real_names(live)
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
                case.path_parameters = {
                    key: names.get(key, value)
                    for key, value in (case.path_parameters or {}).items()
                }
            if "wait_s" in (case.query or {}):
                case.query["wait_s"] = 0
            case.headers = {
                k: v for k, v in (case.headers or {}).items() if k.lower() != "authorization"
            }
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            response = case.call(headers=headers)
            assert response.status_code < 500, (role, case.method, case.path, response.text)
            if response.status_code >= 400 and response.content:
                told = response.json()["detail"]
                assert told and "\n" not in told, (role, case.method, case.path)
            elif case.path.startswith(PREFIX):
                case.validate_response(response, checks=[response_schema_conformance])

        one()


@pytest.mark.parametrize("role", ["nobody", "operator"])
def test_odd_values_end_in_an_answer_or_a_reason(start: Start, role: str) -> None:
    live = start()
    tried(live, role, tokens(live)[role], examples=1)


@pytest.fixture
def other(tmp_path: Path, config: RunConfig) -> Iterator[Live]:
    with closing(Store(tmp_path / "other")) as store, serving(store, config) as live:
        yield live


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_whatever_comes_ends_in_an_answer_or_a_reason(other: Live, role: str) -> None:
    tried(other, role, tokens(other)[role], examples=40)

"""Every route of the coordinator, asked by everybody: who is let in, and who is told why not.

The table is held against the application's own routes: a route that is not in it is a failure.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")

from fastapi.routing import APIRoute, iter_route_contexts

from smidgen.coordinator.api.ready import parts
from smidgen.coordinator.operator.asking import COOKIE
from smidgen.coordinator.serving import server
from smidgen.coordinator.serving.http.handlers import OF_WORK
from smidgen.coordinator.serving.server import create_app
from smidgen.coordinator.storage.credentials import add_operator, operator_of_token
from smidgen.edge_client.wire.messages import PROTOCOL, Report, encode
from smidgen.edge_client.wire.tensors import digest_header, sha256
from tests.breadth import first_fast
from tests.coordinator.attacks.callers import DEVICES, PAGE, PEOPLE, STRANGERS, Scene, scene
from tests.coordinator.page.conftest import Served

Start = Callable[..., Served]
Options = dict[str, Any]
Route = tuple[str, str]
ALL = {*PEOPLE, *STRANGERS, *DEVICES}
OVER = ("cookie that is over", "cookie of a revoked operator")
FEW = ("nobody", "nonsense", "another scheme", "revoked device")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
API = "/v1/operator"


def everybody(status: int) -> dict[str, int]:
    return dict.fromkeys(ALL, status)


def people(viewer: int, operator: int) -> dict[str, int]:
    """What people hear; everybody else hears 401."""
    told = {"viewer": viewer, "operator": operator}
    return everybody(401) | {who: told[who.removesuffix("'s cookie")] for who in PEOPLE}


def devices(mine: int, another: int) -> dict[str, int]:
    """What devices hear; everybody else hears 401."""
    return everybody(401) | {"device": mine, "another device": another}


READ, CREATED, ACCEPTED, CHANGED = (
    people(200, 200),
    people(403, 201),
    people(403, 202),
    people(403, 200),
)
# In this order: what comes later may end what came before.
EXPECTED: dict[Route, dict[str, int]] = {
    ("GET", "/"): everybody(200),
    ("GET", "/page/{name}"): everybody(200),
    ("GET", "/openapi.json"): everybody(200),
    ("GET", "/healthz"): everybody(200),
    ("GET", "/readyz"): everybody(200),
    ("GET", "/metrics"): READ,
    ("GET", "/v1/ca"): everybody(404),  # plain HTTP
    ("POST", "/v1/enrol"): devices(200, 200),
    ("GET", "/v1/work"): devices(200, 200),
    ("POST", "/v1/runs/{run_id}/membership"): devices(200, 200),
    ("GET", "/v1/adapters/{name}"): devices(200, 200),
    ("GET", "/v1/packs/{base_id}/{name}"): devices(404, 404),
    ("HEAD", "/v1/work/{work_id}/update"): devices(204, 403),
    ("PUT", "/v1/work/{work_id}/update"): devices(200, 403),
    ("POST", "/v1/work/{work_id}/report"): devices(200, 403),
    ("GET", f"{API}/runs"): READ,
    ("POST", f"{API}/runs"): CREATED,
    ("GET", f"{API}/runs/{{run_id}}"): READ,
    ("GET", f"{API}/runs/{{run_id}}/adapter"): READ,
    ("GET", f"{API}/runs/{{run_id}}/rounds"): READ,
    ("GET", f"{API}/runs/{{run_id}}/devices"): READ,
    ("GET", f"{API}/runs/{{run_id}}/answers"): READ,
    ("GET", f"{API}/runs/{{run_id}}/orders"): READ,
    ("GET", f"{API}/devices"): READ,
    ("GET", f"{API}/devices/{{device_id:path}}"): READ,
    ("PUT", f"{API}/devices/{{device_id:path}}/tags"): CHANGED,
    ("GET", f"{API}/tokens"): READ,
    ("POST", f"{API}/tokens"): CREATED,
    ("GET", f"{API}/operators"): people(403, 200),
    ("POST", f"{API}/operators"): CREATED,
    ("GET", f"{API}/events"): READ,
    ("POST", f"{API}/runs/{{run_id}}/pause"): ACCEPTED,
    ("POST", f"{API}/runs/{{run_id}}/resume"): ACCEPTED,
    ("POST", f"{API}/runs/{{run_id}}/extend"): ACCEPTED,
    ("POST", f"{API}/runs/{{run_id}}/stop"): ACCEPTED,
    ("POST", f"{API}/runs/{{run_id}}/rollback"): ACCEPTED,
    ("POST", f"{API}/tokens/{{token_id}}/revoke"): CHANGED,
    ("POST", f"{API}/operators/{{operator_id}}/revoke"): CHANGED,
    ("POST", f"{API}/devices/{{device_id:path}}/revoke"): CHANGED,
    ("POST", f"{API}/devices/{{device_id:path}}/forget"): ACCEPTED,
    ("GET", f"{API}/session"): READ | {"nobody": 200},
    ("POST", f"{API}/session"): everybody(401),  # a token that nobody has
    ("DELETE", f"{API}/session"): everybody(200) | dict.fromkeys(OVER, 401),
}


def routes(served: Served) -> set[Route]:
    """Every route of what `smidgen coordinator serve` serves."""
    app = create_app(served.service, parts=parts())
    found = set()
    for one in iter_route_contexts(app.routes):
        methods = set(one.methods or ())
        if not isinstance(one.original_route, APIRoute):
            methods -= {"HEAD"}  # Starlette's own, where it answers GET
        found |= {(method, str(one.path)) for method in methods}
    return found


def places(served: Served, there: Scene) -> dict[str, str]:
    """What stands in a path, as there is; what is revoked is nobody who asks."""
    spare = served.enrol("spare")
    one_more = operator_of_token(served.store, add_operator(served.store, "viewer", time.time()))
    assert one_more is not None
    tokens = served.http.get(f"{API}/tokens", headers=there.headers["operator"]).json()["tokens"]
    told = {"task": "agnews", "name": "second"}
    made = served.http.post(f"{API}/runs", headers=there.headers["operator"], json=told)
    return {
        "run_id": served.run_id,
        "second_run_id": made.json()["run_id"],
        "device_id": spare.device_id,
        "second_device_id": served.enrol("other").device_id,
        "work_id": there.work.work_id,
        "base_id": there.work.base_id,
        "token_id": tokens[0]["token_id"],
        "operator_id": one_more.operator_id,
    }


def sent(there: Scene, route: Route, who: str) -> Options:
    """What each route is sent beside its path; `who` has no say in it but for its own key."""
    method, path = route
    if path == "/v1/enrol":
        facts = {"machine": "m", "cores": 1, "memory_bytes": 1, "python": "3", "smidgen": "0"}
        return {"json": {"protocol": PROTOCOL, "name": "me", "facts": facts, "token": "none"}}
    if path == "/v1/runs/{run_id}/membership":
        return {"json": {"state": "joined"}}
    if path == "/v1/work/{work_id}/update":
        body = there.device.update(there.work)
        headers = {"Repr-Digest": digest_header(sha256(body))}
        return {"headers": headers, "content": b"" if method == "HEAD" else body}
    if path == "/v1/work/{work_id}/report":
        return {"content": encode(Report(there.work.work_id, "done", 8, loss=1.0))}
    bodies: dict[Route, Any] = {
        ("POST", f"{API}/runs"): {"task": "agnews", "name": f"news-{len(who)}"},
        ("PUT", f"{API}/devices/{{device_id:path}}/tags"): {"tags": {"site": "hall"}},
        ("POST", f"{API}/tokens"): {},
        ("POST", f"{API}/operators"): {"role": "viewer"},
        ("POST", f"{API}/runs/{{run_id}}/extend"): {"rounds": 7 + len(who)},
        ("POST", f"{API}/runs/{{run_id}}/rollback"): {"round_index": 0},
        ("POST", f"{API}/session"): {"token": "x" * 43},
    }
    headers = PAGE if path == f"{API}/session" else {}
    return {"headers": headers} | ({"json": bodies[route]} if route in bodies else {})


def place(route: Route, names: dict[str, str], there: Scene) -> str:
    path = route[1].replace(":path}", "}")
    name = there.work.adapter_sha256 if "adapters" in path else "page.js"
    return path.format_map(names | {"name": name})


def asked(served: Served, method: str, path: str, headers: Any, more: Options) -> httpx.Response:
    """The answer; of a stream its head alone."""
    more = more | {"headers": headers | more.get("headers", {})}
    with served.http.stream(method, path, **more) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer
        answer.read()
        return answer


def is_file(path: str) -> bool:
    return path == "/" or path.startswith("/page/")


def check_reason(answer: httpx.Response, told: object) -> None:
    """A refusal says why, in one line; nothing breaks, or is kept by a cache."""
    assert answer.status_code < 500, (told, answer.text)
    if not answer.request.url.path.startswith(OF_WORK):
        kept = "no-cache" if answer.is_success and is_file(answer.request.url.path) else "no-store"
        assert answer.headers.get_list("cache-control") == [kept], told
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], told
    if answer.is_client_error and answer.request.method != "HEAD":
        assert answer.headers["content-type"] == "application/json", told
        assert answer.json().keys() == {"detail"}, told
        detail = answer.json()["detail"]
        assert detail and "\n" not in detail and len(detail) <= 500, told
    if answer.status_code == 401 and "/session" not in answer.request.url.path:
        assert answer.headers["www-authenticate"] == "Bearer", told


def test_a_route_that_is_new_has_a_line_in_the_table(start: Start) -> None:
    assert routes(start()) == EXPECTED.keys()


@pytest.mark.parametrize("strangers", first_fast([FEW, STRANGERS]))
def test_everybody_is_let_in_or_told_why_not_on_every_route(
    start: Start, strangers: tuple[str, ...]
) -> None:
    served = start(rounds=5)
    there = scene(served)
    names = places(served, there)
    wrong = []
    for route, expected in EXPECTED.items():
        # Whom the table lets in comes last: what they do may end what others are refused.
        callers = (*strangers, *PEOPLE, *DEVICES)
        for who in sorted(callers, key=lambda one: (expected[one] < 400, one)):
            more = sent(there, route, who)
            is_second = who == "operator's cookie"  # no order is given twice
            second = {key: names[f"second_{key}"] for key in ("run_id", "device_id")}
            known = names | (second if is_second else {})
            answer = asked(served, route[0], place(route, known, there), there.headers[who], more)
            check_reason(answer, (who, *route))
            if answer.status_code != expected[who]:
                wrong.append((*route, who, answer.status_code, expected[who]))
    assert wrong == []


OPEN = {"/", "/page/{name}", "/openapi.json", "/healthz", "/readyz", "/v1/ca"}  # no secret counts


def test_wrong_secrets_are_held_up_on_every_route_that_looks_one_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ATTEMPTS", 3)
    monkeypatch.setattr(server, "ATTEMPTS_PER_S", 0.001)
    served = start()
    there = scene(served)
    names, open_routes = places(served, there), list[Route]()
    cookie = {"Cookie": f"{COOKIE}={'w' * 43}"} | PAGE
    told = Counter[int]()
    for headers in (served.bearer("w" * 43), cookie):
        for route in EXPECTED:
            if (API not in route[1] and headers is cookie) or route[1] in OPEN:
                continue
            more = sent(there, route, "nobody")
            codes = [
                asked(served, route[0], place(route, names, there), headers, more).status_code
                for _ in range(5)
            ]
            if route == ("DELETE", f"{API}/session") and headers is not cookie:
                assert codes == [200] * 5  # it looks nothing up
            elif codes[-1] != 429:
                open_routes.append(route)
            told.update(codes)
    print(f"answers to wrong secrets on every route that looks one up: {dict(told)}")
    assert open_routes == []


@pytest.mark.parametrize("who", first_fast(["operator's cookie", "viewer's cookie"]))
def test_no_change_by_cookie_without_the_pages_header(start: Start, who: str) -> None:
    served = start()
    there = scene(served)
    names = places(served, there)
    headers = {"Cookie": there.headers[who]["Cookie"]}
    changes = [route for route, told in EXPECTED.items() if told["viewer"] == 403]
    for route in changes:
        if route[0] != "GET":
            answer = asked(served, route[0], place(route, names, there), headers, {"json": {}})
            check_reason(answer, route)
            assert answer.status_code == 403, route
    assert len(changes) > 10


def other_methods() -> Iterator[Route]:
    for path in {path for _, path in EXPECTED}:
        known = {method for method, one in EXPECTED if one == path}
        yield from ((method, path) for method in METHODS if method not in known)


@pytest.mark.parametrize("who", first_fast(["operator", "nobody", "device"]))
def test_a_method_that_a_path_does_not_know_is_refused(start: Start, who: str) -> None:
    served = start()
    there = scene(served)
    names = places(served, there)
    for route in other_methods():
        answer = asked(served, route[0], place(route, names, there), there.headers[who], {})
        check_reason(answer, (who, *route))
        if route == ("HEAD", "/openapi.json"):  # Starlette answers it as GET
            assert answer.status_code == 200
        elif route[0] == "GET" and ":path}/" in route[1]:  # a device whose id ends like that
            assert answer.status_code == (404 if who == "operator" else 401)
        else:
            assert answer.status_code == 405, (who, route)
            known = {method for method, path in EXPECTED if path == route[1]}
            assert set(answer.headers["allow"].split(", ")) >= known, route


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/operator", "/none", "/v1/work/", "/%00", "/v1/%2e%2e/"]
)
def test_a_path_that_is_not_there_is_refused(start: Start, path: str) -> None:
    served = start()
    for headers in ({}, served.bearer(served.operator)):
        answer = served.http.get(path, headers=headers)
        check_reason(answer, path)
        assert answer.status_code in (404, 307)


def test_what_answers_without_a_key_tells_nothing_of_runs_and_devices(start: Start) -> None:
    served = start()
    there = scene(served)
    secrets = ("mail", served.run_id, there.device.device_id, there.work.work_id, served.token)
    public = [
        route for route, told in EXPECTED.items() if told["nobody"] < 400 and route[0] == "GET"
    ]
    assert ("GET", "/openapi.json") in public and len(public) == 6
    for route in public:
        answer = served.http.get(place(route, {}, there))
        found = [secret for secret in secrets[1:] if secret in answer.text]
        assert not found, route


def test_what_answers_without_a_key_is_named_in_the_docs() -> None:
    said = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    assert "the page's own files" in said
    for (_, path), told in EXPECTED.items():
        is_public = told["nobody"] < 400 and path not in ("/", "/page/{name}")
        assert not is_public or f"`{path}`" in said, path

"""Logging in by token, the cookie that stands for it, and what no other site can do with it."""

import time
from collections.abc import Callable

import httpx

from smidgen.coordinator.operator.asking import COOKIE, HEADER
from smidgen.coordinator.storage.credentials import (
    MOST_SESSIONS,
    SESSION_S,
    add_operator,
    open_session,
    operator_of_token,
    revoke_operator,
    role_of_session,
)
from smidgen.edge_client.wire.messages import MAX_JSON_BYTES
from tests.coordinator.page.conftest import Served

Start = Callable[..., Served]
SESSION = "/v1/operator/session"
PAGE = {HEADER: "1"}


def log_in(served: Served, token: str) -> httpx.Response:
    return served.http.post(SESSION, json={"token": token}, headers=PAGE)


def test_a_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(start: Start) -> None:
    served = start()
    assert served.http.get(SESSION).json()["role"] is None
    answer = log_in(served, served.viewer)
    assert answer.json()["role"] == "viewer"
    told = answer.headers["set-cookie"].lower()
    assert f"{COOKIE}=" in told and "httponly" in told and "samesite=strict" in told
    assert served.viewer not in answer.text + told
    assert served.http.get(SESSION).json()["role"] == "viewer"
    assert served.http.delete(SESSION, headers=PAGE).json()["role"] is None
    assert served.http.get(SESSION).json()["role"] is None


def test_a_wrong_token_lets_nobody_in(start: Start) -> None:
    served = start()
    for token in ("s", served.token, served.operator[:-1]):
        answer = log_in(served, token)
        assert answer.status_code == 401 and "token" in answer.json()["detail"]
        assert "set-cookie" not in answer.headers
    for body in (b"", b"[]", b'{"token": 3}', b'{"token": ""}', b'{"token": "' + b"x" * 201):
        assert served.http.post(SESSION, content=body, headers=PAGE).status_code == 422


def test_a_body_over_the_limit_is_refused_before_anybody_is_known(start: Start) -> None:
    served = start()
    for method in ("POST", "DELETE"):
        body = b'{"token": "' + b"x" * MAX_JSON_BYTES
        answer = served.http.request(method, SESSION, content=body, headers=PAGE)
        assert answer.status_code == 413 and "over" in answer.json()["detail"]


def test_a_change_without_the_pages_header_is_refused(start: Start) -> None:
    served = start()
    assert served.http.post(SESSION, json={"token": served.operator}).status_code == 403
    log_in(served, served.operator)
    pause = f"/v1/operator/runs/{served.run_id}/pause"
    assert served.http.delete(SESSION).status_code == 403
    assert served.http.post(pause).status_code == 403
    assert served.http.post(pause, headers=PAGE).status_code == 202


def test_a_session_ends_with_its_operator_and_with_time(start: Start) -> None:
    store, now_s = start().store, time.time()
    token = add_operator(store, "viewer", now_s)
    opened = open_session(store, token, now_s)
    assert opened is not None
    secret, role = opened
    assert role == "viewer" and role_of_session(store, secret, now_s + SESSION_S - 1) == "viewer"
    assert role_of_session(store, secret, now_s + SESSION_S) is None
    operator = operator_of_token(store, token)
    assert operator is not None
    revoke_operator(store, operator.operator_id, now_s)
    assert role_of_session(store, secret, now_s) is None
    assert open_session(store, token, now_s) is None


def test_sessions_of_an_operator_are_bounded_and_the_newest_stay(start: Start) -> None:
    served = start()
    opened = [
        open_session(served.store, served.viewer, 1000.0 + n) for n in range(MOST_SESSIONS + 2)
    ]
    roles = [role_of_session(served.store, one[0], 1100.0) for one in opened if one]
    assert roles == [None, None] + ["viewer"] * MOST_SESSIONS


def test_the_pages_files_let_nothing_from_elsewhere_in(start: Start) -> None:
    served = start()
    for path in ("/", "/page/page.js", "/page/page.css"):
        answer = served.http.get(path)
        policy = answer.headers["content-security-policy"]
        assert answer.status_code == 200 and "default-src 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        text = answer.text.replace("// ", "").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text, path


def test_a_file_beside_the_page_is_not_served(start: Start) -> None:
    served = start()
    for path in ("/page/none.js", "/page/..%2froutes.py", "/page/%2e%2e/routes.py", "/page/"):
        assert served.http.get(path).status_code == 404

"""Everybody who may ask a coordinator something, good and bad, in one run that trains."""

import time
from dataclasses import dataclass

from smidgen.coordinator.operator.asking import COOKIE, HEADER
from smidgen.coordinator.storage.credentials import (
    SESSION_S,
    add_operator,
    open_session,
    operator_of_token,
    revoke_operator,
)
from smidgen.edge_client.wire.messages import Work
from tests.coordinator.devices import Device, wait_for
from tests.coordinator.page.conftest import Served

PAGE = {HEADER: "1"}
PEOPLE = ("viewer", "operator", "viewer's cookie", "operator's cookie")
STRANGERS = (
    "nobody",
    "nonsense",
    "another scheme",
    "enrolment token",
    "revoked device",
    "revoked operator",
    "cookie that is over",
    "cookie of a revoked operator",
)
DEVICES = ("device", "another device")


@dataclass(frozen=True)
class Scene:
    """A run in its first round of training, and who is there.

    Attributes:
        device: Was asked to train, and has not answered.
        other: Another one, likewise.
        gone: Was revoked.
        work: The work of `device`.
        headers: What each caller brings, by the caller's name.
    """

    device: Device
    other: Device
    gone: Device
    work: Work
    headers: dict[str, dict[str, str]]


def scene(served: Served) -> Scene:
    """Let three devices join and evaluate, and revoke one; the others are asked to train."""
    device, other, gone = served.join("device", "other", "gone")
    for one in (device, other, gone):
        one.do(one.work())
    boss = served.bearer(served.operator)
    path = f"/v1/operator/devices/{gone.device_id}/revoke"
    assert served.http.post(path, headers=boss).status_code == 200
    wait_for(lambda: served.service.run(served.run_id).state.phase == "train")
    return Scene(device, other, gone, device.work(), _headers(served, device, other, gone))


def _headers(
    served: Served, device: Device, other: Device, gone: Device
) -> dict[str, dict[str, str]]:
    store, now_s = served.store, time.time()
    past = add_operator(store, "operator", now_s)
    known = operator_of_token(store, past)
    assert known is not None

    def cookie(token: str, at_s: float = now_s) -> dict[str, str]:
        opened = open_session(store, token, at_s)
        assert opened is not None
        return {"Cookie": f"{COOKIE}={opened[0]}"} | PAGE

    cookies = {
        "viewer's cookie": cookie(served.viewer),
        "operator's cookie": cookie(served.operator),
        "cookie of a revoked operator": cookie(past),
        "cookie that is over": cookie(served.operator, now_s - SESSION_S - 1),
    }
    revoke_operator(store, known.operator_id, now_s)
    return cookies | {
        "nobody": {},
        "nonsense": served.bearer("x" * 43),
        "another scheme": {"Authorization": f"Basic {served.operator}"},
        "enrolment token": served.bearer(served.token),
        "viewer": served.bearer(served.viewer),
        "operator": served.bearer(served.operator),
        "revoked operator": served.bearer(past),
        "device": device.headers,
        "another device": other.headers,
        "revoked device": gone.headers,
    }

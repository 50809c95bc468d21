"""The page in headless Chromium where it is new, secured, full, large, or told by a cohort."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

pytest.importorskip("playwright")

import sqlalchemy as sql
from playwright.sync_api import expect

from smidgen.coordinator.api.init import init
from smidgen.coordinator.api.serve import serve
from smidgen.coordinator.operator.asking import COOKIE
from smidgen.coordinator.storage.schema import DEVICES
from smidgen.edge_client.wire.fleet import DeviceFacts
from smidgen.edge_client.wire.messages import Report
from tests.browser.chromium import check_legible, needs_chromium, new_page
from tests.coordinator.devices import wait_for
from tests.coordinator.page.conftest import Served
from tests.coordinator.page.test_in_a_browser import browser as browser
from tests.coordinator.page.test_in_a_browser import closed as closed
from tests.coordinator.page.test_in_a_browser import logged_in, said
from tests.coordinator.page.test_in_a_browser import pictures as pictures

pytestmark = [needs_chromium, pytest.mark.slow]
Start = Callable[..., Served]
FACTS = DeviceFacts("aarch64", 4, 4 << 30, "3.11", "0.1.0", "onnx", "", 512 << 20, "Pi 4", True)
LOADED_S = 3.0


def test_a_log_in_over_tls_gets_a_cookie_that_never_travels_without(
    browser: Any, pictures: Path, tmp_path: Path
) -> None:
    made = init(tmp_path / "store", ["pi.example"], port=8700)
    with serve(made.certified.store, host="127.0.0.1", port=0) as server:
        url = f"https://127.0.0.1:{server.url.rpartition(':')[2]}"
        found = new_page(browser, 1280, "light", ignore_https_errors=True)
        page = found.page
        page.goto(url)
        page.get_by_label("Token").fill(made.operator_token)
        page.keyboard.press("Enter")
        said(page, "#no-runs", "No run yet")
        said(page, "#no-devices", "No device has enrolled yet")
        page.screenshot(path=pictures / "empty.png", full_page=True)
        (cookie,) = page.context.cookies()
        assert (cookie["name"], cookie["secure"], cookie["httpOnly"]) == (COOKIE, True, True)
        assert cookie["sameSite"] == "Strict" and page.evaluate("document.cookie") == ""
        page.reload()
        said(page, "#no-runs", "No run yet")  # by the cookie
        assert {urlsplit(one).scheme for one in found.requests} == {"https"}
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()
        assert page.context.cookies() == []
        page.context.close()


def test_a_log_out_that_nobody_hears_is_told(browser: Any, start: Start) -> None:
    served = start()
    page = logged_in(browser, served, served.operator).page

    def cut(route: Any) -> None:
        route.abort() if route.request.method == "DELETE" else route.continue_()

    page.route("**/v1/operator/session", cut)
    page.get_by_role("button", name="Log out").click()
    said(page, "#login-error", "You are still logged in")
    page.unroute("**/v1/operator/session")
    page.reload()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").wait_for()
    assert page.context.cookies() == [] and not page.locator("#login-error").inner_text()


def test_a_full_disk_is_said(browser: Any, start: Start, pictures: Path) -> None:
    served = start()
    page = logged_in(browser, served, served.viewer).page
    assert not page.locator("#full").is_visible()
    served.service.caretaker.room.least_free_bytes = 1 << 60  # more than any disk has
    said(page, "#full", "disk is full")
    page.screenshot(path=pictures / "full.png", full_page=True)


def add_devices(served: Served, number: int) -> None:
    """Enrol devices as their rows say it, at once."""
    now_s = time.time()
    rows = [
        {
            "device_id": f"d{index:020x}",
            "key_sha256": f"{index:064x}",
            "name": f"pi-{index}",
            "stem": "pi",
            "number": index,
            "own_tags": {"site": f"room-{index % 25}", "language": "de"},
            "tags": {},
            "facts": asdict(FACTS),
            "enrolled_at_s": now_s,
            "started_at_s": now_s,
            "last_seen_s": now_s,
            "revision": 1000 + index,
        }
        for index in range(2, number + 2)
    ]
    served.store.database.write(sql.insert(DEVICES).values(rows))
    wait_for(lambda: len(served.service.fleet.all()) == number)


def browser_cpu_s() -> float:
    """Processor time of the browser's processes: of load, it counts what is the page's own."""
    total = 0.0
    for one in psutil.Process().children(recursive=True):
        times = one.cpu_times()
        total += times.user + times.system
    return total


@pytest.mark.parametrize("width", [1280, 360])
def test_a_thousand_devices_are_shown_in_seconds(
    browser: Any, start: Start, pictures: Path, width: int
) -> None:
    served = start()
    add_devices(served, 1000)
    found = logged_in(browser, served, served.operator, width)
    page = found.page
    said(page, "#devices-said", "1000 devices")
    before_s, began_s = browser_cpu_s(), time.monotonic()
    page.reload()
    said(page, "#devices-said", "1000 devices")
    spent_s, took_s = browser_cpu_s() - before_s, time.monotonic() - began_s
    print(f"1,000 devices, {width} pixels: {spent_s:.2f} s of processor, {took_s:.2f} s")
    assert spent_s < LOADED_S
    rows = page.locator("#devices tbody tr")
    assert rows.count() == 100
    page.locator("#more").click()
    expect(rows).to_have_count(200)
    page.get_by_label("Find by name").fill("room-7")
    said(page, "#devices-said", "40 found")
    expect(rows).to_have_count(40)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    check_legible(page)
    page.screenshot(path=pictures / f"thousand-{width}.png")
    page.locator("#devices").scroll_into_view_if_needed()
    page.screenshot(path=pictures / f"thousand-{width}-devices.png")
    assert {urlsplit(one).netloc for one in found.requests} == {urlsplit(served.url).netloc}
    assert found.complaints == []


def test_an_accuracy_by_a_cohort_is_shown_with_its_error(
    browser: Any, start: Start, pictures: Path
) -> None:
    served = start(min_clients=3, evaluate_cohort=2, rounds=3)
    devices = served.join("a", "b", "c")
    wait_for(lambda: served.service.run(served.run_id).state.phase == "evaluate")
    asked = [one for one in devices if one.next().work]
    for device, accuracy in zip(asked, (0.25, 0.75), strict=True):
        device.report(Report(device.work().work_id, "done", 4, accuracy=accuracy))
    page = logged_in(browser, served, served.viewer).page
    said(page, "#runs tbody", "50.0 ± 14.4 %")
    said(page, "#charts figcaption", "50.0 ± 14.4 %")
    page.locator("#rounds-details summary").click()
    said(page, "#rounds tbody", "50.0 ± 14.4 %")
    said(page, "#rounds-note", "where a cohort of devices evaluates for all")
    page.screenshot(path=pictures / "cohort.png", full_page=True)

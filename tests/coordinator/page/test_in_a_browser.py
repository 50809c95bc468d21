"""The coordinator's page in headless Chromium, over a real coordinator with real devices' requests.

Pictures go to the folder `SMIDGEN_PICTURES` names, or to the test's own.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zipfile import ZipFile

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import TimeoutError, expect

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.runs import create_run, orders_of
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.wire.fleet import DeviceFacts, Membership
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.reports import Cost
from tests.breadth import covering
from tests.browser.chromium import Opened, check_legible, chromium, needs_chromium, new_page
from tests.coordinator.devices import Device
from tests.coordinator.page.conftest import Served, serving

pytestmark = needs_chromium
Start = Callable[..., Served]
HOSTILE = "x<img src=x onerror=alert(1)>"
LONG = "a-device-with-a-name-as-long-as-" + "x" * 32
WAIT_MS = 60_000
TOLD = ("#ask-error", "#news", "#link", "#runs tbody", "#devices tbody")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(autouse=True)
def closed(start: Start, browser: Any) -> Iterator[None]:
    """Let no page go on asking a coordinator that ends, or one that has ended."""
    yield
    for context in browser.contexts:
        context.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("SMIDGEN_PICTURES", tmp_path / "pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def opened(browser: Any, served: Served, width: int = 1280, scheme: str = "light") -> Opened:
    found = new_page(browser, width, scheme)
    found.page.set_default_timeout(WAIT_MS)
    found.page.goto(served.url)
    return found


def logged_in(browser: Any, served: Served, token: str, *shape: Any) -> Opened:
    found = opened(browser, served, *shape)
    found.page.get_by_label("Token").fill(token)
    found.page.keyboard.press("Enter")
    found.page.locator("#runs tbody tr").first.wait_for()
    return found


def said(page: Any, selector: str, text: str) -> None:
    """Wait until an element says this; where it never does, tell what the page says instead."""
    try:
        page.locator(selector, has_text=text).first.wait_for()
    except TimeoutError as error:
        told = {one: page.locator(one).inner_text() for one in (selector, *TOLD)}
        raise AssertionError(f"{text!r} never came; the page says {told}") from error


def work_through(served: Served, devices: list[Device], rounds: int) -> None:
    """Let devices do the first evaluation and some rounds, each round evaluated."""
    for step in range(1 + 2 * rounds):
        for device in devices:
            answer(device, device.work(), step)


def answer(device: Device, work: Work, step: int) -> None:
    phases: dict[Any, float] = {"download": 1.5, "train": 30.0 - step, "upload": 3.0, "wait": 4.0}
    cost = Cost(
        phases_s=phases,
        payload_up_bytes=101_000,
        payload_down_bytes=113_000,
        tcp_up_bytes=104_000,
        tcp_down_bytes=115_000,
    )
    if work.kind == "train":
        assert device.put(work.work_id, device.update(work)).status_code == 200
        device.report(Report(work.work_id, "done", 8, loss=1.6 / (1 + step), cost=cost))
    else:
        share = 1 - 0.8 / (1 + work.round_index)
        cost = replace(cost, phases_s={"evaluate": 6.0})
        device.report(Report(work.work_id, "done", 40, accuracy=share, cost=cost))


def fleet_with_all_that_may_happen(served: Served) -> None:
    """Rounds, an open step with a failure and somebody late, names from outside, refusals."""
    facts = DeviceFacts("aarch64", 4, 4 << 30, "3.11", "0.1.0", "onnx", "", 512 << 20, "Pi 4", True)
    mains, battery = facts, replace(facts, board="", is_on_mains=False, memory_bytes=1 << 30)
    tags = {"site": "kitchen", "language": "de", "t" * 64: "v" * 64, "<b>": "</b>"}
    devices = [
        served.enrol("pi-kitchen", tags=tags, facts=mains),
        served.enrol(HOSTILE, tags={"site": "garage"}, facts=battery),
        served.enrol(LONG, facts=mains),
    ]
    for device in devices:
        device.tell(served.run_id, Membership("joined", peak_bytes=180 << 20))
    refuses = served.enrol("old-phone", facts=battery)
    refuses.tell(served.run_id, Membership("declined", "budget"))
    work_through(served, devices, 3)
    done, failing, _late = devices
    answer(done, done.work(), 7)
    failing.report(Report(failing.work().work_id, "failed", failure="memory"))


@pytest.mark.slow
def test_a_wrong_token_is_refused_and_the_right_one_opens_the_page(
    browser: Any, start: Start, pictures: Path
) -> None:
    served = start()
    found = opened(browser, served)
    page = found.page
    expect(page.locator("#token")).to_be_focused()
    assert not page.locator("#house").is_visible()
    page.keyboard.type("not-a-token")
    page.keyboard.press("Enter")
    said(page, "#login-error", "nobody has this token")
    page.screenshot(path=pictures / "wrong-token.png")
    page.get_by_label("Token").fill(served.viewer)
    page.keyboard.press("Enter")
    said(page, "#runs tbody", "mail")
    assert page.get_by_label("Token").input_value() == ""
    page.reload()
    said(page, "#runs tbody", "mail")  # by the cookie
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").wait_for()
    page.reload()
    page.get_by_label("Token").wait_for()
    assert [line for line in found.complaints if "401" not in line] == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), covering([1280, 360], ["light", "dark"]))
def test_the_page_is_whole_and_legible(
    browser: Any, start: Start, pictures: Path, width: int, scheme: str
) -> None:
    served = start(rounds=20, min_clients=3)
    fleet_with_all_that_may_happen(served)
    found = logged_in(browser, served, served.operator, width, scheme)
    page = found.page
    said(page, "#trouble", "ran out of memory")
    page.locator("#charts figure").nth(3).wait_for()
    page.screenshot(path=pictures / f"page-{width}-{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    check_legible(page)
    page.locator("#rounds-details summary").click()
    said(page, "#rounds tbody", "3")
    page.locator("#members-details summary").click()
    said(page, "#members tbody", HOSTILE)
    check_legible(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert found.complaints == []
    assert {urlsplit(url).netloc for url in found.requests} == {urlsplit(served.url).netloc}
    page.get_by_role("button", name="Stop").click()
    page.screenshot(path=pictures / f"dialog-{width}-{scheme}.png")
    check_legible(page)


@pytest.mark.slow
def test_a_page_of_twice_the_size_needs_no_scrolling_sideways(browser: Any, start: Start) -> None:
    served = start(rounds=20, min_clients=3)
    fleet_with_all_that_may_happen(served)
    page = logged_in(browser, served, served.viewer, 640, "light").page
    said(page, "#trouble", "ran out of memory")
    assert page.evaluate("document.documentElement.scrollWidth") == 640


@pytest.mark.slow
def test_text_from_outside_stays_text(browser: Any, start: Start) -> None:
    served = start(rounds=20, min_clients=3)
    fleet_with_all_that_may_happen(served)
    found = logged_in(browser, served, served.viewer)
    said(found.page, "#devices tbody", HOSTILE)
    said(found.page, "#trouble tbody", HOSTILE)
    said(found.page, "#devices tbody", "<b>=</b>")
    assert found.page.locator("img").count() == 0 and found.complaints == []


def test_rounds_and_failures_appear_without_a_reload(browser: Any, start: Start) -> None:
    served = start(rounds=20)
    page = logged_in(browser, served, served.viewer).page
    page.evaluate("window.isTheSame = true")
    said(page, "#run-said", "Waiting for 2 more devices")
    first, second = served.join("a", "b")
    said(page, "#devices tbody", "b")
    work_through(served, [first, second], 1)
    said(page, "#runs tbody", "60.0 %")
    said(page, "#run-said", "training, round 2 of 20")
    failing = Report(first.work().work_id, "failed", failure="training")
    first.report(failing)
    said(page, "#answers-said", "1 of 2 answered, 1 of them failed")
    said(page, "#trouble tbody", "training gave no usable update")
    said(page, "#missing-list", "b: late")
    said(page, "#news", "training gave no usable update")  # to a screen reader
    work = second.work()
    answer(second, work, 3)
    said(page, "#run-said", "evaluation, round 2")
    assert page.evaluate("window.isTheSame")


@pytest.mark.slow
def test_an_operator_pauses_and_resumes_by_keyboard(
    browser: Any, start: Start, pictures: Path
) -> None:
    served = start(rounds=20)
    served.join("a", "b")
    page = logged_in(browser, served, served.operator).page
    keyboard, focus = page.keyboard, "document.activeElement.textContent"
    said(page, "#run-said", "evaluation before round 1")
    for verb, state in (("Pause", "paused"), ("Resume", "evaluating")):
        for _ in range(30):
            keyboard.press("Tab")
            if page.evaluate(focus) == verb:
                break
        assert page.evaluate("document.activeElement.matches(':focus-visible')")
        keyboard.press("Enter")
        said(page, "#ask-title", f"{verb} mail")
        assert page.evaluate(focus) == "Cancel"
        keyboard.press("Escape")
        assert page.evaluate(focus) == verb
        keyboard.press("Enter")
        keyboard.press("Tab")
        assert page.evaluate(focus) == verb
        page.screenshot(path=pictures / f"{verb.lower()}.png")
        keyboard.press("Enter")
        said(page, "#runs tbody", state)
        assert not page.locator("#ask").is_visible()
    said(page, "#news", "mail")


@pytest.mark.slow
def test_stop_extend_and_revoke_ask_first_and_are_carried_out(browser: Any, start: Start) -> None:
    served = start(rounds=3)
    first, _ = served.join("a", "b")
    page = logged_in(browser, served, served.operator).page
    page.get_by_role("button", name="Revoke a").click()
    said(page, "#ask-text", "cannot be undone")
    assert first.poll().status_code == 200
    page.locator("#ask-yes").click()
    said(page, "#devices tbody", "revoked")
    assert first.poll().status_code == 401
    page.get_by_role("button", name="Extend").click()
    page.get_by_label("Rounds in total").fill("2")
    page.locator("#ask-yes").click()
    assert page.locator("#ask").is_visible()  # fewer than it has
    page.get_by_label("Rounds in total").fill("7")
    page.locator("#ask-yes").click()
    said(page, "#runs tbody", "0 of 7")
    page.get_by_role("button", name="Stop").click()
    page.locator("#ask-yes").click()
    said(page, "#run-said", "Stopped by an operator")


@pytest.mark.slow
def test_after_a_run_the_page_says_who_took_part_and_gives_its_adapter(
    browser: Any, start: Start, tmp_path: Path
) -> None:
    served = start(rounds=1)
    devices = served.join("a", "b")
    work_through(served, devices, 1)
    for device in devices:
        device.until_finished()
    page = logged_in(browser, served, served.operator).page
    said(page, "#run-said", "Finished after 1 round")
    said(page, "#runs tbody", "2 took part")
    said(page, "#run-facts", "best 60.0 % after round 1")
    page.locator("#members-details summary").click()
    said(page, "#members tbody tr:first-child", "a60.0 %1")
    said(page, "#members tbody tr:last-child", "is done")
    with page.expect_download() as found:
        page.get_by_role("link", name="Download the adapter (round 1").click()
    found.value.save_as(tmp_path / "adapter.zip")
    with ZipFile(tmp_path / "adapter.zip") as archive:
        assert "adapter/adapter_config.json" in archive.namelist()


@pytest.mark.slow
def test_an_order_goes_to_the_run_that_was_asked_about(
    browser: Any, start: Start, config: RunConfig
) -> None:
    served = start(rounds=3)
    other = create_run(served.store, replace(config, name="news"), time.time()).run_id
    found = logged_in(browser, served, served.operator)
    page = found.page
    said(page, "#runs tbody", "news")
    page.evaluate("location.hash = '#run=%'")  # names no run
    page.evaluate("new Promise(drawn => setTimeout(() => requestAnimationFrame(drawn)))")
    for verb, run_id, name in (("Pause", served.run_id, "mail"), ("Extend", other, "news")):
        page.evaluate("run => { location.hash = `#run=${run}`; }", run_id)
        said(page, "#run-title", name)
        page.get_by_role("button", name=verb).click()
        said(page, "#ask-title", f"{verb} {name}")
        another = other if run_id == served.run_id else served.run_id
        page.evaluate("run => { location.hash = `#run=${run}`; }", another)
        said(page, "#run-title", "news" if name == "mail" else "mail")
        page.locator("#ask-yes").click()
        page.locator("#ask").wait_for(state="hidden")
    asked = {
        key: [one.kind for one in orders_of(served.store, key, None, 9)]
        for key in (served.run_id, other)
    }
    assert asked == {served.run_id: ["pause"], other: ["extend"]} and found.complaints == []


@pytest.mark.slow
def test_a_viewer_sees_all_and_can_change_nothing(browser: Any, start: Start) -> None:
    served = start(rounds=20)
    served.join("a", "b")
    page = logged_in(browser, served, served.viewer).page
    said(page, "#who", "viewer")
    said(page, "#devices tbody", "b")
    buttons = page.locator("button:visible").all_inner_texts()
    assert buttons == ["Log out", "mail"]
    status = page.evaluate(
        "run => fetch(`/v1/operator/runs/${run}/pause`, {method: 'POST',"
        " headers: {'X-Smidgen-Page': '1'}}).then(answer => answer.status)",
        served.run_id,
    )
    assert status == 403


@pytest.mark.slow
def test_every_part_has_a_name_for_who_cannot_see_it(browser: Any, start: Start) -> None:
    served = start(rounds=20, min_clients=3)
    fleet_with_all_that_may_happen(served)
    page = logged_in(browser, served, served.operator).page
    page.locator("#charts figure").nth(3).wait_for()
    for role in ("banner", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1
    for name in ("Runs", "mail", "Devices"):
        assert page.get_by_role("region", name=name, exact=True).count() == 1
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("#charts svg[role=img]:not([aria-label])").count() == 0
    label = page.locator("#charts svg").first.get_attribute("aria-label")
    assert "80.0 % in round 3" in label
    assert page.locator("[aria-live=polite]").count() == 1
    assert page.get_by_role("table", name="Devices").get_by_role("row").count() == 5
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.get_by_role("table", name="Devices").get_by_role("row").count() == 5
    nameless = page.evaluate(
        "[...document.querySelectorAll('input, button')].filter(one =>"
        " one.checkVisibility() && !one.labels?.length && !one.textContent.trim()).length"
    )
    assert nameless == 0


@pytest.mark.slow
def test_a_page_goes_on_when_its_coordinator_comes_back(
    browser: Any, tmp_path: Path, config: RunConfig
) -> None:
    with closing(Store(tmp_path / "store")) as store:
        with serving(store, replace(config, name="first")) as served:
            page = logged_in(browser, served, served.viewer).page
            said(page, "#link", "live")
            port = urlsplit(served.url).port
        said(page, "#link", "no connection")
        assert port is not None
        with serving(store, replace(config, name="second"), port):
            said(page, "#link", "live")
            said(page, "#runs tbody", "second")
            page.context.close()

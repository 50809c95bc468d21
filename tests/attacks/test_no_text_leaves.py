"""No text leaves a device: real clients of private texts in all kinds of trouble, behind a relay.

Every case plants a canary of its own (`tests.attacks.canaries`) in the texts, labels, columns and
ids of a device, in the names of its folders and in its user's name, and then breaks something. A
client may fail or serve on; nothing of the canary may be in a byte that was relayed, in a file of
the coordinator, or in what its commands print.

    python -m pytest tests/attacks/test_no_text_leaves.py                  # a few cases
    python -m pytest tests/attacks/test_no_text_leaves.py -m "slow or not slow"   # all of them
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.attacks.canaries import Canary, base64_forms, forms
from tests.attacks.cases import CASES, Case
from tests.attacks.faults import FAULTS, FILLS, file_faults, fill
from tests.attacks.private_device import PrivateDevice
from tests.attacks.stories import Story
from tests.attacks.watched_coordinator import Coordinator

AT_ONCE = 2  # clients


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    served = Coordinator(tmp_path_factory.mktemp("canary"))
    yield served
    served.stop()


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, coordinator: Coordinator
) -> Iterator[dict[str, "Future[PrivateDevice]"]]:
    """Every selected case, played to its end or still being played, two at a time."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = [call.params["case"] for call in calls if call and "case" in call.params]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        playing = {}
        for case in [case for case in wanted if isinstance(case, Case)]:
            device = device_of(coordinator, case.name, *case.run)
            playing[case.name] = pool.submit(play, case.story, device)
        yield playing
        pool.shutdown(cancel_futures=True)


def device_of(coordinator: Coordinator, name: str, *run: str) -> PrivateDevice:
    token = coordinator.create(name, *run)
    folder = coordinator.folder / "devices" / coordinator.runs[name]
    named = next((one for one in ("huge", "wide", "decoder") if one in run), "base")
    base = coordinator.folder / named
    texts = next((make for kind, make in FILLS.items() if kind in run), fill)
    return PrivateDevice(folder, base, coordinator.port, token, Canary(name), texts)


def play(story: Story, device: PrivateDevice) -> PrivateDevice:
    try:
        story(device)
    finally:
        device.close()
    return device


def private_paths(device: PrivateDevice) -> list[Path]:
    """Paths that nobody else may learn; the user's home unless all of this happens inside it."""
    home = Path.home()
    is_apart = home not in device.folder.parents and len(home.parts) > 1
    return [*device.paths(), *([home] if is_apart else [])]


def cases() -> list[Any]:
    fast, can = pytest.mark.slow, file_faults()
    marked = []
    for case in CASES:
        fault = next((name for name in FAULTS if case.name.startswith(f"{name}, ")), None)
        marks = [] if case.is_fast else [fast]
        if fault is not None and fault not in can:
            marks.append(pytest.mark.skip(reason="root reads it, or pyarrow is not installed"))
        marked.append(pytest.param(case, marks=marks, id=case.name))
    return marked


@pytest.mark.parametrize("case", cases())
def test_nothing_private_reaches_the_coordinator(
    case: Case, coordinator: Coordinator, played: dict[str, "Future[PrivateDevice]"]
) -> None:
    device = played[case.name].result()
    names = "\n".join(str(path.relative_to(device.state)) for path in device.state.rglob("*"))
    seen = {
        "wire": device.relay.all_bytes(),
        "names of files": names.encode(),
        **coordinator.known(case.name),
    }
    leaks = {
        where: found
        for where, body in seen.items()
        if (found := device.canary.found_in(body, *private_paths(device)))
    }
    assert not leaks, device.said.decode(errors="replace")
    assert " ".join(device.canary.words[:2]).encode() not in device.said  # a text's beginning
    assert b"content-encoding" not in seen["wire"].lower()  # nothing is hidden by compression


def test_what_a_device_is_called_is_seen_everywhere(coordinator: Coordinator) -> None:
    """The control: a name is told on purpose, so this test would see a leak."""
    device = device_of(coordinator, "control")
    told = [*device.canary.words[:3], device.canary.other]

    def story(device: PrivateDevice) -> None:
        device.start(name=" ".join(told))
        device.serve_out()

    play(story, device)
    for where, body in {"wire": device.relay.all_bytes(), **coordinator.known("control")}.items():
        assert device.canary.found_in(body) == told, where
    names = {exchange.name for exchange in device.relay.exchanges}
    assert {"POST /v1/enrol", "GET /v1/work", "POST /v1/work/report"} <= names


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz"])
def test_a_canary_is_found_however_it_is_written(before: str) -> None:
    canary = Canary("a name")
    text = f"{before}{canary.sentence}"
    assert len(canary.found_in(text.upper().encode())) >= len(canary.words)
    for form in forms(text) | base64_forms(text.encode()):
        assert set(canary.words[1:]) <= set(canary.found_in(b"..." + form + b"...")), form
    assert canary.found_in(Canary("another name").sentence.encode()) == []

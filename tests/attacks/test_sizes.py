"""The sizes on the privacy page are those of a real run, byte by byte through a relay.

python -m pytest tests/attacks/test_sizes.py -m slow -s    # prints the table
"""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.attacks.canaries import Canary
from tests.attacks.faults import fill
from tests.attacks.private_device import PrivateDevice
from tests.attacks.relay import Exchange
from tests.attacks.watched_coordinator import Coordinator

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
ROUNDS = 3
OFF = 0.05  # names of boards and hosts, and numbers of more digits
WHOLE = "the whole run"
Sizes = dict[str, tuple[list[int], list[int]]]
BY_PATH = {
    "POST /v1/enrol": "`POST /v1/enrol`",
    "POST /v1/runs/membership": "`POST /v1/runs/.../membership`",
    "GET /v1/adapters": "`GET /v1/adapters/...`, `lora:8` of the embedded base",
    "PUT /v1/work/update": "`PUT /v1/work/.../update`, the same",
}
BY_ANSWER = {
    "terms": "`GET /v1/work`, a run's terms",
    "work": "`GET /v1/work`, work given",
    "over": "`GET /v1/work`, run over",
    "waiting": "`GET /v1/work`, nothing to do",
}
BY_WORK = {
    "train": "`POST .../report` after training",
    "evaluate": "`POST .../report` after an evaluation",
    "label": "`POST .../report` after labelling",
}


def said(message: bytes) -> dict[str, object]:
    """The JSON of a request or an answer."""
    found: dict[str, object] = json.loads(message.partition(b"\r\n\r\n")[2])
    return found


def by_row(exchanges: list[Exchange]) -> Sizes:
    """Bytes of each request and its answer, by the page's rows."""
    found: Sizes = defaultdict(lambda: ([], []))
    kind = ""
    for one in exchanges:
        row = BY_PATH.get(one.name, "")
        if one.name == "GET /v1/work":
            given = said(bytes(one.down))
            (key,) = (key for key in BY_ANSWER if given.get(key))
            row = BY_ANSWER[key]
        elif one.name == "POST /v1/work/report":
            row = BY_WORK[kind]
        if named := re.search(rb'"kind":"(train|evaluate|label)"', one.down):
            kind = named[1].decode()
        for sizes, body in zip(found[row], (one.up, one.down), strict=True):
            sizes.append(len(body))
    return found


def told() -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """What the page says: least and most, up and down, by its rows."""

    def span(cell: str) -> tuple[int, int]:
        sizes = [int(number.replace(",", "")) for number in cell.split(" to ")]
        return sizes[0], sizes[-1]

    rows = re.findall(r"^\| (.+) \| ([\d, to]+) \| ([\d, to]+) \|$", PAGE.read_text(), re.MULTILINE)
    return {name.split(", about")[0]: (span(up), span(down)) for name, up, down in rows}


@pytest.mark.slow
def test_the_sizes_on_the_privacy_page_are_those_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = Coordinator(tmp_path)
    options = ("--base", "embedded", "--adapter", "lora:8", "--rounds", str(ROUNDS))
    token = coordinator.create("sizes", *options, "--labelling")
    device = PrivateDevice(
        tmp_path / "device", tmp_path / "base", coordinator.port, token, Canary("sizes"), fill
    )
    try:
        device.start("--base=embedded", name="board")
        assert device.process is not None and device.process.wait(120) == 0, device.said
    finally:
        device.close()
        coordinator.stop()
    exchanges = device.relay.exchanges
    measured = by_row(exchanges)
    measured[WHOLE] = (
        [sum(len(one.up) for one in exchanges)],
        [sum(len(one.down) for one in exchanges)],
    )
    with capsys.disabled():
        print()
        for name, (up, down) in measured.items():
            cells = [
                f"{min(s):,}" + (f" to {max(s):,}" if max(s) > min(s) else "") for s in (up, down)
            ]
            print(f"| {name} | {' | '.join(cells)} |")
        print(f"{len(exchanges)} requests")
    # A quick coordinator has always work, and a quick device hears the end with a receipt.
    rare = {BY_ANSWER["waiting"], BY_ANSWER["over"]} - set(measured)
    assert set(told()) - rare == set(measured)
    for name, spans in told().items():
        if name in rare:
            continue
        for sizes, (least, most) in zip(measured[name], spans, strict=True):
            assert least * (1 - OFF) <= min(sizes) and max(sizes) <= most * (1 + OFF), name

"""No text leaves a device: real clients of private texts in all kinds of trouble, behind a relay.

Every case plants a canary of its own (`tests.attacks.canaries`) in the texts, labels, columns and
ids of a device, in the names of its folders and in its user's name, and then breaks something. A
client may fail or serve on; nothing of the canary may be in a byte that was relayed, in a file of
the coordinator, or in what its commands print.

    python -m pytest tests/attacks/test_no_text_leaves.py                  # a few cases
    python -m pytest tests/attacks/test_no_text_leaves.py -m "slow or not slow"   # all of them
"""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("fastapi")

import smidgen
from tests.attacks.canaries import Canary, base64_forms, forms
from tests.attacks.faults import FAULTS, break_folder, settle
from tests.attacks.private_device import ROOT, PrivateDevice
from tests.tiny import write_tiny_base

TASK = """
name = "hub"
labels = ["security", "weather", "family"]
patterns = ["{text} . this is about [MASK] ."]
"""
LABELLING = ("--labelling", "--confidence", "0.5", "--keep-last", "1.0", "--rounds", "3")
MANY_ROUNDS = ("--labelling", "--confidence", "0.5", "--rounds", "20")
AT_ONCE = 2  # clients
Story = Callable[[PrivateDevice], None]


@dataclass(frozen=True)
class Case:
    """One device, what happens to it, and the run it joins.

    Attributes:
        name: What goes wrong.
        story: Starts the client and sees it through.
        run: Options of `coordinator create`.
        is_fast: Whether it runs without `-m slow`.
    """

    name: str
    story: Story
    run: tuple[str, ...] = ()
    is_fast: bool = False


def faulty(fault: str, *when: tuple[str, int]) -> Story:
    """A data folder that breaks at an event, or before the client starts."""

    def story(device: PrivateDevice) -> None:
        def break_it() -> None:
            break_folder(device.data, fault, device.canary)

        for event in when:
            device.on[event] = break_it
        if not when:
            break_it()
        device.start()
        device.serve_out()
        assert all(device.relay.count(event) >= count for event, count in when), device.said

    return story


def in_turn(most: int) -> Story:
    """After each report another fault; a client that reads texts anew meets them all."""

    def story(device: PrivateDevice) -> None:
        faults = file_faults()[:most]
        for place, fault in enumerate(faults, start=1):
            breaking = partial(break_folder, device.data, fault, device.canary)
            device.on["reported", place] = breaking
        device.start()
        device.serve_out(len(faults) + 1, longest_s=30.0 + 2.0 * len(faults))
        assert device.relay.count("reported") > len(faults), device.said
        told = (b"has changed and was read again", b"cannot be read now")
        met = sum(device.said.count(words) for words in told)  # like the one before: told once
        assert met >= 0.7 * len(faults), device.said

    return story


def started(
    met: str,
    *options: str,
    limit_blocks: int | None = None,
    most_reports: int = 12,
    is_tested: bool = True,
) -> Story:
    """A client with some options, on good texts; some of them kept aside to test on, or none.

    Args:
        met: What it says once it has met what the case is about.
        options: Of `client run`.
        limit_blocks: The largest file it may write, in half kilobytes.
        most_reports: Enough.
        is_tested: Whether some texts are kept aside.
    """

    def story(device: PrivateDevice) -> None:
        if not is_tested:
            (device.data / "test.csv").unlink()
        device.start(*options, limit_blocks=limit_blocks)
        device.serve_out(most_reports)
        assert met.encode() in device.said, device.said

    return story


def one_file(device: PrivateDevice) -> None:
    """`--data` names a file, whose name is private too."""
    file = device.data / f"{device.canary.words[2]}.csv"
    file.write_text(f"label,text\n{device.canary.sentence},family\n")
    device.start(f"--data={file}")
    device.serve_out()
    assert b"are the columns swapped?" in device.said, device.said


def changed_later(change: Callable[[PrivateDevice], None]) -> Story:
    """Something changes while the client waits for its first work."""

    def story(device: PrivateDevice) -> None:
        device.on["asked", 2] = lambda: change(device)
        device.start()
        device.serve_out()
        assert device.relay.count("asked") > 1, device.said

    return story


def started_again(
    change: Callable[[PrivateDevice], None], met: str = "", limit_blocks: int | None = None
) -> Story:
    """The client is stopped after two reports, something changes, and it starts again.

    Args:
        change: What changes.
        met: What the client says of it; without words for it, it works on and reports again.
        limit_blocks: The largest file it may write then, in half kilobytes.
    """

    def story(device: PrivateDevice) -> None:
        device.start()
        device.serve_out(most_reports=2)
        change(device)
        before, reported = len(device.said), device.relay.count("reported")
        device.start(limit_blocks=limit_blocks)
        device.serve_out()
        said = device.said[before:]
        assert met.encode() in said, said
        assert met or device.relay.count("reported") > reported, said

    return story


def overwritten(pattern: str) -> Callable[[PrivateDevice], None]:
    """Private bytes in place of files of the state folder."""

    def change(device: PrivateDevice) -> None:
        found = [path for path in device.state.glob(pattern) if path.is_file()]
        assert found, pattern
        for path in found:
            path.write_text(f"{device.canary.sentence}\n" * 3)

    return change


def left_in_the_outbox(device: PrivateDevice) -> None:
    """A report that an older client has left, which said what it had failed at."""
    report = {"work_id": "w" * 40, "outcome": "failed", "error": device.canary.sentence}
    (device.state / "outbox" / "old.json").write_text(json.dumps(report))


def revoked(device: PrivateDevice) -> None:
    """The owner takes back the first label that the device has found."""
    line = [sys.executable, "-m", "smidgen", "client", "labels", f"--state={device.state}"]

    def labels(*more: str) -> list[dict[str, str]]:
        done = subprocess.run(
            [*line, f"--data={device.data}", *more, "--json"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        )
        answer: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])["labels"]
        return answer

    before = labels()
    assert any(row["text"].startswith(device.canary.words[0]) for row in before)
    assert len(labels("--revoke", before[0]["id"])) == len(before) - 1


def long_books_of_labels(device: PrivateDevice) -> None:
    """Books of labels that are as long as a file may become."""
    for path in device.state.glob("labels-*"):
        path.write_text(LONG_LINE)


def linked_books_of_labels(device: PrivateDevice) -> None:
    for path in device.state.glob("labels-*"):
        path.unlink()
        path.symlink_to("/dev/full")


def swapped(device: PrivateDevice) -> None:
    break_folder(device.data, "swapped columns", device.canary)


def unlabelled_alone(device: PrivateDevice) -> None:
    for part in ("labelled", "test"):
        (device.data / f"{part}.csv").unlink()


def without_weights(device: PrivateDevice) -> None:
    for path in device.base.iterdir():
        path.unlink()


def without_texts(device: PrivateDevice) -> None:
    device.data.rename(device.home / device.canary.words[5])


def other_tokenizer(device: PrivateDevice) -> None:
    """A vocabulary in which a private word stands where a label word was."""
    file = device.base / "tokenizer.json"
    text = file.read_text()
    for word, instead in zip(('"weather"', '"w"'), device.canary.words, strict=False):
        text = text.replace(word, f'"{instead}"')
    file.write_text(text)


def damaged_tokenizer(device: PrivateDevice) -> None:
    (device.base / "tokenizer.json").write_text(f'{{"version": "{device.canary.sentence}"}}')


def other_words(device: PrivateDevice) -> None:
    """Unlabelled texts of words that the base does not know."""
    (device.data / "unlabelled.csv").write_text(f"text\n{'水火' * 40} {device.canary.sentence}\n")
    settle(device.data)


def file_faults() -> list[str]:
    """Faults that can be made here: `no permission` is none to root, and Parquet needs pyarrow."""
    left_out = {"no permission"} if os.geteuid() == 0 else set()
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        left_out |= {name for name in FAULTS if "parquet" in name}
    return [name for name in FAULTS if name not in left_out]


TORCH, SMALL = ("--engine", "torch"), ("--memory-budget", "1M")
NO_PLAN, NO_ROOM, FINISHED = "is below the smallest plan", "File too large", "run finished"
ROOM_BLOCKS = 130  # what a client asks for at its start, 64 KiB, and little more
LONG_LINE = json.dumps({"event": "Revoked", "text_id": "x" * 512 * ROOM_BLOCKS}) + "\n"
FOUND, NOT_FINITE = " pseudo-labels", "the loss is nan"
HIGH_LR = ("--adapter", "lora:1@q,k,v,o,up,down", "--lr", "99.9", "--epochs", "20")
CASES = [
    Case("ten faults in turn", in_turn(10), MANY_ROUNDS, is_fast=True),
    Case("every fault in turn", in_turn(len(FAULTS)), MANY_ROUNDS),
    Case("swapped columns, at work", faulty("swapped columns", ("asked", 2)), is_fast=True),
    Case("unknown label, once joined", faulty("unknown label", ("joined", 1)), is_fast=True),
    Case("a budget too small", started(NO_PLAN, *SMALL, most_reports=2), is_fast=True),
    Case("a revoked label", started_again(revoked), LABELLING),
    Case(
        "no room for an adapter",
        started(NO_ROOM, limit_blocks=ROOM_BLOCKS, most_reports=2),
        ("--adapter", "lora:128"),
        is_fast=True,
    ),
    Case("a huge learning rate", started(FINISHED, "--limits", "lr=99.9"), HIGH_LR),
    Case("a learning rate over the limit", started("this device does 1 at most"), HIGH_LR),
    Case(
        "training that diverges",
        started(NOT_FINITE, *TORCH, is_tested=False),
        ("--base", "huge"),
    ),
    Case("a loss that is not finite", started(NOT_FINITE, *TORCH), ("--base", "huge")),
    Case("labelling", started(FOUND), LABELLING, is_fast=True),
    Case("labelling by torch", started(FOUND, *TORCH), LABELLING),
    Case("labelling with early exit", started(FOUND), (*LABELLING, "--adapter", "lora:2/top1")),
    Case("words the base does not know", changed_later(other_words), LABELLING),
    Case("a label word the base does not know", changed_later(other_tokenizer)),
    Case("a damaged tokenizer", changed_later(damaged_tokenizer)),
    Case("a budget too small for torch", started(NO_PLAN, *TORCH, *SMALL, most_reports=2)),
    Case("one file as --data", one_file),
    Case("swapped columns at the second start", started_again(swapped, "are the columns swapped?")),
    Case("unlabelled texts alone", started_again(unlabelled_alone, "unlabelled texts alone")),
    Case("no room for the identity", started(NO_ROOM, limit_blocks=0)),
    Case("little room", started(NO_ROOM, limit_blocks=ROOM_BLOCKS), ("--adapter", "lora:256")),
    Case(
        "no room for labels",
        started_again(long_books_of_labels, NO_ROOM, limit_blocks=ROOM_BLOCKS),
        LABELLING,
    ),
    Case(
        "a link in place of labels",
        started_again(linked_books_of_labels, "symbolic link"),
        LABELLING,
    ),
    Case("a base that is gone", changed_later(without_weights)),
    Case("texts that are gone", changed_later(without_texts)),
    Case(
        "a damaged activation cache",
        started_again(overwritten("activations/**/*")),
        ("--adapter", "lora:2/top1", "--rounds", "3"),
    ),
    Case("a damaged adapter", started_again(overwritten("adapters/*"))),
    Case("a damaged identity", started_again(overwritten("device.json"), "is damaged")),
    Case(
        "a damaged book of labels",
        started_again(overwritten("labels-*"), "is damaged and put aside"),
        LABELLING,
    ),
    Case("an old report in the outbox", started_again(left_in_the_outbox)),
    *(Case(f"{fault}, from the start", faulty(fault)) for fault in FAULTS),
    *(Case(f"{fault}, at work", faulty(fault, ("asked", 2))) for fault in FAULTS),
]
CASES = list({case.name: case for case in reversed(CASES)}.values())[::-1]  # fast ones win


def command(*arguments: str) -> str:
    """A command through the front door, in this process; what it said, whatever its exit code."""
    said, before = io.StringIO(), sys.argv
    sys.argv = ["smidgen", *arguments]
    try:
        with redirect_stdout(said), redirect_stderr(said):
            smidgen.main()
    except SystemExit:
        pass
    finally:
        sys.argv = before
    return said.getvalue()


class Coordinator:
    """A store that is served, with a run for every case.

    Args:
        folder: Where everything is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        write_tiny_base(folder / "base")
        write_huge_base(folder / "huge")
        (folder / "task.toml").write_text(TASK)
        self.log = folder / "coordinator.log"
        self.runs: dict[str, str] = {}
        self.create("first")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "smidgen", "coordinator", "serve"),
                    *("--store", str(self.store), "--port", "0"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            )
        self.port = self._port()

    def create(self, case: str, *options: str) -> str:
        """Create a run for a case; its token."""
        given = {
            **{"--base": "base", "--adapter": "lora:2", "--rounds": "2", "--min-clients": "1"},
            **{"--epochs": "1", "--batch": "4", "--tokens": "32"},
            **{"--name": f"run-{len(self.runs)}"},
        }
        flags = [option for option in options if option == "--labelling"]
        pairs = [option for option in options if option != "--labelling"]
        given |= dict(zip(pairs[::2], pairs[1::2], strict=True))
        given |= {"--base": str(self.folder / given["--base"])}
        given |= {"--task": str(self.folder / "task.toml")}
        # A run asks the devices of its case alone: those of others come and go.
        tag = ("--tag", f"case={given['--name']}")
        command("coordinator", "tokens", "new", "--store", str(self.store), *tag)
        line = [*(word for pair in given.items() for word in pair), *tag]
        said = command("coordinator", "create", "--store", str(self.store), *line, *flags, "--json")
        created = json.loads(said.splitlines()[-1])
        self.runs[case] = created["run_id"]
        return str(created["token"])

    def known(self, case: str) -> dict[str, bytes]:
        """All that the coordinator's owner can see, by where it is; of a case, or of all."""
        only = ("--store", str(self.store), "--run", self.runs[case])
        out = self.folder / "out" / self.runs[case]
        out.mkdir(parents=True)
        shown = [
            command("coordinator", "status", *only, "--json"),
            command("coordinator", "figures", *only, "--json", "--out", str(out / "rows.jsonl")),
            command("coordinator", "export", *only, "--json", "--out", str(out / "adapter")),
        ]
        return {
            "store": joined(self.store),
            "output": self.log.read_bytes(),
            "status, figures, export": "\n".join(shown).encode() + joined(out),
        }

    def stop(self) -> None:
        assert self.process.poll() is None, self.log.read_text()
        self.process.terminate()
        self.process.wait(90.0)

    def _port(self) -> int:
        end = time.monotonic() + 60.0
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(r"listening on http://127.0.0.1:(\d+)\s", self.log.read_text()):
                return int(found[1])
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())


def write_huge_base(folder: Path) -> None:
    """A tiny base in which one layer's results are beyond float32."""
    weights = load_file(write_tiny_base(folder) / "model.safetensors")
    weights["bert.encoder.layer.0.output.dense.weight"] *= 1e30
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def joined(folder: Path) -> bytes:
    """Names and bytes of every file of a folder, which may be in use."""
    found = []
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError, IsADirectoryError):  # a file half written gets its name
            found.append(str(path.relative_to(folder)).encode() + path.read_bytes())
    return b"\n".join(found)


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
    base = coordinator.folder / ("huge" if "huge" in run else "base")
    return PrivateDevice(folder, base, coordinator.port, token, Canary(name))


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
    seen = {"wire": device.relay.all_bytes(), **coordinator.known(case.name)}
    leaks = {
        where: found
        for where, body in seen.items()
        if (found := device.canary.found_in(body, *private_paths(device)))
    }
    assert not leaks, device.said.decode(errors="replace")
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

"""Stories of trouble: what happens to a device while its client runs, told as functions.

story = faulty("swapped columns", ("asked", 2))
story(device)  # starts the client, breaks the folder at its second request, sees it through
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Timer

from tests.attacks.faults import break_folder, file_faults, settle
from tests.attacks.private_device import LONGEST_S, ROOT, PrivateDevice

Story = Callable[[PrivateDevice], None]
FINISHED = "run finished"
ROOM_BLOCKS = 130  # what a client asks for at its start, 64 KiB, and little more
LONG_LINE = json.dumps({"event": "Revoked", "text_id": "x" * 512 * ROOM_BLOCKS}) + "\n"


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


def personal(method: str, *options: str) -> Story:
    """A client that goes on to an adapter of its own, by a method."""

    def story(device: PrivateDevice) -> None:
        device.start("--personal", "--rank-budget", "1", *options)
        device.serve_out(idle_s=LONGEST_S)
        assert b"its own adapter: " in device.said, device.said
        choice = device.state / "personal" / "choice.json"
        assert json.loads(choice.read_text())["method"] == method

    return story


def fetching(mirror: str = "") -> Story:
    """A client with another base than the run's, which it fetches into a private folder.

    Args:
        mirror: Name of a folder of the device that is looked into first, and holds nothing.
    """

    def story(device: PrivateDevice) -> None:
        private = device.home / f"packs {device.canary.words[5]}"
        more = [f"--packs={private}"]
        if mirror:
            (private / mirror).mkdir(parents=True)
            more.append(f"--pack-mirror={private / mirror}")
        device.start(*more)
        device.serve_out(idle_s=LONGEST_S)
        assert FINISHED.encode() in device.said, device.said

    return story


def crashed(*options: str) -> Story:
    """Training dies of a signal; Python dumps its stacks, as PYTHONFAULTHANDLER wants it.

    The client is started again afterwards, and ends its run.
    """

    def story(device: PrivateDevice) -> None:
        def abort() -> None:
            assert device.process is not None
            Timer(0.3, partial(device.process.send_signal, signal.SIGABRT)).start()

        device.on["asked", 3] = abort  # with the first training
        device.start(*options)
        device.serve_out()
        _, found, dump = bytes(device.said).partition(b"Fatal Python error: Aborted")
        assert found and b"loop.py" in dump, device.said
        assert not device.canary.found_in(dump), dump
        assert not list(device.home.rglob("core*"))
        device.start(*options)
        device.serve_out()
        assert FINISHED.encode() in device.said, device.said

    return story


def processes_looked_at(device: PrivateDevice) -> None:
    """What `ps` shows of a client at work, of its threads, and of each process that it starts."""
    seen: dict[str, bytes] = {}

    def look() -> None:
        assert device.process is not None
        for pid in [device.process.pid, *children(device.process.pid)]:
            proc = Path(f"/proc/{pid}")
            for path in [proc / "cmdline", proc / "environ", *proc.glob("task/*/comm")]:
                with suppress(OSError):  # it has ended
                    seen[str(path)] = seen.get(str(path), b"") + path.read_bytes()

    for event in ("enrolled", "joined", "asked", "reported"):
        for count in range(1, 6):
            device.on[event, count] = look
    device.start()
    device.serve_out()
    assert device.relay.count("reported") > 1, device.said
    key = json.loads((device.state / "device.json").read_text())["key"]
    texts = [" ".join(device.canary.words[:2]), device.canary.sentence, key]
    shown = b"\n".join(seen.values())
    assert device.token.encode() in shown  # it was given as an argument
    assert not [text for text in texts if text.encode() in shown]


def children(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *children(child)]
    return found


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


def other_template(source: str) -> Callable[[PrivateDevice], None]:
    """A chat template in place of the base's; `C` is the canary as a string of the template."""

    def change(device: PrivateDevice) -> None:
        text = source.replace("C", json.dumps(device.canary.sentence))
        (device.base / "chat_template.jinja").write_text(text)

    return change


def other_words(device: PrivateDevice) -> None:
    """Unlabelled texts of words that the base does not know."""
    (device.data / "unlabelled.csv").write_text(f"text\n{'水火' * 40} {device.canary.sentence}\n")
    settle(device.data)

"""A device whose every name, path and text is a canary, as a real process behind a relay."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.attacks.canaries import Canary
from tests.attacks.faults import Make
from tests.attacks.relay import Relay

ROOT = Path(__file__).parents[2]
LONGEST_S = 30.0  # of one life of a client, once it speaks; failing for ever is no leak
STARTING_S = 90.0  # at most until it speaks, on a busy machine
MOST_EXCHANGES = 150
IDLE_S = 2.0  # after which a client that has answered is taken to wait for ever
# A shell's: files of at most so many half kilobytes, then the command.
SMALL_DISK = ("/bin/sh", "-c", 'ulimit -f "$0" && exec "$@"')


class PrivateDevice:
    """Files of a device, and its client.

    Args:
        folder: Made here, with the device's home, texts, state and base below it.
        base: A base to copy.
        port: The coordinator's, on loopback.
        token: Enrolment token of a run.
        canary: What nobody else may learn.
        fill: Writes its texts.
    """

    def __init__(
        self, folder: Path, base: Path, port: int, token: str, canary: Canary, fill: Make
    ) -> None:
        self.canary, self.folder, self.token = canary, folder, token
        self.home = folder / f"home {canary.words[0]}"
        self.data = self.home / f"texts {canary.words[1]}"
        self.state = self.home / f"state {canary.other}"
        self.base = self.home / f"base-{canary.words[3]}"
        self.on: dict[tuple[str, int], Callable[[], object]] = {}
        self.failed: list[Exception] = []
        self.said = bytearray()
        self.process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self.home.mkdir(parents=True)
        shutil.copytree(base, self.base)
        fill(self.data, canary)
        self.relay = Relay(port, self._happened)

    def paths(self) -> tuple[Path, ...]:
        """Folders that say where on this device something is."""
        return self.folder, self.home, self.data

    def start(self, *more: str, name: str = "d", limit_blocks: int | None = None) -> None:
        """Start its client, with options that win over those every client gets."""
        where = ("--coordinator", self.relay.url, "--token", self.token, "--name", name)
        files = (f"--data={self.data}", f"--base={self.base}", f"--state={self.state}")
        engine = () if "--engine" in more else ("--engine", "onnx")
        line = [sys.executable, "-m", "smidgen", "client", "run", *where, *files, *engine]
        line += ["--until", "finished", *more]
        if limit_blocks is not None:
            line = [*SMALL_DISK, str(limit_blocks), *line]
        own = {
            "HOME": str(self.home),
            "USER": self.canary.words[4],
            "LOGNAME": self.canary.words[4],
        }
        rest = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        rest |= {"PYTHONFAULTHANDLER": "1"}  # whatever kills it, its stacks are dumped
        self.relay.expect()
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **own, **rest},
            cwd=self.home,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def serve_out(
        self, most_reports: int = 12, longest_s: float = LONGEST_S, idle_s: float = IDLE_S
    ) -> None:
        """Wait until the client ends and all it said is read; end it once it has said enough."""
        assert self.process is not None and self._reader is not None
        silent_until_s = time.monotonic() + STARTING_S
        while self.process.poll() is None:
            end = (self.relay.heard_s or silent_until_s) + longest_s
            is_enough = self.relay.count("reported") >= most_reports or self.relay.is_idle(idle_s)
            is_endless = len(self.relay.exchanges) > MOST_EXCHANGES or time.monotonic() > end
            if is_enough or is_endless:
                self.stop()
            time.sleep(0.02)
        self._reader.join(60.0)

    def stop(self) -> None:
        """End its client as Ctrl-C does."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def close(self) -> None:
        """Leave nothing running, and tell what went wrong between the two ends.

        Raises:
            Exception: What was to be done to the device's files could not be done, or the
                coordinator could not be reached, so that nothing was tested.
        """
        self.stop()
        self.relay.close()
        if self.failed:
            raise self.failed[0]
        if self.relay.unreachable is not None:
            raise self.relay.unreachable

    def _happened(self, event: str, count: int) -> None:
        try:
            self.on.get((event, count), lambda: None)()
        except Exception as error:  # told by `close`; the relay goes on
            self.failed.append(error)

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        with process.stdout as pipe:
            for chunk in iter(lambda: pipe.read1(1 << 16), b""):  # type: ignore[attr-defined]
                self.said += chunk

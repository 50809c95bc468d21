"""Several processes of this machine that serve one shared store on one address.

The parent holds the socket and serves nothing. Each child is the same command again and takes
connections from that socket, so one that is killed leaves those that wait to the others; it is
started again.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType

from coordinator.storage.place import StorePlace
from edge_client.errors import Failed, demand

SOCKET = "SMIDGEN_WORKER_SOCKET"  # tells a child the number of the parent's socket
MOST = 64
AGAIN_S = 1.0  # before a process that has ended is started again
LOOK_S = 0.1


@dataclass
class Worker:
    """A process that serves, and what it has said.

    Attributes:
        process: The process.
        listening: Set by its first line, which says that it listens.
        said: All lines after that.
        was_well: Whether one in its place has listened before.
    """

    process: "subprocess.Popen[str]"
    was_well: bool = False
    listening: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        """Read all that it says: a pipe that nobody empties would stop it."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            if next(lines, ""):
                self.listening.set()
            self.said += lines

    @property
    def is_well(self) -> bool:
        return self.was_well or self.listening.is_set()

    def last_words(self) -> str:
        self._reading.join()
        return "".join(self.said)


def check_workers(place: StorePlace, count: int) -> None:
    """Refuse numbers that cannot be.

    Raises:
        WrongInput: Names the option.
    """
    demand(1 <= count <= MOST, f"--workers {count}: 1 to {MOST} processes are expected")
    demand(
        count == 1 or place.is_shared,
        f"--workers {count}: processes share a store on PostgreSQL alone; give --database too, "
        "`smidgen coordinator move` takes a store there",
    )


def inherited() -> socket.socket | None:
    """The parent's socket, in a child; None in any other process."""
    number = os.environ.get(SOCKET)
    return None if number is None else socket.socket(fileno=int(number))


def end_with_parent(stop: threading.Event) -> None:
    """Let a child end when its parent has."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent and not stop.is_set():
            time.sleep(LOOK_S)
        stop.set()

    threading.Thread(target=look, name="parent", daemon=True).start()


def serve_together(
    bound: socket.socket,
    arguments: Sequence[str],
    count: int,
    on_listening: Callable[[], None],
) -> str:
    """Serve by several processes until a signal, or until all have come to their end.

    One that ends otherwise is started again: killed, or because the database was away for a moment.

    Args:
        bound: Listens.
        arguments: Of this command.
        count: How many.
        on_listening: Called when all of them serve.

    Returns:
        What one of them said at its end.

    Raises:
        Failed: One of them could not serve, and none in its place ever could.
    """
    ending = threading.Event()
    children: list[Worker] = []

    def end(_number: int, _frame: FrameType | None) -> None:
        if ending.is_set():  # a second one: nobody waits any longer
            _terminate(children)
        ending.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        children += [_started(bound, arguments) for _ in range(count)]
        for child in children:
            _wait_for(child, ending)
        if not ending.is_set():
            on_listening()
        _look_after(children, bound, arguments, ending)
    finally:
        _terminate(children)
        for child in children:
            child.process.wait()
    return next(filter(None, (child.last_words() for child in children)), "")


def _terminate(children: Sequence[Worker]) -> None:
    for child in children:
        if child.process.returncode is None:
            child.process.terminate()


def _look_after(
    children: list[Worker],
    bound: socket.socket,
    arguments: Sequence[str],
    ending: threading.Event,
) -> None:
    """Start again who has ended before its time, until all have come to their end."""
    while not ending.is_set() and any(child.process.poll() != 0 for child in children):
        for place, child in enumerate(children):
            status = child.process.poll()
            if status in (1, 2) and not child.is_well:  # it said why
                raise Failed("one of the processes cannot serve; its own line says why")
            if status and not ending.wait(AGAIN_S):
                children[place] = _started(bound, arguments, child.is_well)
        ending.wait(LOOK_S)


def _started(bound: socket.socket, arguments: Sequence[str], was_well: bool = False) -> Worker:
    process = subprocess.Popen(
        [sys.executable, "-m", "smidgen", *arguments],
        env=os.environ | {SOCKET: str(bound.fileno())},
        pass_fds=[bound.fileno()],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is the parent's to pass on, once
    )
    return Worker(process, was_well)


def _wait_for(child: Worker, ending: threading.Event) -> None:
    """Wait until it listens; or for its end, or ours."""
    while child.process.poll() is None and not ending.is_set():
        if child.listening.wait(LOOK_S):
            return

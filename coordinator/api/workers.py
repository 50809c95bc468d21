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
from types import FrameType

from coordinator.storage.place import StorePlace
from edge_client.errors import Failed, demand

SOCKET = "SMIDGEN_WORKER_SOCKET"  # tells a child the number of the parent's socket
MOST = 64
AGAIN_S = 1.0  # before a process that was killed is started again
LOOK_S = 0.1


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
) -> None:
    """Serve by several processes until a signal, or until all have come to their end.

    Args:
        bound: Listens.
        arguments: Of this command.
        count: How many.
        on_listening: Called when all of them serve.

    Raises:
        Failed: One of them could not serve.
    """
    ending = threading.Event()
    children: list[subprocess.Popen[bytes]] = []

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
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _terminate(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    for child in children:
        if child.returncode is None:
            child.terminate()


def _look_after(
    children: list["subprocess.Popen[bytes]"],
    bound: socket.socket,
    arguments: Sequence[str],
    ending: threading.Event,
) -> None:
    """Start again who was killed, until all have come to their end."""
    while not ending.is_set() and any(child.poll() is None or child.poll() for child in children):
        for place, child in enumerate(children):
            status = child.poll()
            if status in (1, 2):  # it said why
                raise Failed("one of the processes cannot serve; its own line says why")
            if status is not None and status != 0 and not ending.wait(AGAIN_S):
                if child.stdout is not None:
                    child.stdout.close()
                children[place] = _started(bound, arguments)
        ending.wait(LOOK_S)


def _started(bound: socket.socket, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "smidgen", *arguments],
        env=os.environ | {SOCKET: str(bound.fileno())},
        pass_fds=[bound.fileno()],
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the parent's to pass on, once
    )


def _wait_for(child: "subprocess.Popen[bytes]", ending: threading.Event) -> None:
    """Wait for its line, which says that it listens; or for its end, or ours."""
    assert child.stdout is not None
    heard = threading.Thread(target=child.stdout.readline, daemon=True)
    heard.start()
    while heard.is_alive() and not ending.is_set():
        heard.join(LOOK_S)

"""Runs a function in a fresh process that ends with this one and whose errors are raised here.

with child(footprint, 1000, name="footprint") as running:
    print(running.answer())
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.profiling.instruments.child import ends_with


@dataclass(frozen=True)
class Child:
    """A process at work.

    Attributes:
        pipe: Readable as soon as there is an answer, or none is to come.
        name: What its errors begin with.
    """

    process: BaseProcess
    pipe: Connection
    name: str

    def answer(self) -> Any:
        """What the work returned, waited for.

        Raises:
            WrongInput: The work raised it, of whatever class.
            Failed: The work raised it or an OSError; or the process ended without an answer, a
                bug's traceback on its stderr.
        """
        try:
            exit_code, said = self.pipe.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            raise Failed(f"{self.name}: its process ended with code {code}") from None
        if exit_code:
            kind = WrongInput if exit_code == WrongInput.exit_code else Failed
            raise kind(f"{self.name}: {said}")
        return said

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def start_child(work: Callable[..., Any], *arguments: Any, name: str) -> Child:
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(its, work, arguments))
    process.start()
    its.close()
    return Child(process, mine, name)


@contextmanager
def child(work: Callable[..., Any], *arguments: Any, name: str) -> Iterator[Child]:
    """Work in a process that does not outlive the block."""
    started = start_child(work, *arguments, name=name)
    try:
        yield started
    finally:
        started.end()


def _work(pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The process: ends with its parent, and at nobody else's word.

    A Ctrl-C or SIGTERM to the whole group is the parent's to answer; a child that died of it first
    would be told as a failure.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    ends_with(parent.pid or 0, signal.SIGKILL)
    try:
        pipe.send((0, work(*arguments)))
    except (WrongInput, Failed) as error:
        pipe.send((error.exit_code, str(error)))
    except OSError as error:  # a full disk; `smidgen.main` takes it so
        pipe.send((Failed.exit_code, str(error)))

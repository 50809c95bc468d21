"""What scripts/server/ promises: systemd takes the unit, and what it starts is there."""

import re
import runpy
import shlex
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

import typer.main

from tests.processes import run

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "scripts" / "server"
UNIT = SERVER / "smidgen-coordinator.service"
PROGRAM = "/opt/smidgen/venv/bin/smidgen"
STORE = "/var/lib/smidgen-coordinator/store"
MOST_EXPOSURE = 1.5  # of 10, by systemd's own measure; above 2 it stops calling a service OK


@pytest.fixture
def unit(tmp_path: Path) -> str:
    """The unit on a machine where its program is installed, as far as systemd can see."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))
    return str(copy)


def test_systemd_has_nothing_to_say_of_the_unit(unit: str) -> None:
    done = run("systemd-analyze", "verify", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_exposes_little(unit: str) -> None:
    done = run("systemd-analyze", "security", "--offline=yes", "--no-pager", unit)
    rated = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert rated is not None, done.stdout + done.stderr
    assert float(rated[1]) <= MOST_EXPOSURE


def check_command(words: list[str]) -> None:
    """Parse a command of the coordinator as it would be, without running it."""
    command = typer.main.get_command(import_module("smidgen.coordinator.cli").app)
    commands = getattr(command, "commands", {})
    commands[words[0]].make_context(words[0], words[1:])


def test_the_unit_and_the_container_start_commands_that_there_are() -> None:
    (started,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    program, group, *words = shlex.split(started)
    assert (program, group) == (PROGRAM, "coordinator") and STORE in words
    check_command(words)
    (said,) = re.findall(r"^CMD (\[.*\])$", (SERVER / "Containerfile").read_text(), re.MULTILINE)
    check_command(shlex.split(said.strip("[]").replace(",", " ")))


def test_unit_and_scripts_mean_the_same_user_store_and_program() -> None:
    texts = [(SERVER / name).read_text() for name in ("install", "smidgen-coordinator")]
    assert STORE in texts[1] and PROGRAM in texts[1]
    assert "User=smidgen-coordinator\n" in UNIT.read_text()
    assert all("-u smidgen-coordinator" in text or "useradd" in text for text in texts)


def test_shellcheck_has_nothing_to_say_of_the_scripts() -> None:
    done = run("shellcheck", str(SERVER / "install"), str(SERVER / "smidgen-coordinator"))
    assert (done.returncode, done.stdout) == (0, "")


class Answers(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None: ...


class Unwell(Answers):
    status = 503


@contextmanager
def answering(kind: type[Answers]) -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_container_is_healthy_while_the_coordinator_says_so() -> None:
    is_healthy = runpy.run_path(str(SERVER / "healthy.py"))["is_healthy"]
    with answering(Answers) as port:
        assert is_healthy(port)
    with answering(Unwell) as port:
        assert not is_healthy(port)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert not is_healthy(port)

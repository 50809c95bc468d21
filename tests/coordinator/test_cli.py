"""Real processes: commands as a person types them, and `kill -9` of a real server."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from smidgen.coordinator.api.serve import SOCKET
from smidgen.coordinator.storage.blobs import FolderBlobs
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.adapters.peft_folder import read_peft_folder
from smidgen.edge_client.bases.base import Base
from tests.breadth import first_fast
from tests.command_line import smidgen
from tests.coordinator.conftest import served
from tests.coordinator.devices import Device, joined, wait_for

SMIDGEN = [sys.executable, "-m", "smidgen", "coordinator"]
TASK = """
name = "hub"
labels = ["security", "weather"]
patterns = ["{text} . this is about [MASK] ."]
"""


def created(folder: Path, base: Base, rounds: int, *flags: str) -> str:
    """Create a run of two devices; its token."""
    (folder / "task.toml").write_text(TASK)
    what = ("--base", str(base.folder), "--adapter", "lora:2", "--rounds", str(rounds))
    task = ("--task", str(folder / "task.toml"))
    done = smidgen(
        "coordinator", "create", "--store", str(folder / "store"), *what, *task, *flags, "--json"
    )
    assert done.exit_code == 0, done.stderr
    return str(json.loads(done.stdout.splitlines()[-1])["token"])


@contextmanager
def server(folder: Path, *options: str) -> Iterator["tuple[subprocess.Popen[str], str]"]:
    """A real `serve`, and where it listens; killed at the end if it still runs."""
    line = [*SMIDGEN, "serve", "--store", str(folder / "store"), *options]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.fullmatch(r"listening on (http://\S+)\n", said)
        assert found, (said, (folder / "log").read_text())
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def take_turns(devices: list[Device], works: int) -> None:
    """Each device in turn does one piece of work, until so many are done."""
    end = time.monotonic() + 120
    for place in range(works):
        device = devices[place % len(devices)]
        assert time.monotonic() < end
        device.do(device.work())


def exported(folder: Path) -> bytes:
    done = smidgen(
        "coordinator", "export", "--store", str(folder / "store"), "--out", str(folder / "out")
    )
    assert done.exit_code == 0 and "adapter of round" in done.stdout
    return (folder / "out" / "adapter_model.safetensors").read_bytes()


def undisturbed(folder: Path, base: Base, rounds: int = 3) -> bytes:
    """The last adapter where this process serves."""
    folder.mkdir()
    token = created(folder, base, rounds)
    with closing(Store(folder / "store")) as store, served(store) as (_, http):
        devices = [joined(http, token, name) for name in ("a", "b")]
        take_turns(devices, works=4 * rounds + 2)  # trainings and evaluations of two devices
        assert devices[0].over()
    return exported(folder)


@pytest.mark.slow
@pytest.mark.fault
def test_kill_9_in_every_phase_changes_no_byte(tmp_path: Path, tiny_base: Base) -> None:
    expected = undisturbed(tmp_path / "calm", tiny_base)
    folder = tmp_path / "stormy"
    folder.mkdir()
    token = created(folder, tiny_base, rounds=3)
    keys: list[Device] = []
    port = "0"
    # Cut in the first evaluation, between two updates of round 1, and right after the last of 2.
    for works in (1, 2, 5, 6):
        with (
            server(folder, "--port", port) as (process, url),
            httpx.Client(base_url=url, timeout=120) as http,
        ):
            port = url.rsplit(":", 1)[1]
            if not keys:
                keys = [joined(http, token, name) for name in ("a", "b")]
            devices = [replace(device, http=http) for device in keys]
            take_turns(devices, works)
            if works % 2:
                keys.reverse()  # the other device is next
            process.kill()
            process.wait()
    with (
        server(folder, "--port", port) as (_, url),
        httpx.Client(base_url=url, timeout=120) as http,
    ):
        assert replace(keys[0], http=http).over()
    assert exported(folder) == expected


@pytest.mark.slow
def test_kill_9_amid_labelling_asks_nobody_twice(tmp_path: Path, tiny_base: Base) -> None:
    expected = undisturbed(tmp_path / "calm", tiny_base, rounds=1)
    folder = tmp_path / "stormy"
    folder.mkdir()
    token = created(folder, tiny_base, 1, "--labelling", "--keep-last", "0.3")
    with (
        server(folder, "--port", "0") as (process, url),
        httpx.Client(base_url=url, timeout=120) as http,
    ):
        devices = [joined(http, token, name) for name in ("a", "b")]
        take_turns(devices, works=3)  # both evaluate, one labels
        asked = devices[1].work()
        process.kill()
        process.wait()
    with server(folder, "--port", "0") as (_, url), httpx.Client(base_url=url, timeout=120) as http:
        a, b = [replace(device, http=http) for device in devices]
        assert a.next().waiting and b.work() == asked and asked.keep == 0.3
        take_turns([b, a], works=5)
        assert a.over()
    assert exported(folder) == expected
    figures = smidgen("coordinator", "figures", "--store", str(folder / "store"), "--json").stdout
    assert json.loads(figures)["pseudo_labels_by_round"] == {"1": 18}
    assert "18" in smidgen("coordinator", "figures", "--store", str(folder / "store")).stdout
    status = smidgen("coordinator", "status", "--store", str(folder / "store"), "--json").stdout
    assert json.loads(status)["pseudo_labels_by_round"] == {"1": 18}


def works_through(url: str, device: Device) -> None:
    """A device that never gives up, as the real client does not."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with httpx.Client(base_url=url, timeout=120) as http, suppress(httpx.TransportError):
            replace(device, http=http).until_finished()
            return
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.fault
def test_kill_9_at_any_moment_changes_no_byte(tmp_path: Path, tiny_base: Base) -> None:
    """Devices answer at full speed, so the kill falls into requests, writes and aggregation."""
    adapters = []
    for name, kills in (("calm", ()), ("stormy", (0.05, 0.11, 0.3))):
        folder = tmp_path / name
        folder.mkdir()
        token, port = created(folder, tiny_base, rounds=20), "0"
        with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
            process, url = stack.enter_context(server(folder, "--port", port))
            port = url.rsplit(":", 1)[1]
            with httpx.Client(base_url=url, timeout=120) as http:
                devices = [joined(http, token, name) for name in ("a", "b")]
            done = [pool.submit(works_through, url, device) for device in devices]
            for pause_s in kills:
                time.sleep(pause_s)
                process.kill()
                process.wait()
                process, _ = stack.enter_context(server(folder, "--port", port))
            for future in done:
                future.result(240)
        adapters.append(exported(folder))
    assert adapters[0] == adapters[1]


def test_serve_ends_when_the_devices_have_heard_that_all_is_done(
    tmp_path: Path, tiny_base: Base
) -> None:
    token = created(tmp_path, tiny_base, rounds=1)
    options = ("--port", "0", "--exit-when-finished", "--json")
    with (
        server(tmp_path, *options) as (process, url),
        httpx.Client(base_url=url, timeout=120) as http,
    ):
        devices = [joined(http, token, name) for name in ("a", "b")]
        take_turns(devices, works=6)
        devices[0].until_finished()
        assert devices[1].over()
        time.sleep(0.3)
        assert process.poll() is None  # the other has heard of it and has no adapter yet
        devices[1].until_finished()
        assert process.wait(60) == 0
        assert process.stdout is not None
        said = json.loads(process.stdout.read().splitlines()[-1])
    assert said["runs"][0]["phase"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("number", first_fast([signal.SIGTERM, signal.SIGINT]))
def test_a_signal_ends_a_server_in_good_order(
    tmp_path: Path, tiny_base: Base, number: signal.Signals
) -> None:
    """An open connection does not hold it up, which would take five seconds each time."""
    created(tmp_path, tiny_base, rounds=1)
    assert any(held_up_s(tmp_path, number) < 3 for _ in range(4))
    assert "Traceback" not in (tmp_path / "log").read_text()


def held_up_s(folder: Path, number: signal.Signals) -> float:
    """How much longer a server with an open connection takes to end by a signal."""
    spent_s = []
    for is_connected in (False, True):
        with server(folder, "--port", "0") as (process, url), ExitStack() as stack:
            if is_connected:
                address = "127.0.0.1", int(url.rsplit(":", 1)[1])
                stack.enter_context(socket.create_connection(address))
            began = time.monotonic()
            process.send_signal(number)
            assert process.wait(60) == 0
            spent_s.append(time.monotonic() - began)
    return spent_s[1] - spent_s[0]


@pytest.mark.parametrize("signals", first_fast([2, 1]))
def test_a_request_that_is_cut_short_at_the_end_leaves_no_traceback(
    tmp_path: Path, tiny_base: Base, signals: int
) -> None:
    token = created(tmp_path, tiny_base, 1)
    with server(tmp_path, "--port", "0") as (process, url):
        with httpx.Client(base_url=url, timeout=60) as http:
            device = joined(http, token, "a")
        host, port = url.removeprefix("http://").split(":")
        head = f"POST /v1/runs/r/membership HTTP/1.1\r\nHost: {host}\r\n"
        head += f"Authorization: Bearer {device.key}\r\nContent-Length: 100\r\n\r\n{{"
        with socket.create_connection((host, int(port))) as half:
            half.sendall(head.encode())
            time.sleep(0.5)  # it waits for the rest of the body
            for _ in range(signals):
                process.terminate()
                time.sleep(0.2)
            assert process.wait(30) == 0
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said and "CancelledError" not in said


def test_who_has_nobody_to_say_where_it_listens_serves_on_and_without_its_parent_ends(
    tmp_path: Path, tiny_base: Base
) -> None:
    created(tmp_path, tiny_base, 1)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        number, (_, port) = bound.fileno(), bound.getsockname()
        orphan = unheard(tmp_path, {SOCKET: str(number)}, number)
        assert orphan.wait(60) == 0
    alone = unheard(tmp_path, {}, port=port)
    wait_for(lambda: is_up(f"http://127.0.0.1:{port}"))
    alone.terminate()
    assert alone.wait(60) == 0
    assert "Broken" not in (tmp_path / "log").read_text()


def unheard(
    folder: Path, more: dict[str, str], *inherited: int, port: int = 0
) -> "subprocess.Popen[bytes]":
    """A `serve` whose standard output nobody reads."""
    line = [*SMIDGEN, "serve", "--store", str(folder / "store"), "--port", str(port)]
    reads, writes = os.pipe()
    os.close(reads)
    with (folder / "log").open("a") as log:
        environment = os.environ | more
        process = subprocess.Popen(
            line, stdout=writes, stderr=log, env=environment, pass_fds=inherited
        )
    os.close(writes)
    return process


def is_up(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", timeout=10).status_code == 200
    return False


def test_two_servers_do_not_share_a_store(tmp_path: Path, tiny_base: Base) -> None:
    created(tmp_path, tiny_base, rounds=1)
    with server(tmp_path, "--port", "0"):
        done = smidgen(
            "coordinator", "serve", "--store", str(tmp_path / "store"), "--port", "0"
        )  # this process
    assert done.exit_code == 2 and "another coordinator serves the store" in done.stderr


@pytest.mark.slow
def test_a_run_file_is_created_once(tmp_path: Path, tiny_base: Base) -> None:
    (tmp_path / "run.toml").write_text(
        f'base = "{tiny_base.folder}"\nadapter = "prompt:4"\nname = "mine"\n[task]{TASK}'
    )
    line = [*SMIDGEN, "serve", "--store", str(tmp_path / "store"), "--port", "0"]
    for tokens in (1, 0):
        process = subprocess.Popen(
            [*line, "--run", str(tmp_path / "run.toml")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        said = ""
        while "listening" not in (row := process.stdout.readline()):
            said += row
        process.terminate()
        process.communicate(timeout=60)
        assert said.count("SMIDGEN_TOKEN=") == tokens


def test_status_figures_token_and_export(tmp_path: Path, tiny_base: Base) -> None:
    created(tmp_path, tiny_base, rounds=2)
    store = ("--store", str(tmp_path / "store"))
    status = json.loads(smidgen("coordinator", "status", *store, "--json").stdout)
    assert status["phase"] == "waiting" and status["round_index"] == 0 and status["rounds"] == 2
    assert "waiting" in smidgen("coordinator", "status", *store).stdout
    out = tmp_path / "rounds.jsonl"
    assert (
        smidgen("coordinator", "figures", *store, "--out", str(out)).exit_code == 0
        and out.read_text() == ""
    )
    token = json.loads(smidgen("coordinator", "tokens", "new", *store, "--json").stdout)["token"]
    assert token.encode() not in (tmp_path / "store" / "coordinator.db").read_bytes()
    body = exported(tmp_path)
    exported_, state = read_peft_folder(tmp_path / "out")
    assert exported_.base_name == f"./{tiny_base.folder.name}" and len(state) == 8
    blobs = tmp_path / "store" / "blobs"
    assert FolderBlobs(blobs).read(status["adapter_sha256"]) == body


def test_wrong_input_is_one_line_and_code_2(tmp_path: Path, tiny_base: Base) -> None:
    created(tmp_path, tiny_base, rounds=1)
    store, task = ("--store", str(tmp_path / "store")), ("--task", str(tmp_path / "task.toml"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases = {
            ("serve", *store, "--port", port): f"port {port}",
            ("create", *store): "no task",
            ("create", *store, *task, "--base", "./none"): "no base at ./none",
            ("create", *store, *task, "--adapter", "lorra"): "adapter 'lorra' is unknown",
            ("create", *store, *task, "--rounds", "0"): "--rounds 0: 1 to 1000000 is expected",
            (
                "create",
                *store,
                *task,
                "--confidence",
                "2",
            ): "--confidence 2.0: 0.5 to below 1 is expected",
            ("status", "--store", str(tmp_path / "none")): "no store at",
            ("export", *store, "--run", "other", "--out", str(tmp_path / "x")): "no run 'other'",
        }
        for arguments, said in cases.items():
            done = smidgen("coordinator", *arguments)
            assert done.exit_code == 2 and done.stdout == ""
            assert done.stderr.startswith("smidgen coordinator: ") and said in done.stderr
            assert done.stderr.count("\n") == 1

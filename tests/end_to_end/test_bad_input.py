"""Every mistake a newcomer makes: one line that says what to do, no traceback.

Commands and coordinator run in this process, which spares their imports.
"""

import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.client.connection import http_client, nobody
from smidgen.edge_client.client.state import ClientState, Identity
from tests.command_line import smidgen
from tests.coordinator.conftest import served
from tests.coordinator.devices import enrol
from tests.end_to_end.conftest import Scene


def refused(*arguments: str, exit_code: int = 2) -> str:
    done = smidgen(*arguments)
    assert done.exit_code == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("smidgen ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def client(scene: Scene, url: str, data: Path, *more: str) -> tuple[str, ...]:
    state = str(scene.folder / "state" / "x")
    where = ("--coordinator", url, "--data", str(data), "--state", state, "--name", "x")
    base = () if "--base" in more else ("--base", str(scene.base.folder))
    return ("client", "run", "--until", "finished", *where, *base, *more)


@pytest.fixture
def url(scene: Scene) -> Iterator[str]:
    scene.create(1, 1, 1)
    with closing(Store(scene.folder / "store")) as store, served(store) as (_, http):
        yield str(http.base_url).rstrip("/")


def enrolled(scene: Scene, url: str) -> None:
    """Device x, enrolled."""
    with http_client(url, nobody()) as http:
        device = enrol(http, scene.token, "x")
    known = Identity(url, device.key, device.device_id, "x")
    ClientState(scene.folder / "state" / "x").keep_identity(known)


def test_a_wrong_token(scene: Scene, url: str) -> None:
    said = refused(*client(scene, url, scene.data("x"), "--token", "wrong"))
    assert "check --token" in said
    assert not (scene.folder / "state" / "x").exists()


def test_a_home_that_cannot_be_written(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/none")  # nor by root
    given = ("--coordinator", "http://127.0.0.1:9", "--data", str(scene.data("x")), "--token", "t")
    said = refused("client", "run", *given, "--base", str(scene.base.folder))
    assert "state folder /proc/none/" in said and said.endswith("; give another --state")
    out = ("--out", str(scene.folder / "alone"), "--base", str(scene.base.folder))
    task = scene.folder / "task.toml"
    task.write_text(scene.task)
    line = ("client", "train", "--data", str(scene.data("x")), "--task", str(task), "--epochs", "1")
    assert smidgen(*line, *out).exit_code == 0  # needs no home


def test_a_server_that_is_not_there_leaves_no_state_behind(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    kept = scene.folder / "state" / "x" / "ca.pem"
    given = ("--token", "t", "--patience", "0", "--ca", f"sha256:{'0' * 64}")
    refused(*client(scene, f"https://127.0.0.1:{port}", scene.data("x"), *given), exit_code=1)
    assert not kept.parent.exists()
    kept.parent.mkdir(parents=True)  # the user's own folder stays
    plain = client(scene, f"http://127.0.0.1:{port}", scene.data("x"), *given[:4])
    refused(*plain, exit_code=1)
    assert [*kept.parent.iterdir()] == []


def test_a_base_that_differs_by_one_byte(scene: Scene, url: str) -> None:
    folder = scene.folder / "base"
    shutil.copytree(scene.base.folder, folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    more = ("--token", scene.token, "--base", str(folder))
    said = refused(*client(scene, url, scene.data("x"), *more))
    assert "is not the run's base" in said and "a copy of the coordinator's base" in said


def test_a_coordinator_that_is_not_there(scene: Scene) -> None:
    more = ("--token", "t", "--patience", "1")
    line = client(scene, "http://127.0.0.1:9", scene.data("x"), *more)
    said = refused(*line, exit_code=1)  # the input was right
    assert "no answer from http://127.0.0.1:9" in said and "--patience SECONDS waits" in said


def test_an_empty_data_folder(scene: Scene) -> None:
    (scene.folder / "empty").mkdir()
    said = refused(*client(scene, "http://127.0.0.1:9", scene.folder / "empty"))
    assert "put a labelled.csv with columns text,label there" in said


def test_a_csv_without_the_label_column(scene: Scene) -> None:
    data = scene.folder / "nolabel"
    data.mkdir()
    (data / "labelled.csv").write_text("text,stars\nx,1\n")
    assert "no column `label`" in refused(*client(scene, "http://127.0.0.1:9", data))


def test_a_file_of_unknown_labels(scene: Scene, url: str) -> None:
    data = scene.data("x")
    (data / "labelled.csv").write_text("text,label\nx,rain\ny,wether\n")
    said = refused(*client(scene, url, data, "--token", scene.token))
    assert "labelled.csv, line 2: label 'rain' is not one of security, weather, family" in said
    assert "no other line of the file can be used" in said


def test_a_port_in_use(scene: Scene) -> None:
    scene.create(1, 1, 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        store = ("--store", str(scene.folder / "store"))
        said = refused("coordinator", "serve", *store, "--port", port)
    assert port in said and "--port" in said


def test_a_command_that_is_none(scene: Scene) -> None:
    assert "no command 'trian'" in scene.smidgen("trian", check=False).stderr


def test_a_device_that_the_coordinator_forgot(scene: Scene, url: str) -> None:
    enrolled(scene, url)
    state = ClientState(scene.folder / "state" / "x")
    state.keep_identity(Identity(url, "k" * 44, "d1", "x"))
    said = refused(*client(scene, url, scene.data("x")))
    assert "give --token to enrol this device again" in said


def test_a_device_that_was_revoked(scene: Scene, url: str) -> None:
    enrolled(scene, url)
    store = ("--store", str(scene.folder / "store"))
    assert smidgen("coordinator", "devices", "revoke", "x", *store).exit_code == 0
    said = refused(*client(scene, url, scene.data("x"), "--token", scene.token))
    assert "the coordinator's operator has revoked this device" in said and "--token" not in said


UNLABELLED = [
    b"text",
    b"rain at noon",
    b"   ",
    b"gate " * (1 << 17),  # more is no text; see test_lines
    b"\xff\xfe\x00binary",
    "\u1230\u120b\u121d \u12c8\u12f3\u1304".encode(),
    b"rain  at noon",
    b"rain today",
]


@pytest.mark.slow
def test_unlabelled_texts_of_every_kind_stop_no_client(scene: Scene) -> None:
    scene.create(1, 1, 1, "--labelling")
    (scene.data("x") / "unlabelled.csv").write_bytes(b"\n".join(UNLABELLED))
    scene.client("x", scene.serve(), "--engine", "onnx")
    scene.finish()
    said = scene.log("x")
    assert said.count("rows left out") == 1 and "Traceback" not in said
    assert "line 5: not UTF-8; save it as UTF-8, or give --encoding" in said
    assert "1 empty" in said
    assert (
        "unlabelled texts that are not read: 1 there more than once, 1 labelled by hand, "
        "1 mostly of tokens the base does not know" in said
    )
    assert "2 texts, done" in said  # the rain and the long one


def test_unlabelled_texts_alone_in_a_run_that_does_not_label(scene: Scene, url: str) -> None:
    data = scene.folder / "alone"
    data.mkdir()
    (data / "unlabelled.csv").write_text("text\nrain\n")
    said = refused(*client(scene, url, data, "--token", scene.token))
    assert "in this run devices do not label; put a labelled.csv" in said


def test_a_cache_size_that_is_none(scene: Scene) -> None:
    more = client(scene, "http://127.0.0.1:9", scene.data("x"), "--cache-size", "auto")
    assert "--cache-size 'auto' is not a size; expected such as 512M" in refused(*more)

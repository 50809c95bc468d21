"""A coordinator in a thread, and devices beside it: what a notebook or a test does."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")

import smidgen
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.ready_tasks import find_task
from tests.command_line import smidgen as command
from tests.edge_client.commands.alone import write_data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def create(tiny_base: Base, data: Path, store: Path, **more: Any) -> smidgen.NewRun:
    size: dict[str, Any] = {
        "rounds": 2,
        "min_clients": 2,
        "epochs": 1,
        "tokens": 32,
        "adapter": "lora:2",
    }
    own: dict[str, Any] = {"task": data / "task.toml", "base": tiny_base.folder}
    return smidgen.create_run(store, **(own | size | more))


def test_two_devices_in_threads_train_one_adapter(
    tiny_base: Base, data: Path, tmp_path: Path
) -> None:
    created = create(tiny_base, data, tmp_path / "store")

    def device(name: str) -> smidgen.Summary:
        return smidgen.run_client(
            server.url,
            data,
            created.token,
            base=tiny_base.folder,
            engine="onnx",
            name=name,
            state=tmp_path / name,
        )

    with (
        smidgen.serve(tmp_path / "store", port=0, exit_when_finished=True) as server,
        ThreadPoolExecutor(2) as threads,
    ):
        summaries = list(threads.map(device, ["hall", "attic"]))
        assert server.wait(120)
    assert [one.name for one in summaries] == ["hall", "attic"]
    (run,) = smidgen.runs(tmp_path / "store")
    assert run.is_finished and run.devices == ("attic", "hall") and run == server.runs()[0]
    assert sorted(run.accuracy_by_round) == [0, 1, 2]
    exported = smidgen.export(tmp_path / "store", tmp_path / "exported")
    assert exported.is_trained and exported.round_index == 2
    theirs, ours = exported.folder, Path(summaries[0].adapter)
    weights = "adapter_model.safetensors"
    assert (theirs / weights).read_bytes() == (ours / weights).read_bytes()
    scores = smidgen.evaluate(data, ours, base=tiny_base.folder, engine="onnx")
    assert scores.accuracy == pytest.approx(run.accuracy_by_round[2])


def test_a_server_runs_beside_a_loop_and_ends_with_its_block(
    tiny_base: Base, data: Path, tmp_path: Path
) -> None:
    create(tiny_base, data, tmp_path / "store")

    async def notebook() -> smidgen.Server:
        with smidgen.serve(tmp_path / "store", port=0) as server:
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{server.url}/healthz")).status_code == 200
            assert "serving" in repr(server) and not server.wait(0)
        return server

    server = asyncio.run(notebook())
    assert not server.is_running and "stopped" in repr(server)
    server.stop()
    assert not [one for one in threading.enumerate() if one.name == "coordinator"]
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url)


def test_a_store_is_served_once_at_a_time(tiny_base: Base, data: Path, tmp_path: Path) -> None:
    create(tiny_base, data, tmp_path / "store")
    with (
        smidgen.serve(tmp_path / "store", port=0),
        pytest.raises(smidgen.WrongInput, match="another coordinator serves"),
    ):
        smidgen.serve(tmp_path / "store", port=0)
    with smidgen.serve(tmp_path / "store", port=0) as again:
        assert again.is_running


def test_a_port_that_is_taken_is_raised(tiny_base: Base, data: Path, tmp_path: Path) -> None:
    create(tiny_base, data, tmp_path / "store")
    create(tiny_base, data, tmp_path / "other")
    with smidgen.serve(tmp_path / "store", port=0) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with pytest.raises(smidgen.WrongInput, match=f"port {port}"):
            smidgen.serve(tmp_path / "other", port=port)


def test_a_run_is_an_object_too_and_its_token_is_not_shown(tiny_base: Base, tmp_path: Path) -> None:
    training = smidgen.Training(batch=4, tokens=32)
    run = smidgen.RunConfig("mail", find_task("agnews"), str(tiny_base.folder), training=training)
    created = smidgen.create_run(tmp_path / "store", run)
    assert created.name == "mail" and created.token not in repr(created)
    with pytest.raises(smidgen.WrongInput, match="rounds"):
        smidgen.create_run(tmp_path / "store", run, rounds=3)
    with smidgen.serve(tmp_path / "store", port=0, run=run) as server:
        assert server.created is None and len(server.runs()) == 1


def test_a_run_made_in_python_is_the_one_a_command_makes(
    tiny_base: Base, data: Path, tmp_path: Path
) -> None:
    create(tiny_base, data, tmp_path / "ours", lr=0.01)
    said = ("--task", f"{data}/task.toml", "--base", f"{tiny_base.folder}", "--lr", "0.01")
    size = ("--rounds", "2", "--epochs", "1", "--tokens", "32", "--adapter", "lora:2")
    done = command("coordinator", "create", "--store", f"{tmp_path}/theirs", *said, *size)
    assert done.exit_code == 0, done.stderr
    adapters = [sorted((tmp_path / name / "blobs").iterdir()) for name in ("ours", "theirs")]
    assert [p.name for p in adapters[0]] == [p.name for p in adapters[1]]


def test_no_store_is_raised(tmp_path: Path) -> None:
    for call in (smidgen.runs, smidgen.serve):
        with pytest.raises(smidgen.WrongInput, match="no store at"):
            call(tmp_path / "none")
    assert not (tmp_path / "none").exists()

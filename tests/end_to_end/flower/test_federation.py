"""A real SuperLink, two ordinary SuperNodes and two that are smidgen devices, for whole rounds."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.peft_folder import peft_config
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.tasks.task import read_task
from smidgen.profiling.instruments.child import Processes, running
from smidgen.profiling.instruments.environment import ROOT
from smidgen.profiling.peers import flwr
from smidgen.profiling.wire.flwr import PROJECT as ZERO_COMPUTE
from smidgen.profiling.wire.flwr import free_ports, listens

ADAPTER, ROUNDS, TOKENS = "lora:4@q,v", 2, 32
WITHIN_S = 800  # every message is a process of its own, which loads torch
MESSAGES = ROOT / "simulation" / "data"
APP = Path(__file__).with_name("federation.py")
PROJECT = ZERO_COMPUTE.replace("zero_compute.flwr_app", "federation").replace(
    "zero-compute", "federation"
)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    if reason := flwr.missing():
        pytest.skip(f"flwr: {reason}")
    with running(tmp_path / "logs") as every:
        yield every


def write_texts(folder: Path, node: int) -> None:
    """A quarter of the hub's English messages, as every device of ours has its own."""
    folder.mkdir()
    shutil.copy(MESSAGES / "task.toml", folder / "task.toml")
    with (MESSAGES / "hub_messages.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["language"] == "en"]
    for split, name in (("train", "labelled.csv"), ("test", "test.csv")):
        some = [row for row in rows if row["split"] == split][node::4][:24]
        with (folder / name).open("w", newline="") as file:
            written = csv.DictWriter(file, ["text", "label"], extrasaction="ignore")
            written.writeheader()
            written.writerows(some)


class Federation:
    """The processes of one federation and what its server found."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes, self.folder = processes, folder
        path = f"{flwr.environment() / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        self._environment = flwr.QUIET | {
            "FLWR_HOME": str(folder / "home"),
            "PATH": path,
            "HF_HUB_OFFLINE": "1",
        }

    def start(self, name: str, program: str, *arguments: str, path: str = "") -> None:
        command = [str(flwr.environment() / "bin" / program), *arguments]
        self._processes.start(name, command, self._environment | {"PYTHONPATH": path})

    def run(self, nodes: list[str], said: dict[str, Any]) -> dict[str, Any]:
        """Start all that is needed, and wait for what the server says in the end."""
        ports = free_ports(1 + len(nodes))
        where = ("--insecure", "--port", str(ports[0]))
        self.start("link", "flower-superlink", *where, "--disable-runtime-dependency-installation")
        self._processes.wait(lambda: listens(ports[0]), 120, "the SuperLink to listen")
        for number, (config, port) in enumerate(zip(nodes, ports[1:], strict=True)):
            link = ("--insecure", "--superlink", f"127.0.0.1:{ports[0]}")
            node = (*link, "--port", str(port), "--node-config", config)
            path = str(ROOT) if "texts=" in config else ""  # the others have no smidgen
            self.start(f"node-{number}", "flower-supernode", *node, path=path)
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        known = f'[superlink.here]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n{known}')
        app = self.folder / "app"
        app.mkdir()
        shutil.copy(APP, app / APP.name)
        rows = [f"{key} = {json.dumps(value)}" for key, value in said.items()]
        (app / "pyproject.toml").write_text("\n".join([PROJECT.strip(), *rows]) + "\n")
        self.start("run", "flwr", "run", str(app), "here", "--stream")
        told = Path(said["said"])
        over = lambda: told.exists() or self._processes.is_over("run")  # noqa: E731
        self._processes.wait(over, WITHIN_S, "the rounds to end", 0.2)
        assert told.exists(), self._processes.log("run").read_text()[-3000:]
        return dict(json.loads(told.read_text()))


def settings(folder: Path, nodes: int) -> dict[str, Any]:
    """The app's configuration; the first adapter and PEFT's description of it lie in files."""
    base, spec = open_base(EMBEDDED), parse_adapter(ADAPTER)
    task = read_task(MESSAGES / "task.toml")
    first = first_adapter(base, spec, task, "", 0, TOKENS)
    every: dict[str, Any] = dict(first)
    np.savez(folder / "first.npz", **every)
    config = peft_config(spec, EMBEDDED, base.architecture, first)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return {
        "adapter": ADAPTER,
        "epochs": 2,
        "lr": 0.005,
        "tokens": TOKENS,
        "nodes": nodes,
        "rounds": ROUNDS,
        "path": str(ROOT / "edge_client" / "embedded" / "base"),
        "config": str(folder / "adapter_config.json"),
        "words": json.dumps(dict(task.verbalizer)),
        "first": str(folder / "first.npz"),
        "last": str(folder / "last.npz"),
        "said": str(folder / "said.json"),
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ordinary_clients_and_two_devices_finish_their_rounds(
    processes: Processes, tmp_path: Path
) -> None:
    for node in range(4):
        write_texts(tmp_path / f"texts-{node}", node)
    nodes = [f'peft="{tmp_path}/texts-{node}"' for node in range(2)]
    nodes += [
        f'texts="{tmp_path}/texts-{node}" memory-budget="300M" engine="onnx"' for node in (2, 3)
    ]
    found = Federation(processes, tmp_path).run(nodes, settings(tmp_path, 4))
    assert [one["answers"] for one in found["trained"]] == [4] * ROUNDS
    means = [float(np.mean(one["losses"])) for one in found["trained"]]
    assert means[-1] < means[0] - 0.1
    assert [one["accuracy"] for one in found["judged"]][-1] > 1 / 6
    with np.load(tmp_path / "first.npz") as first, np.load(tmp_path / "last.npz") as last:
        assert set(first.files) == set(last.files)
        assert all(np.isfinite(last[name]).all() for name in last.files)
        assert any(np.abs(last[name] - first[name]).max() > 1e-3 for name in last.files)
    print(f"losses by round {means}, accuracies {[one['accuracy'] for one in found['judged']]}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_device_that_cannot_says_so_in_one_line_of_its_own_and_the_others_go_on(
    processes: Processes, tmp_path: Path
) -> None:
    write_texts(tmp_path / "texts-0", 0)
    nodes = [f'texts="{tmp_path}/texts-0" engine="onnx"', f'texts="{tmp_path}/nowhere"']
    found = Federation(processes, tmp_path).run(nodes, settings(tmp_path, 2))
    assert [one["answers"] for one in found["trained"]] == [1] * ROUNDS
    own = processes.log("node-1").read_text()
    assert "nowhere" in own
    others = processes.log("link").read_text() + processes.log("run").read_text()
    assert "nowhere" not in others

"""The whole system on one machine in three minutes: a coordinator, four devices, one adapter.

Real processes and real HTTP on loopback; the same devices training alone stand beside the result.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import httpx

from edge_client.adapters import initial_adapter, parse_adapter
from edge_client.base import open_base
from edge_client.engine import open_engine
from edge_client.meters import usable_cores
from edge_client.seeds import derive_seed
from edge_client.tasks import read_task
from edge_client.texts import read_folder
from edge_client.trainer import evaluate, train
from edge_client.wire import Training
from profiling.report import draw_rounds
from profiling.rounds import Figure, RoundCost, cost_by_round, read_figures, weighted
from simulation.fleet import Fleet, FleetError, fleet

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Setting:
    """What a demo runs.

    Attributes:
        out: Folder for everything the demo writes.
        base: `embedded`, a folder or a hub name.
        adapter: Such as `lora:8`.
        rounds: Server steps.
        training: Of every device, in a run and alone.
        seed: Root seed.
    """

    out: Path
    base: str
    adapter: str
    rounds: int
    training: Training
    seed: int


@dataclass(frozen=True)
class Result:
    """What a demo found; every figure is measured.

    Attributes:
        accuracy_zero_shot: Of the base itself on the devices' test texts.
        accuracy_final: Of the one federated adapter on the same texts.
        accuracy_alone: Of each device's own adapter on the same texts, mean over devices.
        accuracy_alone_own: Of each device's own adapter on its own test texts, mean over devices.
        costs: By round.
        figures: One per piece of work.
        clients: Number of devices.
        seconds: From the first process to the last.
    """

    accuracy_zero_shot: float
    accuracy_final: float
    accuracy_alone: float
    accuracy_alone_own: float
    costs: tuple[RoundCost, ...]
    figures: tuple[Figure, ...]
    clients: int
    seconds: float

    def summary(self) -> dict[str, Any]:
        """The figures a machine wants, in base units."""
        trained = [figure for figure in self.figures if figure["kind"] == "train"]
        return {
            "accuracy_zero_shot": round(self.accuracy_zero_shot, 4),
            "accuracy_final": round(self.accuracy_final, 4),
            "accuracy_alone": round(self.accuracy_alone, 4),
            "accuracy_alone_own": round(self.accuracy_alone_own, 4),
            "rounds": max(cost.round_index for cost in self.costs),
            "clients": self.clients,
            "bytes_up_per_client_round": round(mean(f["bytes_up"] for f in trained)),
            "bytes_down_per_client_round": round(mean(f["bytes_down"] for f in trained)),
            "requests_per_client_round": mean(f["requests"] for f in trained) + 1,
            "peak_rss_bytes": max(cost.peak_rss_bytes for cost in self.costs),
            "seconds": round(self.seconds, 1),
        }


def run_demo(setting: Setting, folders: Sequence[Path], progress: Progress) -> Result:
    """Run coordinator and devices, then the same devices alone.

    Args:
        setting: What to run.
        folders: One client data folder per device, with a `task.toml` in the first.
        progress: Told what happens and how many rounds are done.

    Raises:
        FleetError: A process ended before its work was done; quotes its last line.
    """
    start = time.monotonic()
    with fleet(setting.out / "logs", max(1, usable_cores() // len(folders))) as processes:
        run_id = _federate(setting, folders, processes, progress)
    progress("the same devices, each alone", setting.rounds)
    figures_path = setting.out / "rounds.jsonl"
    _tool("figures", setting, "--run", run_id, "--out", str(figures_path))
    _tool("export", setting, "--run", run_id, "--out", str(setting.out / "adapter"))
    figures = read_figures(figures_path)
    costs = cost_by_round(figures)
    everywhere, at_home = train_alone(setting, folders)
    evaluated = [figure for figure in figures if figure["kind"] == "evaluate"]
    last = max(figure["round_index"] for figure in evaluated)
    zero_shot = weighted([f for f in evaluated if f["round_index"] == 0], "accuracy")
    final = weighted([f for f in evaluated if f["round_index"] == last], "accuracy")
    result = Result(
        accuracy_zero_shot=math.nan if zero_shot is None else zero_shot,
        accuracy_final=math.nan if final is None else final,
        accuracy_alone=everywhere,
        accuracy_alone_own=at_home,
        costs=tuple(costs),
        figures=tuple(figures),
        clients=len(folders),
        seconds=time.monotonic() - start,
    )
    levels = [("zero-shot", result.accuracy_zero_shot), ("each alone", result.accuracy_alone)]
    title = f"{setting.adapter} on {len(folders)} devices"
    draw_rounds(costs, setting.out / "rounds.png", title, levels)
    return result


def _federate(
    setting: Setting, folders: Sequence[Path], processes: Fleet, progress: Progress
) -> str:
    progress("starting the coordinator", 0)
    training = setting.training
    created = _tool(
        "create",
        setting,
        *("--name", "demo", "--task", str(folders[0] / "task.toml"), "--base", setting.base),
        *("--adapter", setting.adapter, "--rounds", str(setting.rounds)),
        *("--min-clients", str(len(folders)), "--seed", str(setting.seed)),
        *("--epochs", str(training.epochs), "--batch", str(training.batch)),
        *("--lr", str(training.lr), "--tokens", str(training.tokens)),
        "--json",
    )
    run_id, token = created["run_id"], created["token"]
    store = str(setting.out / "coordinator")
    serve = ("coordinator", "serve", "--store", store, "--port", "0", "--exit-when-finished")
    coordinator = processes.start("coordinator", serve)
    url = processes.url_of("coordinator")
    progress("starting the devices", 0)
    for folder in folders:
        client = ("client", "run", "--coordinator", url, "--token", token, "--data", str(folder))
        state = setting.out / "state" / folder.name
        options = ("--base", setting.base, "--name", folder.name, "--state", str(state))
        processes.start(folder.name, (*client, *options))
    _watch(processes, coordinator, f"{url}/v1/runs/{run_id}", progress)
    return str(run_id)


def _watch(
    processes: Fleet, coordinator: "subprocess.Popen[bytes]", url: str, progress: Progress
) -> None:
    """Tell the progress until the coordinator and every client ended by themselves."""
    with httpx.Client(timeout=5.0) as http:
        while any(process.poll() is None for process in processes.processes.values()):
            processes.check()
            try:
                status = http.get(url).json() if coordinator.poll() is None else None
            except httpx.TransportError:
                status = None
            if status is not None:
                progress(str(status["phase"]), max(0, int(status["round_index"]) - 1))
            time.sleep(0.2)
    processes.check()


def train_alone(setting: Setting, folders: Sequence[Path]) -> tuple[float, float]:
    """Train every device for as many rounds with nobody but itself.

    Returns:
        Mean accuracy on all devices' test texts, and mean accuracy on the device's own.
    """
    task, base = read_task(folders[0] / "task.toml"), open_base(setting.base)
    spec = parse_adapter(setting.adapter)
    texts = [read_folder(folder, task.labels) for folder in folders]
    everybody = [example for device in texts for example in device.test]
    engine = open_engine("auto", base, task, spec, setting.training)
    start = initial_adapter(spec, base, len(task.labels), derive_seed(setting.seed, "adapter"))
    everywhere, at_home = [], []
    for folder, device in zip(folders, texts, strict=True):
        engine.load_adapter(start)
        for round_index in range(1, setting.rounds + 1):
            engine.load_adapter(engine.adapter())
            seed = derive_seed(setting.seed, "train", folder.name, round_index)
            train(engine, device.labelled, setting.training, seed)
        everywhere.append(evaluate(engine, everybody).accuracy)
        at_home.append(evaluate(engine, device.test).accuracy)
    engine.close()
    return mean(everywhere), mean(at_home)


def _tool(command: str, setting: Setting, *arguments: str) -> dict[str, Any]:
    """Run one `smidgen coordinator` command on the demo's store; its JSON, if it prints one."""
    store = ("--store", str(setting.out / "coordinator"))
    line = [sys.executable, "-m", "smidgen", "coordinator", command, *store, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise FleetError(done.stderr.strip().splitlines()[-1] if done.stderr else command)
    answer: dict[str, Any] = {}
    if "--json" in arguments:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    return answer

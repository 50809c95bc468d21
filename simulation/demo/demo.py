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
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

import httpx

from edge_client.adapters.peft_folder import read_peft_folder
from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import open_base
from edge_client.engine.opening import open_engine
from edge_client.engine.trainer import evaluate
from edge_client.planning.resources import usable_cores
from edge_client.texts.examples import read_folder
from edge_client.texts.tasks import read_task
from edge_client.wire.figures import Row
from edge_client.wire.messages import Training
from profiling.instruments.machine import this_machine
from profiling.rounds import (
    RoundCost,
    cost_by_round,
    per_client_round,
    read_figures,
)
from profiling.rounds_picture import draw_rounds
from simulation.demo.processes import Fleet, FleetError, fleet

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Setting:
    """What a demo runs.

    Attributes:
        out: Folder for everything the demo writes.
        base: `embedded`, a folder or a hub name.
        adapter: Such as `lora:8`.
        rounds: Server steps.
        training: What every device does in a round, in a run and alone.
        seed: Root seed.
        engines: Dealt to the devices in turn.
    """

    out: Path
    base: str
    adapter: str
    rounds: int
    training: Training
    seed: int
    engines: tuple[str, ...]


@dataclass(frozen=True)
class Compared:
    """What stands beside the federated adapter, on the same test texts.

    Attributes:
        zero_shot: Accuracy of the base without any adapter.
        alone: Accuracy of each device's own adapter on all devices' texts, mean over devices.
        alone_own: Accuracy of each device's own adapter on its own texts, mean over devices.
    """

    zero_shot: float
    alone: float
    alone_own: float


@dataclass(frozen=True)
class Result:
    """What a demo found; every figure is measured.

    Attributes:
        accuracy_final: Accuracy of the one federated adapter on all devices' test texts.
        compared: What stands beside it.
        costs: What each round cost and gave.
        figures: One per piece of work.
        engines: The engine of each device, by its name.
        seconds: Time from the first process to the last.
    """

    accuracy_final: float
    compared: Compared
    costs: tuple[RoundCost, ...]
    figures: tuple[Row, ...]
    engines: dict[str, str]
    seconds: float

    def summary(self) -> dict[str, Any]:
        """The figures a machine wants, in base units."""
        return {
            "accuracy_zero_shot": round(self.compared.zero_shot, 4),
            "accuracy_final": round(self.accuracy_final, 4),
            "accuracy_alone": round(self.compared.alone, 4),
            "accuracy_alone_own": round(self.compared.alone_own, 4),
            "rounds": max(cost.round_index for cost in self.costs),
            "clients": len(self.engines),
            "engines": self.engines,
            "bytes_up_per_client_round": round(per_client_round(self.figures, "bytes_up")),
            "bytes_down_per_client_round": round(per_client_round(self.figures, "bytes_down")),
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
    final = costs[-1].accuracy
    result = Result(
        accuracy_final=math.nan if final is None else final,
        compared=train_alone(setting, folders),
        costs=tuple(costs),
        figures=tuple(figures),
        engines=engine_by_name(setting, folders),
        seconds=time.monotonic() - start,
    )
    levels = [("zero-shot", result.compared.zero_shot), ("each alone", result.compared.alone)]
    title = picture_title(setting, folders, run_id)
    draw_rounds(costs, setting.out / "rounds.png", title, levels)
    return result


def picture_title(setting: Setting, folders: Sequence[Path], run_id: str) -> str:
    """Data, base and adapter; then run, day and machine."""
    task, here = read_task(folders[0] / "task.toml"), this_machine()
    texts = sum(len(read_folder(folder, task.labels).labelled) for folder in folders)
    day = time.strftime("%Y-%m-%d")
    return (
        f"{task.name}: {texts:,} labelled texts on {len(folders)} devices; base "
        f"{Path(setting.base).name}, {setting.adapter}\nrun {run_id[:8]}, {day}, "
        f"{here.processor or here.machine}, {here.cores} cores"
    )


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
        *("--prompt-init", prompt_init(folders)),
        "--json",
    )
    run_id, token = created["run_id"], created["token"]
    store = str(setting.out / "coordinator")
    serve = ("coordinator", "serve", "--store", store, "--port", "0", "--exit-when-finished")
    coordinator = processes.start("coordinator", serve)
    url = processes.url_of("coordinator")
    progress("starting the devices", 0)
    engines = engine_by_name(setting, folders)
    for folder in folders:
        client = ("client", "run", "--coordinator", url, "--token", token, "--data", str(folder))
        state = setting.out / "state" / folder.name
        options = ("--base", setting.base, "--name", folder.name, "--state", str(state))
        processes.start(folder.name, (*client, *options, "--engine", engines[folder.name]))
    _watch(processes, coordinator, f"{url}/v1/runs/{run_id}", progress)
    return str(run_id)


def engine_by_name(setting: Setting, folders: Sequence[Path]) -> dict[str, str]:
    """Which engine each device uses."""
    names = [folder.name for folder in folders]
    return dict(zip(names, cycle(setting.engines), strict=False))


def prompt_init(folders: Sequence[Path]) -> str:
    """What a soft prompt starts from: the words it has to choose among."""
    return " ".join([*read_task(folders[0] / "task.toml").words(), "message", ":"])


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


def train_alone(setting: Setting, folders: Sequence[Path]) -> Compared:
    """Train every device for as many rounds with nobody but itself, and score it on all texts."""
    alone, training = setting.out / "alone", setting.training
    engines = engine_by_name(setting, folders)
    with fleet(setting.out / "logs", cores_each=1) as processes:
        for folder in folders:
            data = ("--data", str(folder), "--out", str(alone / folder.name))
            what = ("--base", setting.base, "--adapter", setting.adapter)
            size = ("--rounds", str(setting.rounds), "--seed", str(setting.seed))
            how = ("--epochs", str(training.epochs), "--batch", str(training.batch))
            more = ("--lr", str(training.lr), "--tokens", str(training.tokens))
            start = ("--prompt-init", prompt_init(folders))
            by = ("--engine", engines[folder.name])
            line = ("client", "train", *data, *what, *size, *how, *more, *start, *by)
            processes.start(f"{folder.name}-alone", line)
        processes.wait()
    task, base = read_task(folders[0] / "task.toml"), open_base(setting.base)
    texts = [read_folder(folder, task.labels) for folder in folders]
    everybody = [example for device in texts for example in device.test]
    # LoRA's B starts at zero: this is the base itself, whatever adapter is trained.
    engine = open_engine("auto", base, task, parse_adapter("lora:1"), training)
    zero_shot = evaluate(engine, everybody).accuracy
    engine.close()
    engine = open_engine("auto", base, task, parse_adapter(setting.adapter), training)
    everywhere, at_home = [], []
    for folder, device in zip(folders, texts, strict=True):
        engine.load_adapter(read_peft_folder(alone / folder.name)[1])
        everywhere.append(evaluate(engine, everybody).accuracy)
        at_home.append(evaluate(engine, device.test).accuracy)
    engine.close()
    return Compared(zero_shot, mean(everywhere), mean(at_home))


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

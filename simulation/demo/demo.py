"""The whole system on one machine in about two minutes: a coordinator, four devices, one adapter.

Real processes and real HTTP on loopback; the same devices training alone stand beside the result.
"""

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import numpy as np

from edge_client.adapters.peft_folder import read_peft_folder
from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import open_base
from edge_client.engine.engine import Engine
from edge_client.engine.opening import open_engine
from edge_client.errors import Failed, WrongInput
from edge_client.planning.resources import usable_cores
from edge_client.texts.examples import Example, read_folder
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

SERVER = ("fastapi", "pydantic", "sqlalchemy", "uvicorn")  # of the extra `server`
RUN, ALONE, SCORE = "together", "each alone", "scoring"
ROUND_DONE = re.compile(r"^round (\d+) of \d+", re.MULTILINE)  # in a log of `client train`


class Unfinished(Failed):
    """The run is finished and exported, and what should stand beside it could not be found out.

    Args:
        costs: What each round of the run cost and gave.
        message: Why, and where the run is.
    """

    def __init__(self, costs: Sequence[RoundCost], message: str) -> None:
        super().__init__(message)
        self.costs = tuple(costs)


@dataclass(frozen=True)
class Step:
    """How far a demo is.

    Attributes:
        stage: One of its parts, each of which has a bar of its own.
        doing: What happens in it now.
        done: How much of it is done.
        total: How much there is to do.
        unit: Of what.
    """

    stage: str
    doing: str
    done: int
    total: int
    unit: str = "rounds"


Progress = Callable[[Step], None]


def check_extras() -> list[str]:
    """See before the start whether all that a demo needs is installed.

    Returns:
        What will be missing of its results, in words.

    Raises:
        WrongInput: It cannot run at all; names the extra.
    """
    missing = [name for name in SERVER if find_spec(name) is None]
    if missing:
        raise WrongInput(f"needs {missing[0]!r}; pip install 'smidgen[server,profile]'")
    if find_spec("matplotlib") is None:
        return ["no chart will be drawn: it needs matplotlib; pip install 'smidgen[profile]'"]
    return []


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
        test_texts: Test texts of all devices.
    """

    zero_shot: float
    alone: float
    alone_own: float
    test_texts: int


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
        run_id: The coordinator's id of the run.
    """

    accuracy_final: float
    compared: Compared
    costs: tuple[RoundCost, ...]
    figures: tuple[Row, ...]
    engines: dict[str, str]
    seconds: float
    run_id: str

    def summary(self) -> dict[str, Any]:
        """The figures a machine wants, in base units."""
        return {
            "accuracy_zero_shot": round(self.compared.zero_shot, 4),
            "accuracy_final": round(self.accuracy_final, 4),
            "accuracy_alone": round(self.compared.alone, 4),
            "accuracy_alone_own": round(self.compared.alone_own, 4),
            "rounds": max(cost.round_index for cost in self.costs),
            "clients": len(self.engines),
            "test_texts": self.compared.test_texts,
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
        progress: Told how far it is.

    Raises:
        FleetError: A process ended before its work was done; quotes its last line.
        Unfinished: The same, when the run itself was finished already.
    """
    start = time.monotonic()
    with fleet(setting.out / "logs", max(1, usable_cores() // len(folders))) as processes:
        run_id = _federate(setting, folders, processes, progress)
    figures_path = setting.out / "rounds.jsonl"
    _tool("figures", setting, "--run", run_id, "--out", str(figures_path))
    _tool("export", setting, "--run", run_id, "--out", str(setting.out / "adapter"))
    figures = read_figures(figures_path)
    costs = cost_by_round(figures)
    try:
        compared = train_alone(setting, folders, progress)
    except (Failed, WrongInput, OSError) as error:
        where = f"the run is finished: its adapter is {setting.out / 'adapter'}"
        raise Unfinished(costs, f"{error}; {where}") from error
    final = costs[-1].accuracy
    return Result(
        accuracy_final=math.nan if final is None else final,
        compared=compared,
        costs=tuple(costs),
        figures=tuple(figures),
        engines=engine_by_name(setting, folders),
        seconds=time.monotonic() - start,
        run_id=run_id,
    )


def draw(setting: Setting, folders: Sequence[Path], result: Result) -> Path:
    """The chart of a demo's rounds."""
    path = setting.out / "rounds.png"
    levels = [("zero-shot", result.compared.zero_shot), ("each alone", result.compared.alone)]
    draw_rounds(result.costs, path, picture_title(setting, folders, result.run_id), levels)
    return path


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
    progress(Step(RUN, "starting the coordinator", 0, setting.rounds))
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
    progress(Step(RUN, "starting the devices", 0, setting.rounds))
    engines = engine_by_name(setting, folders)
    for folder in folders:
        client = ("client", "run", "--coordinator", url, "--token", token, "--data", str(folder))
        state = setting.out / "state" / folder.name
        options = ("--base", setting.base, "--name", folder.name, "--state", str(state))
        processes.start(folder.name, (*client, *options, "--engine", engines[folder.name]))
    _watch(processes, coordinator, f"{url}/v1/runs/{run_id}", setting.rounds, progress)
    progress(Step(RUN, "done", setting.rounds, setting.rounds))
    return str(run_id)


def engine_by_name(setting: Setting, folders: Sequence[Path]) -> dict[str, str]:
    """Which engine each device uses."""
    names = [folder.name for folder in folders]
    return dict(zip(names, cycle(setting.engines), strict=False))


def prompt_init(folders: Sequence[Path]) -> str:
    """What a soft prompt starts from: the words it has to choose among."""
    return " ".join([*read_task(folders[0] / "task.toml").words(), "message", ":"])


def _watch(
    processes: Fleet,
    coordinator: "subprocess.Popen[bytes]",
    url: str,
    rounds: int,
    progress: Progress,
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
                done = max(0, int(status["round_index"]) - 1)
                progress(Step(RUN, str(status["phase"]), done, rounds))
            time.sleep(0.2)
    processes.check()


def train_alone(setting: Setting, folders: Sequence[Path], progress: Progress) -> Compared:
    """Train every device for as many rounds with nobody but itself, and score it on all texts."""
    alone, training = setting.out / "alone", setting.training
    engines = engine_by_name(setting, folders)
    names = [f"{folder.name}-alone" for folder in folders]
    with fleet(setting.out / "logs", cores_each=1) as processes:
        for folder, name in zip(folders, names, strict=True):
            data = ("--data", str(folder), "--out", str(alone / folder.name))
            what = ("--base", setting.base, "--adapter", setting.adapter)
            size = ("--rounds", str(setting.rounds), "--seed", str(setting.seed))
            how = ("--epochs", str(training.epochs), "--batch", str(training.batch))
            more = ("--lr", str(training.lr), "--tokens", str(training.tokens))
            start = ("--prompt-init", prompt_init(folders))
            by = ("--engine", engines[folder.name])
            line = ("client", "train", *data, *what, *size, *how, *more, *start, *by)
            processes.start(name, line)
        total = setting.rounds * len(folders)
        processes.wait(lambda: progress(Step(ALONE, "train", _rounds_in(processes, names), total)))
        progress(Step(ALONE, "done", total, total))
    return _compare(setting, folders, progress)


def _rounds_in(processes: Fleet, names: Sequence[str]) -> int:
    """Rounds that processes which train alone have done, by their logs."""
    texts = [(processes.logs / f"{name}.log").read_text(errors="replace") for name in names]
    return sum(max(map(int, ROUND_DONE.findall(text)), default=0) for text in texts)


def _compare(setting: Setting, folders: Sequence[Path], progress: Progress) -> Compared:
    """Score the base and each device's own adapter on all devices' test texts."""
    task, base = read_task(folders[0] / "task.toml"), open_base(setting.base)
    texts = [read_folder(folder, task.labels) for folder in folders]
    everybody = [example for device in texts for example in device.test]
    scoring = _Scoring(len(everybody) * (1 + len(folders)), progress)
    # LoRA's B starts at zero: this is the base itself, whatever adapter is trained.
    engine = open_engine("auto", base, task, parse_adapter("lora:1"), setting.training)
    zero_shot = float(scoring.right(engine, everybody, "the base").mean())
    engine.close()
    engine = open_engine("auto", base, task, parse_adapter(setting.adapter), setting.training)
    everywhere, at_home = [], []
    for number, folder in enumerate(folders):
        engine.load_adapter(read_peft_folder(setting.out / "alone" / folder.name)[1])
        right = scoring.right(engine, everybody, f"{folder.name}'s own")
        everywhere.append(float(right.mean()))
        first = sum(len(device.test) for device in texts[:number])
        own = right[first : first + len(texts[number].test)]
        at_home += [float(own.mean())] if len(own) else []
    engine.close()
    return Compared(zero_shot, mean(everywhere), mean(at_home), len(everybody))


class _Scoring:
    """Scores adapters one after the other and tells how far it is.

    Args:
        total: Texts to be read in all.
        progress: Told after each micro-batch.
    """

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress, self._done = total, progress, 0

    def right(self, engine: Engine, examples: Sequence[Example], doing: str) -> np.ndarray:
        """Which texts are read as what they are; bool, shape (texts)."""
        views = len(engine.encoder.views())
        read = 0

        def on_texts(count: int) -> None:
            nonlocal read
            read += count
            done = self._done + read // views
            self._progress(Step(SCORE, doing, done, self._total, "texts"))

        engine.on_texts = on_texts
        labels = np.array(engine.encoder.labels(examples))
        right: np.ndarray = engine.predict(examples).argmax(axis=1) == labels
        self._done += len(examples)
        return right


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

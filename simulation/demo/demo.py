"""A demo of the whole system in two minutes: a coordinator, four devices, one adapter.

Real processes and real HTTP on loopback; the same devices trained alone stand beside the result.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smidgen.edge_client.client.state import ClientState, Identity
from smidgen.edge_client.errors import Failed, WrongInput, installing
from smidgen.edge_client.personal.choice import Choice
from smidgen.edge_client.planning.resources import usable_cores
from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.texts.examples import read_folder
from smidgen.edge_client.wire.figures import Row
from smidgen.edge_client.wire.messages import DOING
from smidgen.profiling.instruments.child import OWN_STORE, ProcessError
from smidgen.profiling.instruments.environment import this_machine
from smidgen.profiling.rounds.costs import (
    RoundCost,
    cost_by_round,
    per_client_round,
    read_figures,
)
from smidgen.profiling.rounds.picture import draw_rounds
from smidgen.simulation.demo.alone import Compared, choices, draw_personal, train_alone
from smidgen.simulation.demo.setting import (
    RUN,
    Fleet,
    Progress,
    Setting,
    Step,
    engine_by_name,
    fleet,
    prompt_init,
)

COORDINATOR, PERSONAL = "coordinator", "personal.png"
# In its log.
STEP_DONE = re.compile(r"(round \d+ of \d+|before round 1), (\w+) closed")
SERVER = ("fastapi", "pydantic", "sqlalchemy", "uvicorn")  # of the extra `demo`


class Unfinished(Failed):
    """The run is finished and exported, and what should stand beside it could not be found out.

    Args:
        costs: What each round of the run cost and gave.
        message: Why, and where the run is.
    """

    def __init__(self, costs: Sequence[RoundCost], message: str) -> None:
        super().__init__(message)
        self.costs = tuple(costs)


def check_extras() -> list[str]:
    """See before the start whether all that a demo needs is installed.

    Returns:
        What will be missing of its results, in words.

    Raises:
        WrongInput: It cannot run at all; names the extra.
    """
    missing = [name for name in SERVER if find_spec(name) is None]
    if missing:
        raise WrongInput(f"needs {missing[0]!r}; {installing('demo')}")
    if find_spec("matplotlib") is None:
        return [f"no chart will be drawn: it needs matplotlib; {installing('demo')}"]
    return []


@dataclass(frozen=True)
class Result:
    """What a demo found; every figure is measured.

    Attributes:
        compared: The one federated adapter, and what stands beside it.
        costs: What each round cost and gave.
        figures: One per piece of work.
        engines: The engine of each device, by its name.
        seconds: Time from the first process to the last.
        run_id: The coordinator's id of the run.
        personal: What each device found of an adapter of its own; empty where none was asked for.
    """

    compared: Compared
    costs: tuple[RoundCost, ...]
    figures: tuple[Row, ...]
    engines: dict[str, str]
    seconds: float
    run_id: str
    personal: dict[str, Choice]

    def summary(self) -> dict[str, Any]:
        """The figures a machine wants, in base units."""
        compared = self.compared
        shares = {
            "zero_shot": compared.zero_shot,
            "final": compared.together,
            "alone": compared.alone,
            "alone_own": compared.alone_own,
        }
        return {
            **{
                f"{compared.measure.replace(' ', '_')}_{who}": round(share, 4)
                for who, share in shares.items()
            },
            "rounds": max(cost.round_index for cost in self.costs),
            "clients": len(self.engines),
            "test_texts": compared.test_texts,
            "engines": self.engines,
            "bytes_up_per_client_round": round(per_client_round(self.figures, "up")),
            "bytes_down_per_client_round": round(per_client_round(self.figures, "down")),
            "peak_rss_bytes": max(cost.peak_rss_bytes for cost in self.costs),
            "seconds": round(self.seconds, 1),
            **(
                {"personal": {k: asdict(v) for k, v in self.personal.items()}}
                if self.personal
                else {}
            ),
        }


def run_demo(setting: Setting, folders: Sequence[Path], progress: Progress) -> Result:
    """Run coordinator and devices, then the same devices alone.

    Args:
        setting: What to run.
        folders: One client data folder per device, with a `task.toml` in the first.
        progress: Told how far it is.

    Raises:
        ProcessError: A process ended before its work was done; quotes its last line.
        Unfinished: The same, when the run itself was finished already.
    """
    start = time.monotonic()
    with fleet(setting.out / "logs", max(1, usable_cores() // len(folders))) as processes:
        run_id = _federate(setting, folders, processes, progress)
    figures_path, base = setting.out / "rounds.jsonl", ("--base", setting.base)
    _tool("figures", setting, "--run", run_id, "--out", str(figures_path))
    _tool("export", setting, "--run", run_id, "--out", str(setting.out / "adapter"), *base)
    figures = read_figures(figures_path)
    costs = cost_by_round(figures)
    try:
        compared = train_alone(setting, folders, progress)
    except (Failed, WrongInput, OSError) as error:
        raise Unfinished(costs, f"{error}; {_where(setting)}") from error
    return Result(
        compared=compared,
        costs=tuple(costs),
        figures=tuple(figures),
        engines=engine_by_name(setting, folders),
        seconds=time.monotonic() - start,
        run_id=run_id,
        personal=choices(setting, folders) if setting.is_personal else {},
    )


def draw(setting: Setting, folders: Sequence[Path], result: Result) -> Path:
    """Draw the chart of a demo's rounds.

    Raises:
        Failed: It cannot be written; says where the run is.
    """
    path, measure = setting.out / "rounds.png", result.compared.measure
    levels = [("zero-shot", result.compared.zero_shot), ("each alone", result.compared.alone)]
    title = picture_title(setting, folders, result.run_id)
    try:
        # Rounds are drawn by accuracy, with which nothing else is compared.
        draw_rounds(result.costs, path, title, levels if measure == "accuracy" else ())
    except (Failed, WrongInput, OSError) as error:
        raise Failed(f"the chart: {error}; {_where(setting)}") from error
    if result.personal:
        own = "the adapter of all, and each home's own, on its own test texts"
        draw_personal(result.personal, setting.out / PERSONAL, f"{own}\n{title}")
    return path


def _where(setting: Setting) -> str:
    return f"the run is finished: its adapter is {setting.out / 'adapter'}"


def picture_title(setting: Setting, folders: Sequence[Path], run_id: str) -> str:
    """Data, base and adapter; then run, day and machine."""
    task, here = read_task(folders[0] / "task.toml"), this_machine()
    texts = sum(len(read_folder(folder, task).labelled) for folder in folders)
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
    processes.start(COORDINATOR, serve)
    url = processes.url_of(COORDINATOR)
    progress(Step(RUN, "starting the devices", 0, setting.rounds))
    engines = engine_by_name(setting, folders)
    for folder in folders:
        client = ("client", "run", "--coordinator", url, "--token", token, "--data", str(folder))
        state = setting.out / "state" / folder.name
        ClientState(state).keep_identity(Identity("", key_of(setting.seed, folder.name)))
        options = ("--base", setting.base, "--name", folder.name, "--state", str(state))
        more = ["--engine", engines[folder.name], "--until", "finished"]
        more += ["--personal"] if setting.is_personal else []
        processes.start(folder.name, (*client, *options, *more))
    _watch(processes, setting.rounds, progress)
    progress(Step(RUN, "done", setting.rounds, setting.rounds))
    return str(run_id)


def key_of(seed: int, name: str) -> str:
    """A demo's device is the same device in each demo of a seed, so that its bytes are equal.

    Whoever knows the seed knows the key: it opens nothing but a coordinator on loopback.
    """
    return "k" + hashlib.sha256(f"smidgen demo {seed} {name}".encode()).hexdigest()


def _watch(processes: Fleet, rounds: int, progress: Progress) -> None:
    """Tell the progress until the coordinator and every client ended by themselves."""

    def tell() -> None:
        said = (processes.logs / f"{COORDINATOR}.log").read_text(errors="replace")
        steps = STEP_DONE.findall(said)
        done = sum(kind == DOING["train"] for _, kind in steps)
        doing = steps[-1][1] if steps else "starting the devices"
        progress(Step(RUN, doing, min(done, rounds), rounds))

    processes.wait(tell)


def _tool(command: str, setting: Setting, *arguments: str) -> dict[str, Any]:
    """Run one `smidgen coordinator` command on the demo's store; its JSON, if it prints one."""
    store = ("--store", str(setting.out / "coordinator"))
    line = [sys.executable, "-m", "smidgen", "coordinator", command, *store, *arguments]
    own = {**os.environ, **OWN_STORE}
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=own)
    if done.returncode:
        raise ProcessError(done.stderr.strip().splitlines()[-1] if done.stderr else command)
    answer: dict[str, Any] = {}
    if "--json" in arguments:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    return answer

"""What a run is: base, adapter, task, training and rounds, from a TOML file and then flags.

name = "mail"
adapter = "lora:8@q,v"
rounds = 20
task = "task.toml"          # relative to this file; or a [task] table
[training]
lr = 0.002
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from coordinator.selection import cohort_size
from edge_client.adapters import parse_adapter
from edge_client.base import EMBEDDED
from edge_client.tasks import Task, read_task, task_from_mapping
from edge_client.wire import Training

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library, before it moved into Python
    import tomli as tomllib


class ConfigError(ValueError):
    """A run that cannot be read or makes no sense."""


def _demand(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True)
class RunConfig:
    """One run, as its owner described it.

    Attributes:
        name: For people; 1 to 64 characters.
        task: Labels, patterns and verbalizer.
        base: `embedded`, a folder or a hub name, as typed.
        adapter: Adapter spec, such as `lora:8@q,v`.
        prompt_init: Text a soft prompt starts from; empty for random words.
        training: How a device trains in one round.
        rounds: Server steps until the run is finished.
        fraction: C of FedAvg, share of the devices asked per round, above 0 and at most 1.
        min_clients: Devices that must have asked for work before the first round.
        min_updates: Updates without which no round is closed.
        deadline_s: Seconds after which a step stops waiting for those who have not answered.
        evaluate_every: Rounds between evaluations; 0 for only before the first and after the last.
        seed: Root seed of the run.

    Raises:
        ConfigError: A value outside its range; names it.
    """

    name: str
    task: Task
    base: str = EMBEDDED
    adapter: str = "lora:8@q,v"
    prompt_init: str = ""
    training: Training = field(default_factory=Training)
    rounds: int = 10
    fraction: float = 1.0
    min_clients: int = 2
    min_updates: int = 1
    deadline_s: float = 600.0
    evaluate_every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        _demand(0 < len(self.name) <= 64 and self.name.isprintable(), "name: 1 to 64 characters")
        _demand(bool(self.base), "base: a folder, a hub name or `embedded`")
        parse_adapter(self.adapter)
        _demand(1 <= self.rounds <= 1_000_000, "rounds: 1 to 1000000")
        _demand(0.0 < self.fraction <= 1.0, "fraction: above 0 and at most 1")
        _demand(self.min_clients >= 1, "min_clients: 1 or more")
        _demand(self.min_updates >= 1, "min_updates: 1 or more")
        _demand(0.0 < self.deadline_s < 1e9, "deadline_s: above 0")
        _demand(self.evaluate_every >= 0, "evaluate_every: 0 or more")
        _demand(0 <= self.seed < 2**63, "seed: 0 to 2^63 - 1")
        smallest = cohort_size(self.fraction, self.min_clients)
        _demand(
            self.min_updates <= smallest,
            f"min_updates {self.min_updates} is more than the cohort of {smallest} that fraction "
            f"{self.fraction} of min_clients {self.min_clients} gives; lower it or raise those",
        )


def read_run_config(path: Path | None, overrides: Mapping[str, Any]) -> RunConfig:
    """Read a run file, then let flags override it.

    Args:
        path: The run file, or None if the flags say everything.
        overrides: Values by field of `RunConfig` or `Training`; None leaves the file's. `task` is
            the path of a task file, relative to the working directory.

    Raises:
        ConfigError: The file is missing, no TOML, or has an unknown key or a wrong value.
        TaskError: The task is missing or makes no sense.
        AdapterError: The adapter is outside the grammar.
    """
    table = _read_table(path) if path else {}
    origin = str(path) if path else "flags"
    training = table.get("training", {})
    task = table.get("task")
    _check_keys(table, RunConfig, origin)
    _check_keys(training, Training, f"{origin}: [training]")
    flags = {key: value for key, value in overrides.items() if value is not None}
    training_names = {item.name for item in fields(Training)}
    training = training | {key: flags.pop(key) for key in sorted(training_names & set(flags))}
    if "task" in flags:
        task = asdict(read_task(Path(flags.pop("task"))))
    elif isinstance(task, str):
        task = asdict(read_task((path or Path()).parent / task))
    elif isinstance(task, dict):
        task = asdict(task_from_mapping(task, f"{origin}: [task]"))
    else:
        raise ConfigError(f"{origin}: no task; add `task = FILE` or a [task] table, or use --task")
    merged = {"name": task["name"]} | table | flags | {"task": task, "training": training}
    parse_adapter(merged.get("adapter", RunConfig.adapter))
    try:
        return msgspec.convert(merged, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {error}") from error


def _read_table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"no run file at {path}; write one or give --task FILE") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error


def _check_keys(table: Any, kind: type[Any], origin: str) -> None:
    _demand(isinstance(table, dict), f"{origin}: a table is expected")
    names = [item.name for item in fields(kind)]
    for key in sorted(set(table) - set(names)):
        raise ConfigError(f"{origin}: unknown key {key!r}; known are {', '.join(names)}")

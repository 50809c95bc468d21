"""A run that is created from JSON: as from a run file, but for what lies on the server alone."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import msgspec

from coordinator.config import ConfigError, RunConfig, check_steps
from coordinator.operator.order_schemas import NewRun
from coordinator.presets import laid_under
from coordinator.rounds.schedule import Learning
from coordinator.rounds.scheduling.step import Asynchronous
from coordinator.rounds.selection import DeviceFilter
from coordinator.storage.runs import config_of
from coordinator.storage.store import Store
from edge_client.bases.base import EMBEDDED
from edge_client.errors import WrongInput
from edge_client.tasks.ready_tasks import READY
from edge_client.tasks.task import task_from_mapping
from edge_client.updates.settings import Updates
from edge_client.wire.labelling import Labelling
from edge_client.wire.training import Training

TABLES = {
    "training": Training,
    "learning": Learning,
    "updates": Updates,
    "asynchronous": Asynchronous,
    "labelling": Labelling,
    "devices": DeviceFilter,
}


def config_from(asked: NewRun, store: Store) -> RunConfig:
    """The run that somebody asks for.

    A task comes whole or by a ready-made one's name, and a base by a name under which a run of
    this store has it: what a request names is looked for in no folder and on no hub.

    Raises:
        ConfigError: A value outside its range, an unknown key, a base that no run here has.
        PresetError: No preset has that name.
        TaskError: No ready-made task has that name, or the table makes no sense.
    """
    told = {key: value for key, value in asked.model_dump().items() if value is not None}
    _check_text(told)
    told = laid_under(told, None)
    told["task"] = asdict(_task(told["task"]))
    told.setdefault("name", told["task"]["name"])
    for name, kind in TABLES.items():
        _check_keys(name, told.get(name, {}), {item.name for item in fields(kind)})
    bases = {EMBEDDED, *(config_of(run).base for run in store.runs())}
    if told.get("base", EMBEDDED) not in bases:
        raise ConfigError(
            f"base {told['base'][:80]!r} is not on this coordinator; a run of it trains on one of "
            f"{', '.join(sorted(bases))}: `smidgen coordinator create` brings another"
        )
    try:
        config = msgspec.convert(told, RunConfig)
        config.learning.check_known()
        check_steps(config)
        return config
    except WrongInput as error:
        raise ConfigError(f"the run: learning: {error}") from error
    except (msgspec.ValidationError, OverflowError) as error:
        raise ConfigError(f"the run: {error}") from error


def _check_text(told: Mapping[str, Any]) -> None:
    """Refuse half characters, which JSON can say and no tokenizer or journal can read."""
    try:
        json.dumps(told, ensure_ascii=False).encode()
    except ValueError as error:
        raise ConfigError("the run: a text in it is not Unicode") from error


def _task(given: str | dict[str, Any]) -> Any:
    if isinstance(given, dict):
        return task_from_mapping(given, "task")
    if given not in READY:
        names = ", ".join(READY)
        raise ConfigError(
            f"task: {given[:80]!r} is not ready-made; give a table, or one of {names}"
        )
    return READY[given]


def _check_keys(name: str, table: Mapping[str, Any], known: set[str]) -> None:
    for key in sorted(set(table) - known):
        names = ", ".join(sorted(known))
        raise ConfigError(f"{name}: unknown key {key[:80]!r}; known are {names}")

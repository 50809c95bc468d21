"""What a run is: base, adapter, task, training and rounds, from a TOML file and then flags.

name = "mail"
adapter = "lora:8@q,v"
rounds = 20
task = "task.toml"          # relative to this file; or "agnews"; or a [task] table
[training]
lr = 0.002
[labelling]                 # devices label their own texts; empty for the defaults
keep_last = 0.5
[devices]                   # which devices of the fleet it wants; all of them by default
tags = { site = "kitchen" }

`preset = "silos"` says many of them at once, see `smidgen.coordinator.presets`;
`docs/examples/run.toml` says every key.
"""

import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from smidgen.coordinator.plugins import check_known
from smidgen.coordinator.presets import laid_under
from smidgen.coordinator.rounds.schedule import (
    LORA_MEANS,
    Learning,
    Schedule,
    check_kind,
    check_net,
    check_private,
    check_shares,
    check_together,
)
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.selection import DeviceFilter, cohort_size
from smidgen.edge_client.adapters.spec import LORA_ALPHA, parse_adapter, usual_adapter
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.planning.plan import BudgetError, parse_size
from smidgen.edge_client.tasks.ready_tasks import find_task
from smidgen.edge_client.tasks.task import Task, small_text, task_from_mapping
from smidgen.edge_client.updates.forms import steps_of
from smidgen.edge_client.updates.masks import FEWEST as MASKED_BY
from smidgen.edge_client.updates.privacy import Privacy
from smidgen.edge_client.updates.registry import made
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.fleet import MOST_MIRRORS, NAME, check_mirror, is_name
from smidgen.edge_client.wire.training import Labelling, Training

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library, before it moved into Python
    import tomli as tomllib


class ConfigError(WrongInput):
    """A run that cannot be read or makes no sense."""


_demand = partial(demand, kind=ConfigError)


@dataclass(frozen=True)
class RunConfig(Schedule):
    """One run, as its owner described it; see `Schedule` and `RunSpec` for what is not said here.

    Attributes:
        name: The run's name, see `is_name`.
        task: What devices are asked: labels, tags of words, or masked words.
        base: `embedded`, a folder or a hub name, as typed.
        tell_names: Whether a waiting device is told the names of those that are waited for.
        pack_mirrors: https addresses where devices find the base's pack, as `BASE_ID/FILE`.
        devices: Which devices of the fleet are asked to take part.

    Raises:
        ConfigError: A value outside its range; names it.
    """

    name: str
    task: Task
    base: str = EMBEDDED
    _: KW_ONLY
    tell_names: bool = False
    pack_mirrors: tuple[str, ...] = ()
    devices: DeviceFilter = field(default_factory=DeviceFilter)

    def __post_init__(self) -> None:
        _demand(is_name(self.name), f"name: {NAME} are expected")
        self.check_spec(ConfigError)
        _demand(bool(self.base), "base: a folder, a hub name or `embedded`")
        spec, lora_mean = parse_adapter(self.adapter), self.learning.lora_mean
        known = ", ".join(LORA_MEANS)
        _demand(lora_mean in LORA_MEANS, f"learning: lora_mean: one of {known}")
        if lora_mean == "product":
            _demand(spec.rank > 0, f"learning: lora_mean = product: adapter {spec} has no LoRA")
            said = "learning: lora_mean = product: leave the table [asynchronous] out"
            _demand(self.asynchronous is None, said)
            said = f"learning: lora_mean = product: adapter {spec}: leave alphas by module out"
            _demand(all(one.alpha == LORA_ALPHA for one in spec.ranks), said)
            said = f"learning: lora_mean = product: the mean of adapter {spec} is exact as it is"
            _demand(not spec.form, said)
        _demand(1 <= self.rounds <= 1_000_000, "rounds: 1 to 1000000")
        try:
            check_together(self.learning, self.training, self.updates, self.rounds)
            check_shares(self.learning, self.over_selection, self.asynchronous is not None)
            if spec.net:
                is_labelling = self.labelling is not None
                check_net(
                    spec.net, self.learning, self.training, is_labelling, self.patience, self.keep
                )
        except ValueError as error:
            raise ConfigError(f"learning: {error}") from None
        try:
            check_kind(self.kind, self.learning, self.training, self.labelling is not None)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        _demand(0.0 < self.fraction <= 1.0, "fraction: above 0 and at most 1")
        _demand(0 <= self.max_cohort <= 1_000_000, "max_cohort: 0 to 1000000")
        _demand(1.0 <= self.over_selection <= 10.0, "over_selection: 1 to 10")
        _demand(1 <= self.min_clients <= 1_000_000, "min_clients: 1 to 1000000")
        _demand(1 <= self.min_updates <= 1_000_000, "min_updates: 1 to 1000000")
        _demand(0.0 < self.deadline_s < 1e9, "deadline_s: above 0")
        said = "patience: counts evaluations between rounds, and evaluate_every = 0 has none"
        _demand(not self.patience or self.evaluate_every > 0, said)
        _demand(0 <= self.evaluate_cohort <= 1_000_000, "evaluate_cohort: 0 to 1000000")
        _demand(len(self.pack_mirrors) <= MOST_MIRRORS, f"pack_mirrors: at most {MOST_MIRRORS}")
        for address in self.pack_mirrors:
            check_mirror(address)
        for label in sorted(set(self.labelling.confidences if self.labelling else ())):
            known = ", ".join(self.task.labels)
            _demand(
                label in self.task.labels,
                f"labelling: confidences: {label!r} is not a label of the task; those are {known}",
            )
        least = self.learning.least
        _demand(
            self.min_updates >= least,
            f"learning: mean {self.learning.mean} needs min_updates = {least} or more, so that no "
            f"round is closed with fewer; it is {self.min_updates}",
        )
        smallest = cohort_size(self.fraction, self.min_clients)
        _demand(
            self.min_updates <= smallest,
            f"min_updates {self.min_updates} is more than the cohort of {smallest} that fraction "
            f"{self.fraction} of min_clients {self.min_clients} gives; lower it or raise those",
        )
        if self.updates.secured:
            said = "secure_aggregation: {}, so that no sum is of two"
            most = min(self.min_clients, self.max_cohort or self.min_clients)
            enough = f"min_clients and max_cohort of {MASKED_BY} or more are expected"
            _demand(most >= MASKED_BY, said.format(enough))
            enough = f"min_updates = {MASKED_BY} or more is expected"
            _demand(self.min_updates >= MASKED_BY, said.format(enough))
            _demand(self.asynchronous is None, said.format("leave the table [asynchronous] out"))
            _demand(
                self.over_selection == 1.0,
                "secure_aggregation: who is late drops out of the sum; leave over_selection out",
            )
            _demand(
                self.norm_bound in ("adaptive", 0.0),
                "secure_aggregation: devices bound their updates themselves; leave norm_bound out",
            )
        if self.privacy is not None:
            try:
                check_private(self)
            except ValueError as error:
                raise ConfigError(str(error)) from None
            said = "privacy: rounds that overlap share devices; leave asynchronous out"
            _demand(self.asynchronous is None, said)
            delta, least = self.privacy.delta, self.min_clients
            apart = self.privacy.separation * self.min_updates
            _demand(
                least >= apart,
                f"privacy: separation {self.privacy.separation} leaves 1 in as many devices for a "
                f"round: min_clients = {apart} or more is expected; it is {least}",
            )
            _demand(
                delta * least < 1.0,
                f"privacy: delta {delta:g} is not below 1 / min_clients = {1 / least:g}; lower it",
            )
        if self.asynchronous is not None:
            buffer = self.asynchronous.buffer
            said = "leave steps out" if self.updates.steps else "up and down are float32 alone"
            _demand(self.updates.is_plain, f"updates: {said} in asynchronous rounds")
            _demand(
                not steps_of(self.adapter),
                f"asynchronous: adapter {spec}: rounds send different tensors and cannot overlap",
            )
            _demand(
                not self.training.scaffold,
                "scaffold: not in asynchronous rounds; leave out one of the two",
            )
            _demand(
                self.over_selection == 1.0,
                "over_selection: asynchronous rounds wait for nobody; leave it out",
            )
            said = "asynchronous: concurrency says how many train; leave {} out"
            _demand(self.fraction == 1.0, said.format("fraction"))
            _demand(not self.max_cohort, said.format("max_cohort"))
            _demand(
                not buffer or self.min_updates <= buffer,
                f"min_updates {self.min_updates} is more than the buffer of {buffer}; lower it",
            )
        _demand(
            not self.max_cohort or self.min_updates <= self.max_cohort,
            f"min_updates {self.min_updates} is more than max_cohort {self.max_cohort}; lower it",
        )

    @property
    def labels(self) -> tuple[str, ...]:
        return self.task.labels

    @property
    def kind(self) -> str:
        return self.task.kind


def read_run_config(path: Path | None, overrides: Mapping[str, Any]) -> RunConfig:
    """Read a run file, then let flags override it.

    Args:
        path: The run file, or None if the flags say everything.
        overrides: Values by field of `RunConfig`, `Training`, `Labelling` or `DeviceFilter`; None
            leaves the file's, and `tags` go beside the file's. `task` is a task file, relative to
            the working directory, or a ready-made one. `labelling` says whether devices label; any
            of its fields says so too. `preset` goes before the file's.

    Raises:
        ConfigError: The file is missing or not TOML, or has an unknown key or a wrong value.
        TaskError: The task is missing or makes no sense.
        AdapterError: The adapter is outside the grammar.
        PresetError: No preset has the name that is said.
    """
    origin = str(path) if path else "flags"
    flags = {key: value for key, value in overrides.items() if value is not None}
    table = _with_training(_read_table(path) if path else {}, flags)
    table = laid_under(table, flags.pop("preset", None))
    task = table.get("task")
    _check_names(table, [*_names(RunConfig), "preset"], origin)
    training = _merged(table, "training", Training, flags, origin)
    learning = _merged(table, "learning", Learning, {}, origin)
    updates = _merged(table, "updates", Updates, {}, origin)
    asynchronous = _merged(table, "asynchronous", Asynchronous, {}, origin)
    privacy = _merged(table, "privacy", Privacy, {}, origin)
    is_labelling = flags.pop("labelling", False)
    labelling = _merged(table, "labelling", Labelling, flags, origin)
    devices = _devices(table.get("devices", {}), flags, f"{origin}: [devices]")
    if "task" in flags:
        asked = find_task(flags.pop("task"))
    elif isinstance(task, str):
        asked = find_task(task, (path or Path()).parent)
    elif isinstance(task, dict):
        asked = task_from_mapping(task, f"{origin}: [task]")
    else:
        todo = "add `task = FILE` or a [task] table, or use --task" if path else "use --task"
        where = f"{path}: " if path else ""
        raise ConfigError(f"{where}no task; {todo}, with a file or the name of a ready-made one")
    merged = {"name": asked.name} | table | flags | {"task": asdict(asked), "training": training}
    merged |= {"learning": learning, "updates": updates}
    merged["devices"] = devices
    if "asynchronous" in table:
        merged["asynchronous"] = asynchronous
    if "privacy" in table:
        merged["privacy"] = privacy
    if is_labelling or labelling or "labelling" in table:
        merged["labelling"] = labelling
    if "adapter" not in merged:
        merged["adapter"] = usual_adapter(asked, RunConfig.adapter)
    _demand(
        isinstance(merged["adapter"], str),
        f'{origin}: adapter: a text is expected, such as "{RunConfig.adapter}"',
    )
    parse_adapter(merged["adapter"])
    try:
        config = msgspec.convert(merged, RunConfig)
        check_known(config.learning)
        check_steps(config)
        return config
    except ConfigError:
        raise
    except WrongInput as error:
        raise ConfigError(f"{origin}: learning: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(_said_of_flag(str(error), overrides) or f"{origin}: {error}") from error


def _said_of_flag(said: str, overrides: Mapping[str, Any]) -> str:
    """The same of the option that gave the value outside its range; empty where none did."""
    name, _, expected = said.partition(" - at `$")[0].partition(": ")
    value = overrides.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    option = name.removesuffix("_s").replace("_", "-")
    return f"--{option} {value}: {expected} is expected"


def _read_table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(small_text(path))
    except OSError as error:
        raise ConfigError(f"no run file at {path}; write one or give --task FILE") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _with_training(table: Mapping[str, Any], flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run file with what flags say of training: a preset goes by the optimizer that is meant."""
    chosen = {name: flags[name] for name in _names(Training) if name in flags}
    inner = table.get("training", {})
    is_table = isinstance(inner, dict)
    return {**table, "training": {**inner, **chosen}} if chosen and is_table else table


def _merged(
    table: Mapping[str, Any], name: str, kind: type[Any], flags: dict[str, Any], origin: str
) -> dict[str, Any]:
    """One table of the run file with the flags that override it, which are taken out of `flags`."""
    inner = table.get(name, {})
    _check_keys(inner, kind, f"{origin}: [{name}]")
    names = {item.name for item in fields(kind)}
    return dict(inner) | {key: flags.pop(key) for key in sorted(names & set(flags))}


def _devices(table: Any, flags: dict[str, Any], origin: str) -> dict[str, Any]:
    """The table of a run's devices, with the flags that override it, taken out of `flags`."""
    names = ["least_memory" if n == "least_memory_bytes" else n for n in _names(DeviceFilter)]
    _check_names(table, names, origin)
    tags = table.get("tags", {})
    _demand(
        isinstance(tags, dict),
        f'{origin}: tags: a table is expected, such as {{ site = "kitchen" }}',
    )
    merged = dict(table) | {key: flags.pop(key) for key in names if key in flags}
    if isinstance(merged.get("tags"), dict):
        merged["tags"] = tags | merged["tags"]
    if "least_memory" in merged:
        size = str(merged.pop("least_memory"))
        merged["least_memory_bytes"] = 0 if size == "0" else _size(f"{origin}: least_memory", size)
    return merged


def _size(name: str, text: str) -> int:
    try:
        return parse_size(name, text, "0 for any")
    except BudgetError as error:
        raise ConfigError(str(error)) from error


def _check_keys(table: Any, kind: type[Any], origin: str) -> None:
    _check_names(table, _names(kind), origin)


def _names(kind: type[Any]) -> list[str]:
    return [item.name for item in fields(kind)]


def _check_names(table: Any, names: list[str], origin: str) -> None:
    _demand(isinstance(table, dict), f"{origin}: a table is expected")
    for key in sorted(set(table) - set(names)):
        raise ConfigError(f"{origin}: unknown key {key!r}; known are {', '.join(names)}")


def check_steps(config: RunConfig) -> None:
    """Refuse update steps that this process does not know.

    Raises:
        ConfigError: Names one, or the package that cannot be used.
    """
    try:
        made(config.update_steps)
    except (WrongInput, Failed) as error:
        raise ConfigError(f"updates: {error}") from error

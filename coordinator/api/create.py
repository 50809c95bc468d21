"""Creating a run in a store, also from an adapter that is there; and where a store's runs stand.

Also the line that is pasted on a device, as `create`, `serve` and `tokens new` print it.
"""

import shlex
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from smidgen.coordinator.api.stores import AtStore, Place, new_store, open_store
from smidgen.coordinator.config import ConfigError, RunConfig, read_run_config
from smidgen.coordinator.plugins import know_folder
from smidgen.coordinator.rounds.history import history_of
from smidgen.coordinator.storage import runs as stored
from smidgen.coordinator.storage.database import StoreError, place_of
from smidgen.coordinator.storage.runs import NewRun as NewRun
from smidgen.coordinator.storage.runs import Start, adapters_there, config_of, find_run, status_of
from smidgen.coordinator.storage.store import Run, Store
from smidgen.coordinator.upkeep.export import ranges
from smidgen.edge_client.adapters.initial import fitting
from smidgen.edge_client.adapters.peft_folder import is_exported, read_peft_folder
from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.spec import AdapterError, AdapterSpec, parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED, Base, BaseName
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import AdapterState, decode_adapter

NAMED = ("best", "last")


def start_of(store: Store, named: str) -> Start:
    """What `create --from` names.

    Args:
        store: Where RUN@N is looked for.
        named: A PEFT folder, or RUN@N: the adapter of a run of this store after its round N.

    Raises:
        WrongInput: Neither, or an adapter that is no longer kept.
    """
    if Path(named).is_dir():
        return lambda base, task: _of_folder(Path(named), base, task)
    run_name, sign, index = named.rpartition("@")
    is_number = index.isascii() and index.isdecimal() and len(index) < 8
    if not (sign and run_name and (is_number or index in NAMED)):
        raise AdapterError(
            f"--from {named[:80]}: no such folder; a PEFT adapter folder is expected, or RUN@N: "
            "the adapter of a run of this store after its round N (or best, or last)"
        )
    return _of_run(store, named, run_name, index)


def _of_folder(folder: Path, base: Base, task: Task) -> tuple[AdapterSpec, AdapterState]:
    if not is_exported(folder):
        return read_peft_adapter(folder, base, task)
    origin, state = read_peft_folder(folder, base)
    spec = parse_adapter(origin.adapter)
    return spec, fitting(folder, spec, base, task, state)


def _of_run(store: Store, named: str, run_name: str, said: str) -> Start:
    run = find_run(store, run_name)
    _, past = history_of(run.adapter_sha256, store.events(run.run_id))
    there, last = adapters_there(store, run), max(past.adapters)
    if said == "last":  # of a run that went back from its best round what it went back to
        there = {last: past.adapters[last]}
    if said == "best" and past.best is None:
        raise StoreError(f"--from {named}: no round was evaluated on any text yet")
    index = {"best": past.best_round or 0, "last": last}[said] if said in NAMED else int(said)
    if index > last:
        raise StoreError(f"--from {named}: run {run_name} has closed {last} rounds so far")
    if index not in there:
        raise StoreError(
            f"--from {named}: the adapter of round {index} is no longer kept (--keep-rounds); "
            f"adapters are there of rounds {ranges(list(there))}"
        )
    body = store.read(there[index])

    def start(base: Base, task: Task) -> tuple[AdapterSpec, AdapterState]:
        if run.base_id != base.base_id:
            raise AdapterError(
                f"--from {named} was trained on base {run.base_reference} ({run.base_id[:12]}), "
                f"not on {base.name} ({base.base_id[:12]}); give --base with it"
            )
        spec = parse_adapter(config_of(run).adapter)
        return spec, fitting(Path(named), spec, base, task, decode_adapter(body))

    return start


def join_line(token: str, url: str, ca: str | None, base: str = EMBEDDED) -> str:
    """One line for a shell; FOLDER stands for the device's texts. It ends with the run.

    Args:
        token: Lets the device in.
        url: The coordinator's address.
        ca: Whom the device believes; None without TLS.
        base: The run's base, as typed. The path of a folder or file is the coordinator's alone: the
            device is told its last part.
    """
    words = ["smidgen", "client", "run", "--coordinator", url]
    if ca is not None:
        words += ["--ca", ca]
    if base != EMBEDDED:
        words += ["--base", _base_there(base)]
    words += ["--data", "FOLDER", "--until", "finished"]
    return f"SMIDGEN_TOKEN={shlex.quote(token)} {shlex.join(words)}"


def _base_there(base: str) -> str:
    place = Path(base)
    if place.is_dir():
        return f"FOLDER-OF-{place.resolve().name}"
    return f"FILE-OF-{place.name}" if place.is_file() else base


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        run_id: Its id.
        name: Its name.
        phase: `waiting`, `train`, `evaluate`, `label` or `finished`.
        round_index: The round that it is in, or the last one.
        rounds: Rounds until it is finished.
        devices: Names of those that joined.
        accuracy_by_round: Share of right labels, or masked words, over all devices' test texts; 0
            is before any training. Empty of tagging.
        f1_by_round: F1 of entities, words and type right, likewise; of tagging.
        perplexity_by_round: Of masked words, likewise.
    """

    run_id: str
    name: str
    phase: str
    round_index: int
    rounds: int
    devices: tuple[str, ...]
    accuracy_by_round: dict[int, float]
    f1_by_round: dict[int, float] = field(default_factory=dict)
    perplexity_by_round: dict[int, float] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        return self.phase == "finished"


def create_run(
    store: AtStore,
    run: RunConfig | Place | None = None,
    *,
    task: Place | None = None,
    name: str | None = None,
    preset: str | None = None,
    base: BaseName | None = None,
    adapter: str | None = None,
    prompt_init: str | None = None,
    rounds: int | None = None,
    fraction: float | None = None,
    min_clients: int | None = None,
    evaluate_cohort: int | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    tokens: int | None = None,
    optimizer: str | None = None,
    momentum: float | None = None,
    proximal: float | None = None,
    scaffold: bool = False,
    adjusted: bool = False,
    deadline: float | None = None,
    seed: int | None = None,
    labelling: bool = False,
    infer_every: int | None = None,
    infer_clients: int | None = None,
    keep_first: float | None = None,
    keep_last: float | None = None,
    confidence: float | None = None,
    tag: Mapping[str, str] | None = None,
    least_memory: str | None = None,
    share: float | None = None,
    start: BaseName | None = None,
    plugins: Place | None = None,
    database: str = "",
    blobs: str = "",
) -> NewRun:
    """Create a run: from a `RunConfig`, or from a run file and keywords, which go before the file.

        created = smidgen.create_run("store", task="agnews", rounds=5, min_clients=2)

    What neither file nor keyword says has `RunConfig`'s default, `Training`'s or `Labelling`'s.

    Args:
        store: Folder of the coordinator's store; created if new.
        run: Run file (TOML), or a `RunConfig` of the whole run; not needed with a task.
        task: A task.toml or the name of a ready-made task (see `smidgen client tasks`).
        name: Unique name of the run, 1 to 64 characters; default: the task's.
        preset: Named set of defaults for what neither run file nor options set: `silos`, for a few
            large data holders.
        base: Frozen base model: folder, hub name or `embedded` (default).
        adapter: What to train: `lora:8`, `lora:8@q,v`, `prompt:8`, `bias`, `head`, or with `+head`;
            default `lora:8@q,v`, for tagging `lora:8@q,v+head`.
        prompt_init: With `prompt:N`, the text it starts from; default: random words.
        rounds: Training rounds, 1 or more; default 10.
        fraction: Share of the devices to train in a round, above 0 to 1; default 1.
        min_clients: Devices to wait for before the first round; default 2.
        evaluate_cohort: Devices asked to evaluate an adapter; default 0 (all present).
        epochs: Passes over a device's texts per round; default 4.
        batch: Texts per optimizer step; default 8.
        lr: Learning rate on the devices; default 0.005.
        tokens: Longest input in tokens, 8 or more; longer texts are cut; default 128.
        optimizer: Optimizer on the devices: `adamw` (default) or `sgd`, which needs a larger
            learning rate.
        momentum: Momentum of `sgd`, 0 to below 1; default 0.
        proximal: FedProx mu: pulls devices back to the adapter they received; default 0 (off).
        scaffold: Use SCAFFOLD's control variates; needs `sgd` without momentum and proximal.
        adjusted: Correct the loss for each device's label mix, so that it does not unlearn labels
            it lacks.
        deadline: Seconds after which a step goes on without late devices; default 600.
        seed: Random seed, 0 or more; equal seeds give equal runs; default 0.
        labelling: Let devices pseudo-label their own texts and train on them; implied by
            `confidence` and by the `infer_` and `keep_` options.
        infer_every: Label before every Nth round; default 1.
        infer_clients: Devices asked to label each time; default 0 (all present).
        keep_first: Share of its texts a device may label before round 1, above 0 to 1; default 0.1.
        keep_last: The same before the last round, linear in between; default 0.5.
        confidence: Minimum confidence of a pseudo-label, 0.5 to below 1; default 0.9.
        tag: Tags that a device must have to be asked, such as `{"site": "kitchen"}`.
        least_memory: Memory that a device must have, such as `2G`; default: any.
        share: Share of the devices that meet the conditions, above 0 to 1; default 1.
        start: PEFT folder to start from, or `RUN@N`: the adapter of a run in this store after round
            N (or `best`, `last`).
        plugins: Plugin folder, as for `serve --plugins`; the run file may use its names.
        database: URL of a PostgreSQL database shared by several machines; default: SQLite in the
            folder.
        blobs: Where adapters and updates are stored, as `s3://BUCKET/PREFIX`; default: the folder.

    Raises:
        WrongInput: A value outside its range, no such base or task, a name that is taken, or tags
            that none of the devices has.
    """
    if plugins is not None:
        know_folder(Path(plugins))
    keywords = {
        "task": None if task is None else str(task),
        "name": name,
        "preset": preset,
        "base": None if base is None else str(base),
        "adapter": adapter,
        "prompt_init": prompt_init,
        "rounds": rounds,
        "fraction": fraction,
        "min_clients": min_clients,
        "evaluate_cohort": evaluate_cohort,
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "tokens": tokens,
        "optimizer": optimizer,
        "momentum": momentum,
        "proximal": proximal,
        "scaffold": scaffold or None,
        "adjusted": adjusted or None,
        "deadline_s": deadline,
        "seed": seed,
        "labelling": labelling,
        "infer_every": infer_every,
        "infer_clients": infer_clients,
        "keep_first": keep_first,
        "keep_last": keep_last,
        "confidence": confidence,
        "tags": tag,
        "least_memory": least_memory,
        "share": share,
    }
    config = _config(run, keywords)
    with closing(new_store(place_of(store, database, blobs))) as opened:
        return add_run(opened, config, None if start is None else start_of(opened, str(start)))


def _config(run: RunConfig | Place | None, keywords: Mapping[str, object]) -> RunConfig:
    if not isinstance(run, RunConfig):
        return read_run_config(None if run is None else Path(run), keywords)
    said = [key for key, value in keywords.items() if value not in (None, False)]
    demand(
        not said,
        f"a RunConfig says the whole run; came {', '.join(said)} beside it: use "
        "dataclasses.replace",
        ConfigError,
    )
    return run


def add_run(store: Store, config: RunConfig, start: Start | None = None) -> NewRun:
    return stored.create_run(store, config, time.time(), start)


def runs(store: AtStore, *, database: str = "", blobs: str = "") -> list[RunStatus]:
    """Where every run of a store stands, the oldest first; also while it is served.

    Args:
        store: Folder of a store that `create_run` made.
        database: URL of a PostgreSQL database shared by several machines; default: SQLite in the
            folder.
        blobs: Where adapters and updates are stored, as `s3://BUCKET/PREFIX`; default: the folder.

    Raises:
        WrongInput: There is no store.
    """
    with closing(open_store(place_of(store, database, blobs))) as opened:
        return [_status(opened, run) for run in opened.runs()]


def _status(store: Store, run: Run) -> RunStatus:
    found = status_of(store, run)
    return RunStatus(
        run_id=found["run_id"],
        name=found["name"],
        phase=found["phase"],
        round_index=found["round_index"],
        rounds=found["rounds"],
        devices=tuple(one["name"] for one in found["devices"] if one["membership"] != "declined"),
        accuracy_by_round=dict(found["accuracy_by_round"]),
        f1_by_round=dict(found["f1_by_round"]),
        perplexity_by_round=dict(found["perplexity_by_round"]),
    )

"""The adapter that a run starts from, where it is not a new one: a PEFT folder, or RUN@N.

The line that is pasted on a device, as `init` and `create` print it.
"""

import shlex
from pathlib import Path

from coordinator.api.export import ranges
from coordinator.rounds.history import history_of
from coordinator.storage.errors import StoreError
from coordinator.storage.orders import adapters_there
from coordinator.storage.runs import Start, config_of, find_run
from coordinator.storage.store import Store
from edge_client.adapters.fitting import fitting
from edge_client.adapters.peft_folder import is_exported, read_peft_folder
from edge_client.adapters.peft_import import read_peft_adapter
from edge_client.adapters.spec import AdapterError, AdapterSpec, parse_adapter
from edge_client.bases.base import EMBEDDED, Base
from edge_client.tasks.task import Task
from edge_client.wire.tensors import AdapterState, decode_adapter

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
    history = history_of(run.adapter_sha256, store.events(run.run_id))
    there, last = adapters_there(store, run), max(history.adapters)
    if said == "last":  # of a run that went back from its best round what it went back to
        there = {last: history.adapters[last]}
    if said == "best" and history.best is None:
        raise StoreError(f"--from {named}: no round was evaluated on any text yet")
    index = {"best": history.best or 0, "last": last}[said] if said in NAMED else int(said)
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
    """One line for a shell; FOLDER stands for the device's texts.

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
    return f"SMIDGEN_TOKEN={shlex.quote(token)} {shlex.join([*words, '--data', 'FOLDER'])}"


def _base_there(base: str) -> str:
    place = Path(base)
    if place.is_dir():
        return f"FOLDER-OF-{place.resolve().name}"
    return f"FILE-OF-{place.name}" if place.is_file() else base

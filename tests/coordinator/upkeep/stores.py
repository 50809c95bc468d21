"""A store with runs whose rounds never happened: journals and blobs as a server leaves them."""

from dataclasses import dataclass, replace
from pathlib import Path

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import Answered, StepClosed
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.coordinator.storage.store import Run, Store
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import encode

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
UPDATE_BYTES = 1000


@dataclass
class Filled:
    """A run with its blobs.

    Attributes:
        run_id: Its id.
        adapters: SHA-256 by round.
        updates: SHA-256 of all updates, those of an open step last.
        state: Where the run stands.
    """

    run_id: str
    adapters: list[str]
    updates: list[str]
    state: State


def filled(
    store: Store, name: str, rounds: int, devices: int, open_updates: int | None = None
) -> Filled:
    """Write a run of so many closed rounds; with `open_updates` the next one is open.

    Without, it is finished. Each evaluation is right more often than the one before.
    """
    more = 0 if open_updates is None else 1
    config = RunConfig(name, TASK, rounds=rounds + more, min_clients=1)
    adapters, updates = [store.put(f"{name} adapter 0".encode())], list[str]()
    run = Run(f"r-{name}", 0.0, encode(config).decode(), "b", "b", "bert", adapters[0], "secret")
    store.add_run(run)
    here = [f"{name}-{number}" for number in range(devices)]
    state, seq = State(adapters[0]), 0
    while event := decide(config, state, here, "secret", 0.0):
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            adapters.append(store.put(f"{name} adapter {state.round_index + 1}".encode()))
            event = replace(event, adapter_sha256=adapters[-1])
        store.append(run.run_id, seq, event)
        state, seq = evolve(state, event), seq + 1
        opened = state.step.opened if state.step else None
        is_last = opened is not None and opened.kind == "train" and opened.round_index > rounds
        members = list(state.step.members) if state.step else []
        for work_id in members[: open_updates if is_last else None]:
            assert opened is not None
            right = opened.round_index if opened.kind == "evaluate" else None
            sha256 = None
            if opened.kind == "train":
                body = f"{name} {work_id} ".encode()
                sha256 = store.put(body + b"x" * (UPDATE_BYTES - len(body)))
                updates.append(sha256)
            answer = Answered(work_id, "done", sha256, 1000, right=right)
            store.append(run.run_id, seq, answer)
            state, seq = evolve(state, answer), seq + 1
        if is_last:
            break
    return Filled(run.run_id, adapters, updates, state)


def names(folder: Path) -> set[str]:
    """Files among a store's blobs."""
    return {path.name for path in (folder / "blobs").iterdir()}

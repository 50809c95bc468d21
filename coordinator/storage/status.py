"""Where a run stands, read from the store alone: also while another process serves it."""

from typing import Any

from coordinator.rounds.machine import State, replay
from coordinator.storage.figures import accuracies, pseudo_labels, rows
from coordinator.storage.runs import config_of
from coordinator.storage.store import Run, Store


def state_of(store: Store, run: Run) -> State:
    """A run's state, replayed from its journal."""
    return replay(run.adapter_sha256, store.events(run.run_id))


def status_of(store: Store, run: Run) -> dict[str, Any]:
    """What `smidgen coordinator status` says of a run; holds no secret."""
    state, config = state_of(store, run), config_of(run)
    table = rows(store, run.run_id)
    return {
        "run_id": run.run_id,
        "name": config.name,
        "phase": state.phase,
        "round_index": state.round_index,
        "rounds": config.rounds,
        "devices": sorted(d.device_id for d in store.devices() if d.run_id == run.run_id),
        "answers": len(state.step.answers) if state.step else 0,
        "asked": len(state.step.members) if state.step else 0,
        "accuracy_by_round": accuracies(table),
        "pseudo_labels_by_round": pseudo_labels(table),
        "adapter_sha256": state.adapter_sha256,
        "texts": dict(sorted(state.texts.items())),
    }

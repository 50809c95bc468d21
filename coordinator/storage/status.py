"""Status of a run, from the store alone, so also while another process serves it."""

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.config import RunConfig
from coordinator.rounds.history import history_of
from coordinator.rounds.machine import (
    closes_at_s,
    devices_needed,
    ended_of,
    kept_of,
    rounds_of,
)
from coordinator.rounds.scheduling.step import Step
from coordinator.rounds.state import State, replay
from coordinator.storage.figures import pseudo_labels, rows, scores_by_round
from coordinator.storage.rows.devices import Device, Member, devices, members
from coordinator.storage.runs import config_of
from coordinator.storage.store import Run, Store
from edge_client.wire.figures import Row


def state_of(store: Store, run: Run) -> State:
    return replay(run.adapter_sha256, store.journal(run.run_id))


def status_of(store: Store, run: Run) -> dict[str, Any]:
    """What `smidgen coordinator status` says of a run, in base units; holds no secret."""
    history, config = history_of(run.adapter_sha256, store.journal(run.run_id)), config_of(run)
    state = history.state
    table = rows(store, run.run_id)
    fleet = {device.device_id: device for device in devices(store.database)}
    told = members(store.database, run.run_id)
    names = {device_id: device.name for device_id, device in fleet.items()}
    kept_round, kept = kept_of(config, state)
    return {
        "run_id": run.run_id,
        "name": config.name,
        "kind": config.kind,
        "created_at_s": run.created_at_s,
        "phase": state.phase,
        "ended": ended_of(config, state),
        "trouble": state.trouble,
        "round_index": state.round_index,
        "rounds": rounds_of(config, state),
        "min_clients": config.min_clients,
        "needed": devices_needed(config, state),
        "devices": _devices(fleet, told, state, table),
        "step": _step(config, state.step) if state.step else None,
        "failing": failing_of(state, table),
        "answers": len(state.step.answers) if state.step else 0,
        "asked": len(state.step.members) if state.step else 0,
        **scores_by_round(config.task, table, history.scores),
        "pseudo_labels_by_round": pseudo_labels(table),
        "lost_by_round": history.lost,
        "adapter_sha256": state.adapter_sha256,
        "kept": {"round_index": kept_round, "adapter_sha256": kept},
        "texts": {names.get(key, key): texts for key, texts in sorted(state.texts.items())},
    }


def _devices(
    fleet: Mapping[str, Device], told: Mapping[str, Member], state: State, table: Sequence[Row]
) -> list[dict[str, Any]]:
    """Every device that answered the run's invitation, by name, and how it stands.

    Attributes of each: `membership` is its answer; `last_seen_s` is Unix time, half a minute old
    at most where a coordinator runs; `open_work` is `done`, `failed` or `missing` for who is asked
    now, else None; `left` is the code of why it takes no part for now; `misses` are steps in a row
    that closed without it; `last` is its newest answer.
    """
    step = state.step
    asked = {device_id: work_id for work_id, device_id in step.members.items()} if step else {}
    newest = {row["device_id"]: row for row in table}  # rows come in the order of the run
    found = []
    for device in fleet.values():  # by name
        device_id = device.device_id
        if device_id not in told:
            continue
        answer = step.answers.get(asked.get(device_id, "")) if step else None
        waits = "missing" if device_id in asked else None
        found.append(
            {
                "device_id": device_id,
                "name": device.name,
                "membership": told[device_id].membership.state,
                "is_revoked": device.revoked_at_s is not None,
                "last_seen_s": device.last_seen_s,
                "open_work": answer.outcome if answer else waits,
                "left": state.left.get(device_id) or told[device_id].membership.failure,
                "misses": missed.misses if (missed := state.silences.get(device_id)) else 0,
                "last": _answer(newest[device_id]) if device_id in newest else None,
            }
        )
    return found


def _answer(row: Row) -> dict[str, Any]:
    names = ("kind", "round_index", "attempt", "outcome", "is_late")
    told = {name: row[name] for name in names} | {"failure": row.get("failure")}
    return told | {"refused_bytes": row.get("refused_bytes", 0)}


def _step(config: RunConfig, step: Step) -> dict[str, Any]:
    opened = step.opened
    return {
        "kind": opened.kind,
        "round_index": opened.round_index,
        "attempt": opened.attempt,
        "opened_at_s": opened.opened_at_s,
        "closes_at_s": closes_at_s(config, step),
        "passed": [{"reason": one.reason, "devices": one.count} for one in opened.passed],
        "usual_s": opened.deadline_s or config.deadline_s,
    }


def failing_of(state: State, table: Sequence[Row]) -> dict[str, Any] | None:
    """The newest task that nobody could do, if everyone who was asked has failed at it."""
    if state.is_finished or not table:
        return None
    last, step = table[-1], state.step
    same = [row for row in table if all(row[key] == last[key] for key in ("kind", "round_index"))]
    is_waited_for = step is not None and step.opened.attempt == 1 and not step.is_answered
    if any(row["outcome"] != "failed" for row in same) or (is_waited_for and _is_of(step, last)):
        return None
    return {
        "kind": last["kind"],
        "round_index": last["round_index"],
        "attempts": max(row["attempt"] for row in same),
        "devices": sorted({row["device"] for row in same}),
        "failures": sorted({row["failure"] for row in same if row.get("failure")}),
    }


def _is_of(step: Step | None, row: Row) -> bool:
    """Whether a row answers the open step, some attempt of it."""
    here = (step.opened.kind, step.opened.round_index) if step else None
    return here == (row["kind"], row["round_index"])

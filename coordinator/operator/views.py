"""Views for operators as plain JSON, the same by the API and by commands on a store.

Shapes are those of the schemas beside this module, which commands do without: they start in a tenth
of a second.

Rounds' figures are cached and only changed rounds are read, one round's answers at a time. An
answer comes for the open step and the two before it, and in asynchronous rounds for as many more
versions as an update may be old; older rounds are final.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.history import KNOWN_ROUNDS
from smidgen.coordinator.rounds.machine import (
    closes_at_s,
    devices_needed,
    ended_of,
    kept_of,
    rounds_of,
)
from smidgen.coordinator.rounds.scoring import Score
from smidgen.coordinator.rounds.state import State, heard_so_far
from smidgen.coordinator.serving.ledger import Live
from smidgen.coordinator.storage.credentials import Token
from smidgen.coordinator.storage.devices import Device, Member
from smidgen.coordinator.storage.reports import (
    accuracies,
    counts_by_round,
    entities_by_round,
    entities_told,
    means,
    perplexities,
    pseudo_labels,
    rows_of_round,
)
from smidgen.coordinator.storage.store import Run, Store
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import perplexity
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.figures import Row, traffic_of

Told = dict[str, Any]
MOST_ANSWERS = 50  # of a device, that are told beside it
CLONED_S = 86_400.0  # for which it is told that a device had two lives


@dataclass(frozen=True)
class Standing:
    """A run as it stands, in the memory of a process that serves or read from a store.

    Attributes:
        run: Its row.
        config: Its configuration.
        state: What its journal gives.
        devices: How many devices are in it, those that have its adapter at home too.
        here: Ids of those among them that count for it now.
    """

    run: Run
    config: RunConfig
    state: State
    devices: int
    here: Collection[str]


def run_told(standing: Standing, rounds: Sequence[Told]) -> Told:
    """Where a run stands; its accuracy or F1 is that of the newest evaluation.

    That is over all answers, as in the rounds: what decisions go by is cut back (`scored`).

    Args:
        standing: The run.
        rounds: Its newest rounds, oldest first, as `round_told` tells them.
    """
    config, state = standing.config, standing.state
    score, measure = state.scores.get(state.evaluated), kind_of(config.task).measure
    evaluated = (one for one in rounds if one["round_index"] == state.evaluated)
    share = next((one[measure.key] for one in evaluated), None)
    share = score.accuracy if score and share is None else share
    losses = [one["loss"] for one in rounds if one["loss"] is not None]
    return {
        "run_id": standing.run.run_id,
        "name": config.name,
        "created_at_s": standing.run.created_at_s,
        "phase": state.phase,
        "is_stopped": state.is_stopped,
        "ended": ended_of(config, state),
        "trouble": state.trouble,
        "paused_at_s": state.paused_at_s,
        "round_index": state.round_index,
        "rounds": rounds_of(config, state),
        "devices": standing.devices,
        "here": len(standing.here),
        "needed": devices_needed(config, state),
        "step": _step_told(config, state),
        "kind": config.kind,
        **_score_told(config.task, share if score else None, score),
        "accuracy_round": state.evaluated if score else None,
        "perplexity": perplexity(score.loss) if score and measure.has_perplexity else None,
        "loss": losses[-1] if losses else None,
    }


def _score_told(task: Task, share: float | None, score: Score | None) -> Told:
    """What a run's measure says, and null of the other one."""
    told: Told = dict.fromkeys(
        f"{key}{part}" for key in ("accuracy", "f1") for part in ("", "_error", "_median")
    )
    key = kind_of(task).measure.key
    error, median = (score.error, score.median) if score else (None, None)
    return told | {key: share, f"{key}_error": error, f"{key}_median": median}


def _step_told(config: RunConfig, state: State) -> Told | None:
    step = state.step
    if step is None:
        return None
    return {
        "kind": step.opened.kind,
        "round_index": step.opened.round_index,
        "attempt": step.opened.attempt,
        "opened_at_s": step.opened.opened_at_s,
        "closes_at_s": closes_at_s(config, step),
        "asked": len(step.members),
        "answers": len(step.answers),
        "passed": [{"reason": one.reason, "devices": one.count} for one in step.opened.passed],
        "failed": sum(answer.outcome == "failed" for answer in step.answers.values()),
    }


def detail_told(standing: Standing, rounds: Sequence[Told], failing: Told | None) -> Told:
    """A run with what it is.

    Args:
        standing: The run.
        rounds: Its rounds, oldest first, as `round_told` tells them.
        failing: The task that nobody can do, if there is one.
    """
    run, config = standing.run, standing.config
    kept_round, kept = kept_of(config, standing.state)
    privacy = config.account and config.account.spent(heard_so_far(standing.state))
    return run_told(standing, rounds) | {
        "base": config.base,
        "base_id": run.base_id,
        "adapter": config.adapter,
        "adapter_sha256": standing.state.adapter_sha256,
        "kept_round": kept_round,
        "kept_sha256": kept,
        "labels": list(config.labels),
        "deadline_s": config.deadline_s,
        "fraction": config.fraction,
        "min_clients": config.min_clients,
        "is_labelling": config.labelling is not None,
        "privacy": privacy and asdict(privacy),
        "secure_aggregation": config.updates.secure_aggregation,
        "choice": asdict(config.devices),
        "failing": failing,
        "totals": totals_told(rounds),
    }


def round_told(index: int, rows: Sequence[Row], task: Task, score: Score | None = None) -> Told:
    """What a round gave and cost.

    Args:
        index: The round.
        task: The run's.
        rows: Of its answers.
        score: Of its evaluation, once that is closed: its error is not to be had from the rows.
    """
    moved = traffic_of(rows)
    phases: Counter[str] = Counter()
    for row in rows:
        phases.update(row["cost"].get("phases_s", {}))
    failed = [row for row in rows if row["outcome"] == "failed"]
    entities = entities_by_round(rows).get(index)
    share = entities.strict if entities else None
    share = share if kind_of(task).measure.is_counted else accuracies(rows).get(index)
    return {
        "round_index": index,
        **_score_told(task, share, score),
        "entities": entities_told(entities, task.labels) if entities else None,
        "perplexity": perplexities(rows, task).get(index),
        "loss": means(rows, "train", "loss").get(index),
        "pseudo_labels": pseudo_labels(rows).get(index),
        "answers": len(rows),
        "failed": len(failed),
        "late": sum(bool(row["is_late"]) for row in rows),
        "failures": dict(Counter(row.get("failure") or "internal" for row in failed)),
        "up_bytes": sum(moved.bytes_of(row, "up") for row in rows),
        "down_bytes": sum(moved.bytes_of(row, "down") for row in rows),
        "is_by_kernel": moved.is_by_kernel,
        "phases_s": {phase: round(spent_s, 3) for phase, spent_s in sorted(phases.items())},
    }


def totals_told(rounds: Sequence[Told]) -> Told | None:
    """Rounds summed up; scores, loss and pseudo-labels are the newest. None of no rounds."""
    if not rounds:
        return None
    newest = {
        name: next((one[name] for one in reversed(rounds) if one[name] is not None), None)
        for name in ("accuracy", "f1", "entities", "perplexity", "loss", "pseudo_labels")
    }
    for key in ("accuracy", "f1"):
        last = next((one for one in reversed(rounds) if one[key] is not None), None)
        for part in ("error", "median"):
            newest[f"{key}_{part}"] = last[f"{key}_{part}"] if last else None
    sums = ("answers", "failed", "late", "up_bytes", "down_bytes")
    failures: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    for one in rounds:
        failures.update(one["failures"])
        phases.update(one["phases_s"])
    return {
        "round_index": rounds[-1]["round_index"],
        **newest,
        **{name: sum(one[name] for one in rounds) for name in sums},
        "failures": dict(failures),
        "is_by_kernel": all(one["is_by_kernel"] for one in rounds),
        "phases_s": {phase: round(spent_s, 3) for phase, spent_s in sorted(phases.items())},
    }


def answer_told(row: Row, run_name: str, device: str) -> Told:
    """A device's answer to a piece of work."""
    moved, cost = traffic_of([row]), row["cost"]
    spent = [spent_s for phase, spent_s in cost.get("phases_s", {}).items() if phase != "wait"]
    own = ("device_id", "run_id", "kind", "round_index", "attempt", "outcome")
    return {name: row[name] for name in own} | {
        "device": device,
        "run_name": run_name,
        "failure": row.get("failure"),
        "is_late": bool(row["is_late"]),
        "seconds": round(sum(spent), 3),
        "up_bytes": moved.bytes_of(row, "up"),
        "down_bytes": moved.bytes_of(row, "down"),
        "peak_rss_bytes": cost.get("peak_rss_bytes"),
    }


def members_told(
    state: State,
    fleet: Mapping[str, Device],
    told: Mapping[str, Member],
    newest: Mapping[str, Told],
    scores: Mapping[str, Told],
    is_here: Callable[[Device], bool],
) -> list[Told]:
    """Devices that answered a run's invitation, by name.

    Args:
        state: The run's.
        fleet: All devices, by id.
        told: What they answered.
        newest: The newest answer of each, as `answer_told` tells it.
        scores: The newest evaluation of each, as `round_told` tells it of that answer alone.
        is_here: Whether a device was heard of lately.
    """
    step, left = state.step, state.left
    asked = {device_id: work_id for work_id, device_id in step.members.items()} if step else {}
    is_half_in = step is not None and 2 * len(step.answers) >= len(step.members)
    found = []
    for device_id, member in told.items():
        device, membership = fleet[device_id], member.membership
        answer = step.answers.get(asked.get(device_id, "")) if step else None
        waits = ("late" if is_half_in else "asked") if device_id in asked else None
        found.append(
            {
                "device_id": device_id,
                "name": device.name,
                "membership": membership.state,
                "declined": membership.failure,
                "peak_bytes": membership.peak_bytes,
                "last_seen_s": device.last_seen_s,
                "is_here": is_here(device),
                "is_revoked": device.revoked_at_s is not None,
                "now": answer.outcome if answer else waits,
                "left": left.get(device_id),
                "misses": misses_of(state, device_id),
                "last": newest.get(device_id),
                "scored": scores.get(device_id),
            }
        )
    return sorted(found, key=lambda one: by_name(one["name"]))


def misses_of(state: State, device_id: str) -> int:
    """Steps in a row that a device missed: each closed without its answer."""
    silence = state.silences.get(device_id)
    return silence.misses if silence is not None else 0


def device_told(device: Device, is_here: bool, runs: Iterable[Told], now_s: float) -> Told:
    """A device of the coordinator; that it had two lives is told for a day.

    Args:
        device: Its row.
        is_here: Whether it was heard of lately.
        runs: Its memberships, as `membership_told` tells them.
        now_s: Unix time.
    """
    cloned_at_s = device.cloned_at_s
    is_cloned = cloned_at_s is not None and now_s - cloned_at_s < CLONED_S
    return {
        "device_id": device.device_id,
        "name": device.name,
        "tags": device.all_tags,
        "own_tags": device.own_tags,
        "operator_tags": device.tags,
        "facts": asdict(device.facts),
        "token_id": device.token_id,
        "enrolled_at_s": device.enrolled_at_s,
        "last_seen_s": device.last_seen_s,
        "is_here": is_here,
        "revoked_at_s": device.revoked_at_s,
        "cloned_at_s": cloned_at_s if is_cloned else None,
        "runs": list(runs),
    }


def membership_told(run_id: str, run_name: str, member: Member, misses: int) -> Told:
    """How a device stands to a run, by its own word, and how many steps in a row it missed."""
    told = {"run_id": run_id, "run_name": run_name, "at_s": member.at_s, "misses": misses}
    said = {key: one for key, one in asdict(member.membership).items() if key != "mask_key"}
    return told | said


def token_told(token: Token, now_s: float) -> Told:
    return asdict(token) | {"is_valid": not token.lack(now_s)}


def by_name(name: str) -> tuple[str, int, str]:
    """What names are ordered by: `pi`, `pi-2`, `pi-10`."""
    stem, _, number = name.rpartition("-")
    is_numbered = bool(stem) and number.isdecimal() and number.isascii()
    return (stem, int(number), name) if is_numbered else (name, 1, name)


OPEN = 2  # rounds before the newest known one that answers may still come for


def open_rounds(config: RunConfig) -> int:
    """How many rounds before the newest known one answers may still come for."""
    return OPEN + (config.asynchronous.most_staleness if config.asynchronous else 0)


class History:
    """Rounds of all runs of one store, each read once; safe to use from several threads.

    Args:
        store: Holds the reports.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        # With what each was told by; rounds come again once a device is forgotten
        self._rounds: dict[tuple[str, int], dict[int, tuple[object, Told]]] = {}

    def of(self, live: Live) -> list[Told]:
        """A run's rounds that somebody has answered in, oldest first; the newest of very many.

        Args:
            live: The run, as it stands now or did a moment ago.
        """
        run_id, state, past = live.run.run_id, live.state, live.past
        with self._lock:
            known = self._rounds.setdefault((run_id, state.forgets), {})
            newest = min(max(known, default=0), state.round_index)
            last = state.round_index + 1
            first = max(0, newest - open_rounds(live.config), last - KNOWN_ROUNDS)
            counts = counts_by_round(self._store.database, run_id, first)
            for index in sorted(one for one in counts if one <= last):
                score, lost = past.scores.get(index), past.lost.get(index)
                by = counts[index], score, lost
                if index in known and known[index][0] == by:
                    continue
                table = rows_of_round(self._store, run_id, index)
                told = round_told(index, table, live.config.task, score)
                known[index] = by, told | {"lost": lost}
                known.pop(index - KNOWN_ROUNDS, None)
            return [known[index][1] for index in sorted(known)]

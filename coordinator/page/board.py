"""State of the operator's page, in memory, and what has changed in it since a version.

Everything carries the version of its last change, so a stream asks for what is newer than it has
and no per-stream state is kept. Names and tags are passed on unchanged; the page shows them as
text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from smidgen.coordinator.operator.run_routes import standing_of
from smidgen.coordinator.operator.views import (
    Standing,
    Told,
    device_told,
    membership_told,
    misses_of,
    open_rounds,
    round_told,
    run_told,
)
from smidgen.coordinator.rounds.history import KNOWN_ROUNDS
from smidgen.coordinator.rounds.machine import kept_of
from smidgen.coordinator.rounds.scheduling.step import Step
from smidgen.coordinator.rounds.scoring import Score
from smidgen.coordinator.rounds.state import heard_so_far
from smidgen.coordinator.serving.device_messages import base_name_of
from smidgen.coordinator.serving.ledger import Live
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.devices import Device
from smidgen.coordinator.storage.reports import counts_by_round, rows_of_round
from smidgen.edge_client.wire.figures import Row
from smidgen.edge_client.wire.reports import SAID

Trouble = dict[str, Any]
MOST = 30
LATE = "its answer came after the step had closed"


def trouble_of(table: Sequence[Row]) -> list[Trouble]:
    """A round's answers that failed or came too late; of very many, the last."""
    bad = [row for row in table if row["outcome"] == "failed" or row["is_late"]]
    return [_trouble(row) for row in bad[-MOST:]]


def _trouble(row: Row) -> Trouble:
    names = ("device_id", "kind", "round_index", "attempt")
    said = SAID[row["failure"]] if row.get("failure") else LATE
    return {"key": row["work_id"], "said": said} | {name: row[name] for name in names}


MOST_MISSING = 30  # devices still expected that are named
MOST_TROUBLE = 30  # lines on what went wrong
MOST_READ = 4000  # answers that one look reads, a third of a second
SEEN_STEP_S = 5.0  # the last contact is told to within this, or every poll would be news
MEMBERSHIPS = {"joined": "takes part", "home": "is done"}


@dataclass
class PageHistory:
    """A run's rounds so far, up to which one they are read, and what was known then.

    Attributes:
        known: Answers that this process took, and the scores.
        read: Up to which round it is read.
        told_by: Of each round that is read, how many answers it had, and its score.
        rounds: What it gave and cost.
        trouble: What went wrong in it.
        took_part: Devices that were in it until it was finished; None while it goes on.
    """

    known: tuple[int, Mapping[int, Score]] | None = None
    read: int = 0
    told_by: dict[int, tuple[int, Score | None]] = field(default_factory=dict)
    rounds: dict[int, Told] = field(default_factory=dict)
    trouble: dict[int, list[Trouble]] = field(default_factory=dict)
    took_part: int | None = None


class Versions:
    """Values by key, each with the version at which it last changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, Told]] = {}

    def put(self, key: str, value: Told, version: int) -> None:
        if key not in self._known or self._known[key][1] != value:
            self._known[key] = (version, value)

    def forget(self, key: str) -> None:
        self._known.pop(key, None)

    def since(self, version: int) -> list[Told]:
        return [value for at, value in self._known.values() if at > version]


class PageState:
    """The page's picture of a coordinator; `update` and `since` may run in any thread.

    Args:
        service: What serves; it is read, never changed.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._histories: dict[str, PageHistory] = {}
        self._rounds: dict[str, Versions] = {}
        self._devices, self._state = Versions(), Versions()
        self._forgotten, self._whole_at = (frozenset[str](), 0), 0
        self.version = 0

    def now_s(self) -> float:
        """Unix time, as the coordinator goes by it."""
        return self._service.now_s()

    def update(self, now_s: float) -> None:
        """Look again."""
        with self._lock:
            version = self.version + 1
            lives = self._service.runs()
            forgotten = self._service.fleet.forgotten(), sum(one.state.forgets for one in lives)
            if forgotten != self._forgotten:  # what is gone is no news: all is told anew
                self._forgotten, self._whole_at = forgotten, version
                self._histories.clear()
                self._rounds.clear()
                self._devices, self._state = Versions(), Versions()
            for live in lives:
                self._read_rounds(live, version)
            runs = [self._run(live, now_s) for live in lives]
            state: Told = {"is_full": self._service.caretaker.is_full, "runs": runs}
            self._state.put("state", state, version)
            for device in self._service.fleet.all():
                self._devices.put(device.device_id, self._device(device, lives, now_s), version)
            self.version = version

    def since(self, version: int, now_s: float) -> tuple[str, int]:
        """What is news after a version, as server-sent events, and the version that it leads to.

        Args:
            version: What the listener has; 0 for nothing.
            now_s: Unix time, by which the page sets its clock.
        """
        with self._lock:
            return "".join(self._news(version, now_s)), self.version

    def _news(self, version: int, now_s: float) -> Iterator[str]:
        is_all = version < max(1, self._whole_at)
        for state in self._state.since(version):
            yield event("state", {"at_s": now_s, **state})
        for run_id, known in self._rounds.items():
            if (rounds := known.since(version)) or is_all:
                yield event("rounds", {"run_id": run_id, "is_all": is_all, "rounds": rounds})
        devices = self._devices.since(version)
        if devices or is_all:
            yield event("devices", {"is_all": is_all, "devices": devices})

    def _read_rounds(self, live: Live, version: int) -> None:
        """Read what was answered since the last look; of a long history a part at each."""
        run_id, history = (
            live.run.run_id,
            self._histories.setdefault(live.run.run_id, PageHistory()),
        )
        known = self._rounds.setdefault(run_id, Versions())
        found = self._service.answers.count(run_id), live.past.scores
        if found == history.known and not self._service.neighbours.may_be:
            return  # nobody answers elsewhere
        last, read, number = live.state.round_index + 1, history.read, 0
        first = max(0, read - open_rounds(live.config), last - KNOWN_ROUNDS)
        counts = counts_by_round(self._service.store.database, run_id, first)
        for index in range(first, last + 1):
            told_by = counts.get(index, 0), live.past.scores.get(index)
            if told_by[0] and history.told_by.get(index) != told_by:
                number += self._read_round(live, index, history, known, version)
                history.told_by[index] = told_by
            history.read = max(read, index)
            if number > MOST_READ and read < index < last:
                return
        history.known = found

    def _read_round(
        self, live: Live, index: int, history: PageHistory, known: Versions, version: int
    ) -> int:
        """Read one round; how many answers it has."""
        table = rows_of_round(self._service.store, live.run.run_id, index)
        told = round_told(index, table, live.config.task, live.past.scores.get(index))
        history.rounds[index] = told
        known.put(str(index), told, version)
        history.trouble = _newest(history.trouble | {index: trouble_of(table)})
        history.rounds.pop(index - KNOWN_ROUNDS, None)
        history.told_by.pop(index - KNOWN_ROUNDS, None)
        known.forget(str(index - KNOWN_ROUNDS))
        return len(table)

    def _run(self, live: Live, now_s: float) -> Told:
        run_id, config, state = live.run.run_id, live.config, live.state
        history = self._histories[run_id]
        devices = len(self._service.members.joined(run_id))
        if state.phase != "finished":
            history.took_part = None
        elif history.took_part is None:  # those at home are in memory no more
            history.took_part = standing_of(self._service, live, now_s).devices
        devices = devices if history.took_part is None else history.took_part
        here = self._service.alive(run_id, now_s) - state.left.keys()
        rounds = [one for _, one in sorted(history.rounds.items())]
        privacy = config.account and config.account.spent(heard_so_far(state))
        told = run_told(Standing(live.run, config, state, devices, here), rounds)
        if told["step"] is not None and state.step is not None:
            told["step"] |= self._missing(state.step)
        return told | {
            "base": base_name_of(live),
            "adapter": config.adapter,
            "tags": dict(config.devices.tags),
            "is_failing": _is_failing(state.step),
            "kept_round": kept_of(config, state)[0],
            "privacy": privacy and str(privacy),
            "secure_aggregation": config.updates.secure_aggregation,
            "best_round": live.past.best_round,
            "trouble": self._trouble(live, history),
        }

    def _missing(self, step: Step) -> Told:
        """Who has not answered, and whether that is late by now."""
        missing = [one for work_id, one in step.members.items() if work_id not in step.answers]
        is_late = 2 * len(step.answers) >= len(step.members)
        named = sorted((self._service.fleet.name_of(one), one) for one in missing)
        told = [
            {"device_id": key, "name": name, "last_seen_s": self._seen(key), "is_late": is_late}
            for name, key in named[:MOST_MISSING]
        ]
        return {"missing": told, "more": max(0, len(missing) - MOST_MISSING)}

    def _seen(self, device_id: str) -> float | None:
        at_s = self._service.presence.last_seen_s(device_id)
        return None if at_s is None else at_s - at_s % SEEN_STEP_S

    def _trouble(self, live: Live, history: PageHistory) -> list[Told]:
        """What went wrong, the newest first; who declined comes last."""
        name_of = self._service.fleet.name_of
        found: list[Told] = []
        for index in sorted(history.trouble, reverse=True):
            found += [
                {**one, "name": name_of(one["device_id"])}
                for one in reversed(history.trouble[index])
            ]
        for device_id, member in sorted(self._service.members.of(live.run.run_id).items()):
            if failure := member.membership.failure:
                told = {"key": f"declined {device_id}", "device_id": device_id, "kind": None}
                found.append(
                    told | {"name": name_of(device_id), "said": f"takes no part: {SAID[failure]}"}
                )
        return found[:MOST_TROUBLE]

    def _device(self, device: Device, lives: Sequence[Live], now_s: float) -> Told:
        seen_s = self._seen(device.device_id)
        is_here = self._service.presence.is_here(device.device_id, now_s)
        runs = [self._membership(live, device.device_id) for live in lives]
        told = device_told(device, is_here, [one for one in runs if one is not None], now_s)
        return told | {"last_seen_s": seen_s}

    def _membership(self, live: Live, device_id: str) -> Told | None:
        member = self._service.members.get(live.run.run_id, device_id)
        if member is None:
            return None
        misses = misses_of(live.state, device_id)
        told = membership_told(live.run.run_id, live.config.name, member, misses)
        failure = member.membership.failure
        said = f"takes no part: {SAID[failure]}" if failure else MEMBERSHIPS[told["state"]]
        return told | {"said": said + (missed_text(misses) if member.is_joined else "")}


def missed_text(misses: int) -> str:
    """That a device misses steps, and what follows from it; empty where it answers."""
    if not misses:
        return ""
    steps = "the last step" if misses == 1 else f"the last {misses} steps"
    return f", but did not answer in {steps} it was asked in; it is asked less often"


def _newest(trouble: dict[int, list[Trouble]]) -> dict[int, list[Trouble]]:
    """Rounds in which something went wrong, the newest `MOST_TROUBLE`."""
    return dict(sorted((index, told) for index, told in trouble.items() if told)[-MOST_TROUBLE:])


def _is_failing(step: Step | None) -> bool:
    answers = step.answers.values() if step else ()
    return bool(answers) and step is not None and step.is_answered and not step.updates()


def event(kind: str, data: Mapping[str, Any]) -> str:
    """One server-sent event; JSON has no line breaks of its own."""
    told = json.dumps(data, separators=(",", ":"), allow_nan=False)  # a browser reads no NaN
    return f"event: {kind}\ndata: {told}\n\n"

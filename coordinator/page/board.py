"""What the page shows, in memory: read from what serves, and what of it is news since when.

Everything has the version at which it last changed, so a stream asks for what is newer than it has
and no stream is remembered. Names and tags are passed on as they came; the page shows them as text.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from coordinator.fleet.presence import ALIVE_S
from coordinator.operator.round_figures import rounds_of
from coordinator.operator.run_schemas import Round
from coordinator.page.trouble import Trouble, trouble_of
from coordinator.rounds.machine import Step, devices_needed
from coordinator.serving.ledger import Live
from coordinator.serving.service import Service
from coordinator.storage.device_rows import Device
from coordinator.storage.figures import rows
from edge_client.wire.failures import SAID

Told = dict[str, Any]  # what becomes JSON

MOST_MISSING = 30  # devices still expected that are named
MOST_TROUBLE = 30  # lines on what went wrong
SEEN_STEP_S = 5.0  # the last contact is told to within this, or every poll would be news
MEMBERSHIPS = {"joined": "takes part", "home": "finished"}
DECLINED = "declined"


@dataclass
class History:
    """A run's rounds so far, and how many answers they were read from."""

    answers: int = -1
    rounds: dict[int, Round] = field(default_factory=dict)
    trouble: dict[int, list[Trouble]] = field(default_factory=dict)


class Versions:
    """Values by key, each with the version at which it last changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, Told]] = {}

    def put(self, key: str, value: Told, version: int) -> None:
        if key not in self._known or self._known[key][1] != value:
            self._known[key] = (version, value)

    def since(self, version: int) -> list[Told]:
        """What has changed after a version."""
        return [value for at, value in self._known.values() if at > version]


class Board:
    """The page's picture of a coordinator; `update` and `since` may run in any thread.

    Args:
        service: What serves; it is read, never changed.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._histories: dict[str, History] = {}
        self._rounds: dict[str, Versions] = {}
        self._devices, self._state = Versions(), Versions()
        self.version = 0

    def update(self, now_s: float) -> None:
        """Look again."""
        with self._lock:
            version = self.version + 1
            lives = self._service.runs()
            for live in lives:
                self._read_rounds(live, version)
            state: Told = {"runs": [self._run(live, now_s) for live in lives]}
            self._state.put("state", state, version)
            for device in self._service.fleet.all():
                told = self._device(device, lives, now_s)
                self._devices.put(device.device_id, told, version)
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
        is_all = version == 0
        for state in self._state.since(version):
            yield event("state", {"at_s": now_s, **state})
        for run_id, known in self._rounds.items():
            if rounds := known.since(version):
                yield event("rounds", {"run_id": run_id, "is_all": is_all, "rounds": rounds})
        devices = self._devices.since(version)
        if devices or is_all:
            yield event("devices", {"is_all": is_all, "devices": devices})

    def _read_rounds(self, live: Live, version: int) -> None:
        """Read the reports of what is new: late ones come for the last two rounds at most."""
        run_id = live.run.run_id
        history = self._histories.setdefault(run_id, History())
        answers = self._service.answers_of(run_id)
        if answers == history.answers:
            return
        since = max(history.rounds, default=0) - 2
        table = rows(self._service.store, run_id, since)
        for one in rounds_of(table):
            history.rounds[one.round_index] = one
            known = self._rounds.setdefault(run_id, Versions())
            known.put(str(one.round_index), one.model_dump(), version)
        found = trouble_of(table, MOST_TROUBLE)
        history.trouble = {k: v for k, v in history.trouble.items() if k < since} | found
        history.answers = answers

    def _run(self, live: Live, now_s: float) -> Told:
        run_id, config, state = live.run.run_id, live.config, live.state
        history = self._histories[run_id]
        evaluated = _newest(history.rounds.values(), "accuracy")
        trained = _newest(history.rounds.values(), "loss")
        return {
            "run_id": run_id,
            "name": config.name,
            "created_at_s": live.run.created_at_s,
            "phase": state.phase,
            "is_stopped": state.is_stopped,
            "round_index": state.round_index,
            "rounds": state.rounds_of(config),
            "devices": len(self._service.members.joined(run_id)),
            "here": len(self._service.alive(run_id, now_s) - state.left.keys()),
            "needed": devices_needed(config, state),
            "step": self._step(live, state.step, now_s) if state.step else None,
            "accuracy": evaluated.accuracy if evaluated else None,
            "accuracy_round": evaluated.round_index if evaluated else None,
            "loss": trained.loss if trained else None,
            "base": config.base,
            "adapter": config.adapter,
            "tags": dict(config.devices.tags),
            "is_failing": _is_failing(state.step),
            "trouble": self._trouble(live, history),
        }

    def _step(self, live: Live, step: Step, now_s: float) -> Told:
        opened = step.opened
        missing = [one for work_id, one in step.members.items() if work_id not in step.answers]
        is_late = 2 * len(step.answers) >= len(step.members)
        named = sorted((self._service.fleet.name_of(one), one) for one in missing)
        return {
            "kind": opened.kind,
            "round_index": opened.round_index,
            "attempt": opened.attempt,
            "opened_at_s": opened.opened_at_s,
            "closes_at_s": opened.opened_at_s + live.config.deadline_s,
            "asked": len(step.members),
            "answers": len(step.answers),
            "failed": sum(answer.outcome == "failed" for answer in step.answers.values()),
            "missing": [
                {
                    "device_id": device_id,
                    "name": name,
                    "last_seen_s": self._seen(device_id),
                    "is_late": is_late,
                }
                for name, device_id in named[:MOST_MISSING]
            ],
            "more": max(0, len(missing) - MOST_MISSING),
        }

    def _seen(self, device_id: str) -> float | None:
        at_s = self._service.presence.last_seen_s(device_id)
        return None if at_s is None else at_s - at_s % SEEN_STEP_S

    def _trouble(self, live: Live, history: History) -> list[Told]:
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
                said = f"it declined: {SAID[failure]}"
                key = f"{DECLINED} {device_id}"
                told = {"key": key, "device_id": device_id, "name": name_of(device_id)}
                found.append(told | {"kind": None, "said": said})
        return found[:MOST_TROUBLE]

    def _device(self, device: Device, lives: Iterable[Live], now_s: float) -> Told:
        seen_s, facts = self._seen(device.device_id), device.facts
        return {
            "device_id": device.device_id,
            "name": device.name,
            "tags": device.all_tags,
            "facts": {
                "machine": facts.machine,
                "board": facts.board,
                "engine": facts.engine,
                "memory_bytes": facts.memory_bytes,
                "budget_bytes": facts.budget_bytes,
                "is_on_mains": facts.is_on_mains,
                "smidgen": facts.smidgen,
            },
            "last_seen_s": seen_s,
            "is_here": seen_s is not None and now_s - seen_s < ALIVE_S,
            "revoked_at_s": device.revoked_at_s,
            "runs": [
                told
                for live in lives
                if (told := self._membership(live.run.run_id, device.device_id)) is not None
            ],
        }

    def _membership(self, run_id: str, device_id: str) -> Told | None:
        member = self._service.members.get(run_id, device_id)
        if member is None:
            return None
        told = member.membership
        said = f"{DECLINED}: {SAID[told.failure]}" if told.failure else MEMBERSHIPS[told.state]
        return {"run_id": run_id, "said": said, "peak_bytes": told.peak_bytes}


def _newest(rounds: Iterable[Round], name: str) -> Round | None:
    told = [one for one in rounds if getattr(one, name) is not None]
    return max(told, key=lambda one: one.round_index, default=None)


def _is_failing(step: Step | None) -> bool:
    """Whether everyone who was asked has failed."""
    answers = step.answers.values() if step else ()
    return bool(answers) and step is not None and step.is_answered and not step.updates()


def event(kind: str, data: Mapping[str, Any]) -> str:
    """One server-sent event; JSON has no line breaks of its own."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"

"""Adapters on the device: downloaded for work, and those of finished runs.

An adapter for work is fetched once and kept in the state folder; where coded steps lead to it from
one that is there already, those are fetched instead. Adapters of finished runs become folders for
`smidgen client predict`.
"""

import logging
import math
from collections.abc import Sequence
from datetime import date
from functools import partial
from typing import Protocol

from smidgen.edge_client.adapters.card import Card, licence_of
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.client.connection import Refused, patiently
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.wire.fleet import Terms
from smidgen.edge_client.wire.messages import ENDED, CodedStep, Over, WireError
from smidgen.edge_client.wire.tensors import add_step
from smidgen.edge_client.wire.tensors import sha256 as sha256_of

KEPT = 16  # adapters of finished runs; the newest lies in `adapter`, too

log = logging.getLogger(__name__)


class AdapterDownload(Protocol):
    """Asks the coordinator for a file."""

    def __call__(self, digest: str, *, most_bytes: int) -> bytes:
        """The file by its SHA-256; no more than so long."""


class Adapters:
    """Adapters by digest, from the state folder where they are there.

    Args:
        state: The device's.
    """

    def __init__(self, state: ClientState) -> None:
        self._state = state
        self._held: dict[str, bytes] = {}  # one that the disk has no room for

    def body(
        self,
        sha256: str,
        most_bytes: int,
        fetch: AdapterDownload,
        runs: int,
        patience_s: float = math.inf,
        steps: Sequence[CodedStep] = (),
    ) -> bytes:
        """An adapter's bytes; by whichever way they came, they are of this digest.

        Args:
            sha256: Its digest.
            most_bytes: How long it may be.
            fetch: Asks the coordinator for it, or for a step.
            runs: How many runs go on, each of which needs one.
            patience_s: For how long a coordinator is waited for that cannot be reached.
            steps: Lead to it from adapters that may be here, see `Work.steps`.
        """
        body = self._state.adapter(sha256)
        if body is not None:
            return body
        body = self._held.get(sha256) or self._stepped(sha256, fetch, patience_s, steps)
        if body is None:
            body = patiently(partial(fetch, sha256, most_bytes=most_bytes), patience_s)
        self._held = {sha256: body}  # on a full disk it is not fetched again
        try:
            self._state.keep_adapter(sha256, body, max(1, runs))
            self._held = {}
        except OSError as error:  # a full disk costs memory, not the work
            log.warning("adapter %s is not kept: %s", sha256[:12], error)
        return body

    def _stepped(
        self, sha256: str, fetch: AdapterDownload, patience_s: float, steps: Sequence[CodedStep]
    ) -> bytes | None:
        """The adapter by as few steps as may be; None where none lead to it from what is here."""
        for place in reversed(range(len(steps))):
            start = steps[place].start_sha256
            body = self._state.adapter(start) or self._held.get(start)
            if body is not None:
                break
        else:
            return None
        try:
            for step in steps[place:]:
                wanted = partial(fetch, step.step_sha256, most_bytes=step.step_bytes)
                body = add_step(body, patiently(wanted, patience_s))
            if (came := sha256_of(body)) != sha256:
                raise WireError(f"they lead to {came[:12]}")
        except (WireError, Refused) as error:
            log.warning(
                "adapter %s is fetched whole: the steps to it are of no use: %s", sha256[:12], error
            )
            return None
        return body


def take_home(state: ClientState, terms: Terms, settings: Settings, over: Over, body: bytes) -> str:
    """Write a finished adapter; the folder.

    It lies twice: by its run's name beside those of other runs, and as the newest of all where the
    owner of the device looks for it.

    Args:
        state: The device's.
        terms: The run's.
        settings: What the client was started with.
        over: What the coordinator said of the run's end.
        body: The adapter, a safetensors file.

    Raises:
        Failed, WrongInput, OSError: It could be written to neither place.
    """
    base = settings.base
    exported = Exported(
        adapter=terms.adapter_spec,
        base_name=base.peft_name,
        base_id=base.base_id,
        architecture=base.architecture,
        task=terms.task,
    )
    is_counted = kind_of(terms.task).measure.is_counted
    is_last = over.kept_round is None
    trained = over.rounds if over.kept_round is None else over.kept_round
    scores = {index: one for index, one in over.accuracies.items() if index <= trained}
    card = Card(
        rounds=trained,
        devices=over.devices,
        accuracies={} if is_counted else scores,
        entity_f1=scores if is_counted else {},
        losses={index: one for index, one in over.losses.items() if index <= trained},
        date=date.today().isoformat(),
        version=settings.version,
        licence=licence_of(base),
    )
    newest, own = settings.out or state.folder / "adapter", state.finished_run(terms.run_name)
    rounds = f"{over.rounds} round{'' if over.rounds == 1 else 's'}"
    finished = f"run {terms.run_name} is finished after {rounds}: {ENDED[over.ended]}"
    its = "its adapter" if is_last else f"its best adapter, of round {trained},"
    lack: Exception | None = None
    try:
        write_peft_folder(newest, exported, body, card, base)
        log.info("%s; %s is in %s", finished, its, newest)
    except (Failed, WrongInput, OSError) as error:
        log.error("the finished adapter cannot be written to %s: %s", newest, error)
        lack = error
    try:
        write_peft_folder(own, exported, body, card, base)
        state.drop_finished_runs(terms.run_name, KEPT)
    except (Failed, WrongInput, OSError) as error:
        if lack is not None:
            raise
        log.warning("run %s is not kept beside the next one: %s", terms.run_name, error)
    state.close_finished()
    if lack is not None:
        log.info("%s; %s is in %s", finished, its, own)
    return str(newest if lack is None else own)

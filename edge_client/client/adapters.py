"""Adapters on the device: those that work needs, and those of finished runs.

The first are fetched once and kept in the state folder; the second become folders for
`smidgen client predict`.
"""

import logging
import math
from collections.abc import Callable
from datetime import date

from edge_client.adapters.card import Card, licence_of
from edge_client.adapters.peft_folder import Exported, write_peft_folder
from edge_client.client.retries import patiently
from edge_client.client.settings import Settings
from edge_client.client.state import ClientState
from edge_client.errors import Failed, WrongInput
from edge_client.wire.fleet import Terms
from edge_client.wire.messages import Over

KEPT = 16  # adapters of finished runs; the newest lies in `adapter`, too

log = logging.getLogger(__name__)


class Adapters:
    """Adapters by digest, from the state folder where they are there.

    Args:
        state: The device's.
    """

    def __init__(self, state: ClientState) -> None:
        self._state = state
        self._held: dict[str, bytes] = {}  # one that the disk has no room for

    def body(
        self, sha256: str, fetch: Callable[[], bytes], runs: int, patience_s: float = math.inf
    ) -> bytes:
        """An adapter's bytes.

        Args:
            sha256: Its digest.
            fetch: Asks the coordinator for it.
            runs: How many runs go on, each of which needs one.
            patience_s: For how long a coordinator is waited for that cannot be reached.
        """
        body = self._state.adapter(sha256)
        if body is None:
            body = self._held.pop(sha256, None) or patiently(fetch, patience_s)
            self._held = {sha256: body}  # on a full disk it is not fetched again
            try:
                self._state.keep_adapter(sha256, body, max(1, runs))
                self._held = {}
            except OSError as error:  # a full disk costs memory, not the work
                log.warning("adapter %s is not kept: %s", sha256[:12], error)
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
    card = Card(
        rounds=over.rounds,
        devices=over.devices,
        accuracies=over.accuracies,
        date=date.today().isoformat(),
        version=settings.version,
        licence=licence_of(base),
    )
    newest, own = settings.out or state.folder / "adapter", state.finished_run(terms.run_name)
    lack: Exception | None = None
    try:
        write_peft_folder(newest, exported, body, card)
        log.info("run %s is finished; its adapter is in %s", terms.run_name, newest)
    except (Failed, WrongInput, OSError) as error:
        log.error("the finished adapter cannot be written to %s: %s", newest, error)
        lack = error
    try:
        write_peft_folder(own, exported, body, card)
        state.drop_finished_runs(terms.run_name, KEPT)
    except (Failed, WrongInput, OSError) as error:
        if lack is not None:
            raise
        log.warning("run %s is not kept beside the next one: %s", terms.run_name, error)
    state.close_finished()
    if lack is not None:
        log.info("run %s is finished; its adapter is in %s", terms.run_name, own)
    return str(newest if lack is None else own)

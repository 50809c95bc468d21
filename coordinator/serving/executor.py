"""Carries out what `rounds.decide` says is due: aggregates where needed, then writes the event."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from coordinator.rounds.aggregation import apply_delta, weighted_mean
from coordinator.rounds.events import Event, StepClosed
from coordinator.rounds.machine import Step, decide
from coordinator.serving.ledger import Ledger
from coordinator.serving.telling import step_text
from coordinator.storage.store import Store
from edge_client.wire.tensors import decode_adapter, decode_update, encode_adapter

LOG = logging.getLogger(__name__)


def proceed(
    store: Store,
    ledger: Ledger,
    run_id: str,
    alive: Collection[str],
    names_of: Callable[[Iterable[str]], list[str]],
    now_s: float,
) -> Event | None:
    """Let a run take one step, if one is due; the event that was written.

    Updates are read one at a time, in order of device ids.

    Args:
        store: Holds the updates.
        ledger: Holds the run.
        run_id: The run.
        alive: Devices of it that are there.
        names_of: Names of devices for the log, by their ids.
        now_s: Unix time.
    """
    while (live := ledger.run(run_id)) is not None:
        event = decide(live.config, live.state, alive, live.run.secret, now_s)
        if event is None:
            return None
        if isinstance(event, StepClosed) and event.adapter_sha256 is None and live.state.step:
            event = replace(event, adapter_sha256=aggregate(store, live.state.step))
        if ledger.append(live, event):
            if text := step_text(live, event, names_of):
                LOG.info("%s", text)
            return event
        # An answer came in between: what was decided no longer holds.
    return None


def aggregate(store: Store, step: Step) -> str:
    """Store the adapter after a training step; its SHA-256."""
    bodies = (store.read(answer.update_sha256 or "") for _, answer in step.updates())
    mean = weighted_mean(
        (update.delta, float(update.num_examples)) for update in map(decode_update, bodies)
    )
    adapter = decode_adapter(store.read(step.opened.adapter_sha256))
    return store.put(encode_adapter(apply_delta(adapter, mean)))

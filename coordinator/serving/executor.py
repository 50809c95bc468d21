"""Executes what `rounds.machine.decide` says is due, and operators' orders; writes their events.

Called at each tick, before runs proceed. After a kill an order is either open, with its event not
written, or done.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from smidgen.coordinator.rounds.events import (
    AlsoAsked,
    Event,
    Folded,
    Paused,
    StepClosed,
    StepOpened,
)
from smidgen.coordinator.rounds.extensions import PluginError
from smidgen.coordinator.rounds.guidance import context_of
from smidgen.coordinator.rounds.learning.exact import handed, spec_at_rank
from smidgen.coordinator.rounds.learning.memory import decode_memory, encode_memory
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate, learn
from smidgen.coordinator.rounds.learning.unmasking import (
    LostSum,
    asked_of,
    given_in,
    places_of,
    step_in,
    sum_of,
)
from smidgen.coordinator.rounds.machine import NOBODY, bounded, decide, narrowed
from smidgen.coordinator.rounds.orders import OrderError, event_of
from smidgen.coordinator.rounds.scheduling.step import Step
from smidgen.coordinator.rounds.selection import Facts
from smidgen.coordinator.serving.ledger import Ledger, Live
from smidgen.coordinator.serving.log import pace_texts, step_text
from smidgen.coordinator.storage.database import Conflict, Statement
from smidgen.coordinator.storage.runs import (
    Order,
    adapters_there,
    open_orders,
    order_of,
    taken_up,
)
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.forgetting import without_forgotten
from smidgen.coordinator.watch.logs import about
from smidgen.edge_client.codecs import Shapes
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.updates.masks import Ring, ring_in
from smidgen.edge_client.updates.registry import sent_shapes
from smidgen.edge_client.updates.secure_sum import SEALS, SHARES
from smidgen.edge_client.wire.tensors import (
    UPDATES_SINCE,
    Update,
    decode_adapter,
    decode_update,
    encode_adapter,
    shapes_of,
)

LOG = logging.getLogger(__name__)
MOST_TRIES = 8  # at a step in one look, where answers come in between; the next look tries again


def proceed(
    store: Store,
    ledger: Ledger,
    run_id: str,
    alive: Collection[str],
    names_of: Callable[[Iterable[str]], list[str]],
    now_s: float,
    is_full: bool = False,
    facts: Facts | None = None,
    ranks: Mapping[str, int] | None = None,
    mask_keys: Callable[[], Mapping[str, bytes]] = dict,
) -> Event | None:
    """Let a run take one step, if one is due; the event that was written.

    None too where answers came in between again and again: it comes to an end whatever comes in.
    Updates are read one at a time, in order of device ids.

    Args:
        store: Holds the updates.
        ledger: Holds the run.
        run_id: The run.
        alive: Devices of it that are there.
        names_of: Names of devices for the log, by their ids.
        now_s: Unix time.
        is_full: Whether the store's disk has no room for another step's updates.
        facts: What is known of the devices; None: nothing.
        ranks: The largest rank that devices take, of those that said one.
        mask_keys: Public keys of the devices in a run of secure aggregation.
    """
    for _ in range(MOST_TRIES):
        if (live := ledger.run(run_id)) is None:
            return None
        event = decide(live.config, live.state, alive, live.run.secret, now_s, facts or NOBODY)
        if event is None or (is_full and isinstance(event, StepOpened | AlsoAsked)):
            return None
        if written := _written(store, ledger, live, event, ranks or {}, mask_keys):
            if text := step_text(live, written, names_of):
                told = about(live.config.name, round_index=_round_of(live, written))
                after = ledger.run(run_id) or live
                for line in (text, *pace_texts(live, written, after.state, names_of)):
                    LOG.info("%s", line, extra=told)
            return written
        # An answer came in between: what was decided no longer holds.
    return None


def _round_of(live: Live, event: Event) -> int:
    """The round that an event belongs to, decided on this state."""
    opened = event if isinstance(event, StepOpened) else None
    if opened is None and live.state.step is not None:
        opened = live.state.step.opened
    return live.state.round_index if opened is None else opened.round_index


def _written(
    store: Store,
    ledger: Ledger,
    live: Live,
    event: Event,
    ranks: Mapping[str, int],
    mask_keys: Callable[[], Mapping[str, bytes]],
) -> Event | None:
    """The event as it was written; None if the state it was decided on no longer holds."""
    step = live.state.step
    if isinstance(event, StepClosed) and event.adapter_sha256 is None and step is not None:
        with store.claiming():
            try:
                event = aggregate(store, live, step, event.closed_at_s)
            except PluginError as error:
                # The step stays open: once the plugin is mended, a resumed run closes it.
                event = Paused(event.closed_at_s, str(error))
            return event if _landed(ledger, live, event) else None
    if isinstance(event, StepOpened):
        store.check(event.adapter_sha256)  # rather than have every device fail on it
        name = event.adapter_sha256
        event = bounded(event, live.config, live.state, lambda: decode_adapter(store.read(name)))
        with store.claiming():
            event = _ranked(store, live, event, ranks)
            if live.config.updates.secured and event.brings_files:
                event = _masked(store, live, event, mask_keys)
            return event if ledger.append(live, event) else None
    return event if ledger.append(live, event) else None


def _landed(ledger: Ledger, live: Live, event: Event) -> bool:
    """Append what a training step's updates gave, if it is still what they give.

    An aggregation takes a while. What comes meanwhile and has no part in it, such as updates beyond
    a full buffer, does not make it wrong: else a fleet that is quicker would keep the step open.
    """
    made_of = _made_of(live)
    for _ in range(MOST_TRIES):  # another process may write the same place
        if ledger.append(live, event, holds=lambda here: _made_of(here) == made_of):
            return True
        here = ledger.run(live.run.run_id)
        if here is None or _made_of(here) != made_of:
            return False
    return False


def _made_of(live: Live) -> tuple[object, ...]:
    """All of a run's state that `aggregate` and the closing of the step go by."""
    state, step = live.state, live.state.step
    if step is None or state.is_paused:
        return ()
    counted = [(*pair, step.staleness(pair[1].work_id)) for pair in step.updates()]
    before = state.memory_sha256, state.medians, state.kept, state.masked
    return live.rounds, step.opened, counted, before


def _ranked(store: Store, live: Live, opened: StepOpened, ranks: Mapping[str, int]) -> StepOpened:
    """A step with the lower ranks of its members; their adapters are stored, one for each rank."""
    spec, members = live.config.adapter, [device_id for _, device_id in opened.members]
    lower = {key: ranks[key] for key in members if spec_at_rank(spec, ranks.get(key, 0)) != spec}
    if not lower or live.config.learning.lora_mean == "factors":
        return opened
    adapter, found = decode_adapter(store.read(opened.adapter_sha256)), dict[int, str]()
    for rank in sorted(set(lower.values())):
        found[rank] = store.put(encode_adapter(handed(adapter, spec_at_rank(spec, rank))))
    return replace(opened, ranks=tuple(sorted(lower.items())), lower=tuple(found.items()))


def _masked(
    store: Store, live: Live, opened: StepOpened, mask_keys: Callable[[], Mapping[str, bytes]]
) -> StepOpened | Paused:
    """A step of secure aggregation with what its members are handed, stored.

    Training: who stands beside whom. Unmasking: to each the shares that were sent to it. A run
    pauses whose devices have too few keys, as copies of one state folder have.
    """
    if opened.kind == "train":
        keys, known = dict[bytes, str](), mask_keys()
        for name in places_of(opened, live.run.secret):
            keys.setdefault(known[name], name)  # of two that came at once with one key the first
        if len(keys) < live.config.min_updates:
            least = live.config.min_updates
            said = f"{len(keys)} devices have a mask key of their own, {least} are needed"
            return Paused(opened.opened_at_s, said)
        names, at = set(keys.values()), (opened.round_index, opened.attempt, opened.opened_at_s)
        members = tuple(one for one in opened.members if one[1] in names)
        if (secured := step_in(opened.updates)) and secured.multiplier:
            shapes = shapes_of(decode_adapter(store.read(opened.adapter_sha256)))
            sent = sent_shapes(opened.updates, shapes, opened.round_index)
            try:
                secured.grid(len(keys), sum(map(math.prod, sent.values())))
            except WrongInput as error:
                return Paused(opened.opened_at_s, str(error))
        ring = Ring(live.run.run_id, *at, tuple(keys))
        return replace(opened, members=members, masks=(("", store.put(ring.body)),))
    train = live.state.step
    assert train is not None  # what is unmasked is open
    ring = ring_in(store.read(train.opened.handed("")))
    shares, seals = dict[int, np.ndarray](), dict[int, bytes]()
    places = {name: at for at, name in enumerate(places_of(train.opened, live.run.secret))}
    for device_id, one in train.updates():
        update = decode_update(store.read(one.update_sha256 or ""), since=UPDATES_SINCE)
        coded, place = update.coded or {}, places[device_id]
        shares[place], seals[place] = coded[SHARES], coded[SEALS][0].tobytes()
    masks = [
        (device_id, store.put(asked_of(ring, places[device_id], shares, seals).body))
        for _, device_id in opened.members
    ]
    return replace(opened, masks=tuple(masks))


def _unmasked(store: Store, live: Live, train: Step, step: Step, shapes: Shapes) -> AdmittedUpdate:
    """The mean of a training step's masked updates, as the one update there is.

    Raises:
        LostSum: It cannot be told.
    """
    ring = ring_in(store.read(train.opened.handed("")))
    places = {name: at for at, name in enumerate(places_of(train.opened, live.run.secret))}
    updates = (
        (places[device_id], decode_update(store.read(one.update_sha256 or ""), since=UPDATES_SINCE))
        for device_id, one in train.updates()
    )
    answers = {
        places[device_id]: given_in(store.read(one.update_sha256 or ""))
        for device_id, one in step.updates()
    }
    secured = step_in(train.opened.updates)
    assert secured is not None  # a run has it in all its rounds
    mean = sum_of(secured, ring, updates, answers, shapes)
    texts = sum(one.num_examples for _, one in train.updates())
    return AdmittedUpdate("", Update("", max(1, texts), mean))


def aggregate(store: Store, live: Live, step: Step, now_s: float) -> StepClosed:
    """Store the adapter after a training step; the step with it, or without where it is unfit."""
    opened, state, rule = step.opened, live.state, live.config.asynchronous
    adapter = decode_adapter(store.read(opened.adapter_sha256))
    shapes = sent_shapes(opened.updates, shapes_of(adapter), opened.round_index)
    if state.masked is not None:
        try:
            unmasked = _unmasked(store, live, state.masked, step, shapes)
        except LostSum as error:
            names = places_of(state.masked.opened, live.run.secret)
            blamed = tuple(names[at] for at in error.dealers)
            before = opened.adapter_sha256, now_s, str(error), state.memory_sha256, state.shared
            return StepClosed(*before, blamed=blamed)
    answers = (
        iter([unmasked])
        if state.masked is not None
        else (
            AdmittedUpdate(
                device_id,
                decode_update(store.read(one.update_sha256 or ""), shapes, UPDATES_SINCE),
                one.norm,
                rule.share(step.staleness(one.work_id)) if rule else 1.0,
                one.counted,
            )
            for device_id, one in step.updates()
        )
    )
    remembered = state.memory_sha256 and store.read(state.memory_sha256)
    found = learn(
        live.config.learning,
        narrowed(live.config, state, step),
        live.rounds,
        answers,
        adapter,
        decode_memory(remembered or b""),
        state.medians.norms,
        context=context_of(live.config, state, opened, live.run.secret),
        down=live.config.updates.down,
    )
    if found.lack:
        return StepClosed(
            opened.adapter_sha256, now_s, found.lack, state.memory_sha256, state.shared
        )
    memory = store.put(encode_memory(found.memory)) if found.memory else ""
    shared = {step: store.put(encode_adapter(given)) for step, given in found.shared.items()}
    coded = store.put(found.step) if found.step else ""
    name = store.put(encode_adapter(found.adapter))
    return StepClosed(name, now_s, "", memory, shared, found.lost, coded, len(found.step))


SAID = {
    "pause": "paused",
    "resume": "goes on",
    "stop": "stopped",
    "extend": "extended",
    "rollback": "back",
    "forget": "without the devices that were forgotten",
}


def carry_out(store: Store, ledger: Ledger, now_s: float) -> Iterator[tuple[Live, Event]]:
    """Carry out all open orders, oldest first, each when the next is asked for.

    Yields:
        What happened: a run as it stood before, and its event.
    """
    for order in open_orders(store):
        while (live := ledger.run(order.run_id)) is not None:
            found = _event(store, live, order, now_s)
            if found is None:
                break
            event, beside = found
            if _appended(store, ledger, live, event, beside, order, now_s):
                more = f" to {order.rounds} rounds" if order.kind == "extend" else ""
                more = f" at round {order.rounds}" if order.kind == "rollback" else more
                if isinstance(event, Folded) and (after := ledger.run(order.run_id)):
                    more = f", back to round {after.state.round_index}"
                    store.database.scrub()
                run, told = live.config.name, about(live.config.name)
                LOG.info("%s: %s%s by an operator", run, SAID[order.kind], more, extra=told)
                yield live, event
                break
            # An answer came in between: the order is looked at again.
            again = order_of(store, order.order_id)
            if again is None or again.done_at_s is not None:
                break


def _appended(
    store: Store,
    ledger: Ledger,
    live: Live,
    event: Event,
    beside: Sequence[Statement],
    order: Order,
    now_s: float,
) -> bool:
    """Carry an order out, unless an answer came in between or another process has done so."""
    try:
        return ledger.append(live, event, taken_up(order.order_id, now_s), *beside)
    except Conflict:
        known = order_of(store, order.order_id)
        if known is None or known.done_at_s is None:
            raise
        return False


def _event(
    store: Store, live: Live, order: Order, now_s: float
) -> tuple[Event, Sequence[Statement]] | None:
    """The event of an order, and what goes with it; None where it has none, which is noted."""
    if order.kind == "forget":
        known = live.run, live.state, live.seq, live.shelf.keep_rounds
        found = without_forgotten(store, *known, now_s)
        if found is None:
            store.database.write(taken_up(order.order_id, now_s))
        return found
    try:
        adapters = adapters_there(store, live.run) if order.kind == "rollback" else {}
        return event_of(order.kind, order.rounds, live.config, live.state, now_s, adapters), ()
    except OrderError as error:
        store.database.write(taken_up(order.order_id, now_s, refused=str(error)))
        run = live.config.name
        LOG.warning("%s: cannot %s: %s", run, order.kind, error, extra=about(run))
        return None

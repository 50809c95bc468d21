"""Carries out operators' orders: each once, its event and the note that it is done together.

Called at each tick, before runs proceed. After a kill an order is either open, with its event not
written, or done.
"""

import logging
from collections.abc import Iterator

from coordinator.rounds.events import Event
from coordinator.rounds.orders import OrderError, event_of
from coordinator.serving.ledger import Ledger, Live
from coordinator.storage.errors import Conflict
from coordinator.storage.orders import Order, adapters_there, open_orders, order_of, taken_up
from coordinator.storage.store import Store
from coordinator.watch.logs import about

LOG = logging.getLogger(__name__)
SAID = {
    "pause": "paused",
    "resume": "goes on",
    "stop": "stopped",
    "extend": "extended",
    "rollback": "back",
}


def carry_out(store: Store, ledger: Ledger, now_s: float) -> Iterator[tuple[Live, Event]]:
    """Carry out all open orders, oldest first, each when the next is asked for.

    Yields:
        What happened: a run as it stood before, and its event.
    """
    for order in open_orders(store):
        while (live := ledger.run(order.run_id)) is not None:
            event = _event(store, live, order, now_s)
            if event is None:
                break
            if _appended(store, ledger, live, event, order, now_s):
                more = f" to {order.rounds} rounds" if order.kind == "extend" else ""
                more = f" at round {order.rounds}" if order.kind == "rollback" else more
                run, told = live.config.name, about(live.config.name)
                LOG.info("%s: %s%s by an operator", run, SAID[order.kind], more, extra=told)
                yield live, event
                break
            # An answer came in between: the order is looked at again.
            again = order_of(store, order.order_id)
            if again is None or again.done_at_s is not None:
                break


def _appended(
    store: Store, ledger: Ledger, live: Live, event: Event, order: Order, now_s: float
) -> bool:
    """Carry an order out, unless an answer came in between or another process has done so."""
    try:
        return ledger.append(live, event, taken_up(order.order_id, now_s))
    except Conflict:
        known = order_of(store, order.order_id)
        if known is None or known.done_at_s is None:
            raise
        return False


def _event(store: Store, live: Live, order: Order, now_s: float) -> Event | None:
    """The event of an order; None where it is refused, which is noted."""
    try:
        adapters = adapters_there(store, live.run) if order.kind == "rollback" else {}
        return event_of(order.kind, order.rounds, live.config, live.state, now_s, adapters)
    except OrderError as error:
        store.database.write(taken_up(order.order_id, now_s, refused=str(error)))
        run = live.config.name
        LOG.warning("%s: cannot %s: %s", run, order.kind, error, extra=about(run))
        return None

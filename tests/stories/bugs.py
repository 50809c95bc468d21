"""Bugs that are planted to see whether stories find them: each a fault that was thinkable here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smidgen.coordinator.rounds.events import Answered, Event
from smidgen.coordinator.serving import executor as executing
from smidgen.coordinator.serving.ledger import Ledger
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.client.runs.own import Homecoming
from smidgen.edge_client.client.state import ClientState, FinishedWork
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Over, Receipt, Report, decode
from smidgen.edge_client.wire.tensors import sha256
from tests.stories.clock import put


def dies_with_its_process(late: list[Any]) -> None:
    """What a coordinator holds in memory is gone with it, and in the next story."""
    begun = Ledger.__init__

    def begin(ledger: Ledger, *known: Any) -> None:
        late.clear()
        begun(ledger, *known)

    put(Ledger, __init__=begin)


def journal() -> None:
    """Answers are acknowledged at once, and written with the next event that is none."""
    written, late = Store.append_all, list[tuple[str, int, Event]]()

    def append_all(store: Store, events: Sequence[tuple[str, int, Event]], *more: Any) -> None:
        if all(isinstance(event, Answered) for *_, event in events):
            late.extend(events)
            return
        here = [*late, *events]
        late.clear()
        written(store, here, *more)

    put(Store, append_all=append_all)
    dies_with_its_process(late)


def outbox() -> None:
    """Finished work is sent after a restart as it lies there, damaged or not."""

    def finished(state: ClientState) -> list[FinishedWork]:
        found = []
        for path in sorted(state._outbox.glob("*.json")):
            update = path.with_suffix(".st")
            body = update.read_bytes() if update.is_file() else None
            report = decode(path.read_bytes().rpartition(b"\n")[0], Report)
            found.append(FinishedWork(report, body))
        return found

    put(ClientState, finished=finished)


def executor() -> None:
    """A new adapter is in the journal before it is on the disk."""
    aggregated, landed, written = executing.aggregate, executing._landed, Store.put
    late = list[Callable[[], object]]()

    def store(place: Store, body: bytes, name: str = "") -> str:
        late.append(lambda: written(place, body, name))
        return name or sha256(body)

    def aggregate(*known: Any) -> Any:
        late.clear()
        put(Store, put=store)
        try:
            return aggregated(*known)
        finally:
            put(Store, put=written)

    def land(*known: Any) -> bool:
        is_landed = landed(*known)
        while late:
            late.pop()()
        return is_landed

    put(executing, aggregate=aggregate, _landed=land)


def uploads() -> None:
    """An update is in the journal before its blob is on the disk."""
    kept, answered = Store.keep, Ledger.answer
    late = list[Callable[[], None]]()

    def keep(store: Store, *blob: Any) -> None:
        late.append(lambda: kept(store, *blob))

    def answer(ledger: Ledger, *what: Any) -> Receipt:
        receipt = answered(ledger, *what)
        while late:
            late.pop()()
        return receipt

    put(Store, keep=keep)
    put(Ledger, answer=answer)
    dies_with_its_process(late)


def homecoming() -> None:
    """The coordinator hears that an adapter is at home before it is."""
    fetched = Homecoming.of

    def of(home: Homecoming, over: Over) -> bool:
        home._say(over.run_id, Membership("home"))
        return fetched(home, over)

    put(Homecoming, of=of)


BUGS: Mapping[str, Callable[[], None]] = {
    one.__name__: one for one in (journal, outbox, executor, uploads, homecoming)
}

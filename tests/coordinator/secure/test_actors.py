"""docs/privacy.md, "What this reveals": each actor of a masked run, played with all that it has."""

from collections.abc import Callable

import numpy as np

from smidgen.coordinator.rounds.learning.unmasking import _by_dealer, _Recovery, places_of
from smidgen.edge_client.updates.masks import add_mask, ring_in
from smidgen.edge_client.updates.secure_sum import NUMBERS, SEALS, SHARES, lane_of, unpacked
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.tensors import decode_update
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for
from tests.coordinator.secure.members import members_of

Start = Callable[..., Live]


def test_a_coordinator_has_the_sum_and_no_update_with_all_that_it_is_sent(start: Start) -> None:
    """It takes off what it can: each own mask, as it learned these; pairs hide the rest."""
    live = start(
        rounds=1,
        adapter="lora:8",
        updates=Updates(secure_aggregation="int8"),
        min_updates=3,
        min_clients=6,
    )
    members = members_of(live.enrol(*"abcdef"))
    members[5].ends_at = (1,)
    for one in members:
        one.join()
    for kind in ("evaluate", "train", "unmask"):
        for one in members:
            if kind != "unmask" or one is not members[5]:
                one.do(one.work())
        if kind == "train":
            wait_for(lambda: live.service.run(live.run_id).state.masked is not None)
            opened = live.service.run(live.run_id).state.masked
            assert opened is not None
            ring = ring_in(live.store.read(opened.opened.handed("")))
            places = places_of(opened.opened, live.service.run(live.run_id).run.secret)
    sent = {  # all uploads, by place: of training, then of the unmasking
        places.index(one.device_id): [decode_update(body).coded or {} for body in bodies]
        for one in members
        if len(bodies := list(one.bodies.values())) == 2
    }
    assert len(sent) == 5
    answers = {place: two[1][SHARES].tobytes() for place, two in sent.items()}
    known = _Recovery(ring, frozenset(sent), _by_dealer(ring, sent, answers))
    lane, by_id = lane_of(8, 6), {one.device_id: one for one in members}
    everything = list[np.ndarray]()
    for place, (update, _) in sent.items():
        plain_delta = by_id[places[place]].plain[1][1]
        exact = np.concatenate([plain_delta[name].ravel() for name in sorted(plain_delta)])
        numbers = unpacked(update[NUMBERS], exact.size, lane)
        own, pairs = known.of(place, update[SEALS])
        assert len(pairs) == 1  # with the one that dropped out
        add_mask(numbers, own, -1)
        signed = (numbers % 2**lane).astype(np.float64)
        signed -= 2.0**lane * (signed >= 2 ** (lane - 1))
        assert abs(np.corrcoef(signed, exact)[0, 1]) < 5.0 / np.sqrt(exact.size)
        assert signed.std() > 0.9 * 2**lane / np.sqrt(12.0)  # even over the whole range
        everything.append(exact)
    assert np.corrcoef(sum(everything), everything[0])[0, 1] > 0.2  # were it not even


def test_a_device_hears_keys_without_names(start: Start) -> None:
    live = start(rounds=1, updates=Updates(secure_aggregation="int8"), min_updates=3, min_clients=4)
    members = members_of(live.enrol("kitchen", "hall", "garden", "cellar"))
    for one in members:
        one.join()
    for one in members:
        one.do(one.work())
    seen = [members[0].file(members[0].work().updates[-1].shared_sha256)]
    for one in members:
        one.do(one.work())
    seen.append(members[0].file(members[0].work().updates[-1].shared_sha256))
    for body in seen:
        for other in members:
            assert other.name.encode() not in body and other.device_id.encode() not in body
            assert other.key.encode() not in body

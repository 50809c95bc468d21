"""docs/privacy.md, "What this reveals": each actor of a masked run, played with all that it has."""

import inspect
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.coordinator.rounds.events import StepClosed, StepOpened
from smidgen.coordinator.rounds.learning.unmasking import _by_dealer, _Recovery, places_of
from smidgen.coordinator.storage.reports import rows
from smidgen.edge_client.updates.masks import add_mask, ring_in
from smidgen.edge_client.updates.secure_sum import NUMBERS, SEALS, SHARES, lane_of, unpacked
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.updates.states import is_private
from smidgen.edge_client.wire.messages import Work
from smidgen.edge_client.wire.tensors import AdapterState, decode_adapter, decode_update
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for
from tests.coordinator.privacy.test_private_rounds import through as plainly_through
from tests.coordinator.secure.members import members_of
from tests.coordinator.secure.test_noised_rounds import NOISED, PRIVACY, step_of
from tests.coordinator.secure.test_secure_rounds import NAMES, SECURE, rounds_of, through
from tests.edge_client.updates import test_text_noise_rounds

Start = Callable[..., Live]


def test_a_coordinator_has_the_sum_and_no_update_with_all_that_it_is_sent(start: Start) -> None:
    """With it the owner has sums of updates alone, if the coordinator follows the protocol and too
    few devices collude with it.
    """
    # It takes off what it can: each own mask, as it learned these; pairs hide the rest.
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
    """A device that masks has the keys of the others for this run, and no name."""
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


def flat(state: AdapterState) -> np.ndarray:
    return np.concatenate([state[name].ravel().astype(np.float64) for name in sorted(state)])


def moved_by(live: Live, opened: StepOpened, closed: StepClosed) -> np.ndarray:
    """What whoever has the adapters knows of a round."""
    names = closed.adapter_sha256 or "", opened.adapter_sha256
    after, before = (flat(decode_adapter(live.store.read(name))) for name in names)
    return np.asarray(after - before)


def test_an_owner_reads_each_update_until_its_round_is_closed(start: Start) -> None:
    """Without secure aggregation the owner has each device's update until its round is closed."""
    live = start(rounds=1, min_clients=2, min_updates=2)
    one, other = live.join("a", "b")
    for each in (one, other):
        each.do(each.work())
    work = one.work()
    one.do(work)
    state = live.service.run(live.run_id).state
    assert state.step is not None
    [(_, told)] = state.step.updates()
    name = told.update_sha256 or ""
    assert live.store.read(name) == one.update(work)
    other.do(other.work())
    wait_for(lambda: live.service.run(live.run_id).state.round_index == 1)
    wait_for(lambda: not (live.store.folder / "blobs" / name).exists())


@pytest.mark.parametrize("names", [("a", "b"), ("a",)])
def test_other_devices_have_the_mean(start: Start, names: tuple[str, ...]) -> None:
    """Other devices have the mean of a round's updates; in a round of one device that is its
    update.
    """
    settings = {"norm_bound": 0.0, "max_examples": 0, "rounds": 1}
    live = start(**settings, min_clients=len(names), min_updates=len(names))
    devices = live.join(*names)
    before = live.http.get  # what any device of the run may fetch
    for one in devices:
        one.do(one.work())
    works = [(one, one.work()) for one in devices]
    updates = [decode_update(one.update(work)) for one, work in works]
    for one, work in works:
        one.do(work)
    wait_for(lambda: live.service.run(live.run_id).state.round_index == 1)
    sha = live.service.run(live.run_id).state.adapter_sha256
    first, last = (
        decode_adapter(before(f"/v1/adapters/{name}", headers=devices[0].headers).content)
        for name in (works[0][1].adapter_sha256, sha)
    )
    weights = [one.num_examples for one in updates]
    mean = np.average([flat(one.delta) for one in updates], axis=0, weights=weights)
    np.testing.assert_allclose(flat(last) - flat(first), mean, atol=1e-6)


@pytest.mark.parametrize("settings", [{"min_clients": 5, "min_updates": 3}, SECURE, NOISED])
def test_an_owner_has_counts_and_accuracies(start: Start, settings: dict[str, Any]) -> None:
    """In every mode the owner has each device's counts and accuracies, and who took part in which
    round.
    """
    live = start(rounds=1, **settings)
    devices = live.enrol(*NAMES)
    if "updates" in settings:
        through(live, members_of(devices))
    else:
        plainly_through(live, *NAMES)
    told = list(rows(live.store, live.run_id))
    for kind, of in (("train", "num_examples"), ("evaluate", "accuracy")):
        found = {row["device"]: row[of] for row in told if row["kind"] == kind}
        assert len(found) == 5 and None not in found.values()


def test_noise_of_the_coordinator_is_in_adapters_alone(start: Start) -> None:
    """With differential privacy of unit `device` the owner has updates without noise; whoever has
    the adapters, and all updates but one, has that one with noise.
    """
    live = start(rounds=1, privacy=PRIVACY, min_clients=4, min_updates=4)
    devices = live.join("a", "b", "c", "d")
    for one in devices:
        one.do(one.work())
    works = [(one, one.work()) for one in devices]
    for one, work in works:
        one.do(work)
    wait_for(lambda: live.service.run(live.run_id).state.round_index == 1)
    plain = [flat(decode_update(one.update(work)).delta) for one, work in works]
    opened, closed = last_of(live)
    account = live.service.run(live.run_id).config.account
    assert account is not None
    hidden(moved_by(live, opened, closed), plain, account.multiplier)


def test_noise_of_devices_is_in_all_that_the_owner_has(start: Start) -> None:
    """With unit `device` under secure aggregation the owner, too, has it with noise, and no
    training loss.
    """
    live = start(rounds=1, **NOISED)
    members = members_of(live.enrol(*NAMES))
    works = list[Work]()
    for one in members:
        one.join()
    for one in members:
        one.do(one.work())
    for one in members:
        works.append(one.work())
        one.do(works[-1])
    through(live, members)
    [(state, closed)] = rounds_of(live)
    assert state.masked is not None
    plain = [flat(one.plain[1][1]) for one in members]
    hidden(moved_by(live, state.masked.opened, closed), plain, step_of(state).multiplier)
    assert all(map(is_private, works))  # whose loss no client reports
    assert not is_private(replace(works[0], updates=()))


def hidden(moved: np.ndarray, plain: list[np.ndarray], multiplier: float) -> None:
    """What is left of a sum without all updates but the first: it, and the noise of the account."""
    clipped = [one * min(1.0, PRIVACY.clip / np.linalg.norm(one)) for one in plain]
    left = moved * len(plain) - np.sum(clipped[1:], axis=0)
    noise, size = left - clipped[0], left.size
    assert noise.std() > multiplier * PRIVACY.clip * (1.0 - 4.0 / math.sqrt(2 * size))
    assert abs(np.corrcoef(left, plain[0])[0, 1]) < 5.0 / math.sqrt(size) + PRIVACY.clip / (
        math.sqrt(size) * noise.std()
    )


def last_of(live: Live) -> tuple[StepOpened, StepClosed]:
    """The training step that was closed last, and its end."""
    opened, found = None, list[tuple[StepOpened, StepClosed]]()
    for event in live.store.events(live.run_id):
        if isinstance(event, StepOpened) and event.kind == "train":
            opened = event
        elif isinstance(event, StepClosed) and opened is not None:
            found.append((opened, event))
            opened = None
    return found[-1]


def test_every_line_of_the_page_is_played() -> None:
    page = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text("utf-8")
    section = page.partition("## What this reveals")[2].partition("Epsilon says")[0]
    lines = {plainly(one) for one in section.split("\n- ")[1:]}
    assert len(lines) == 8 and lines == {plainly(one) for one in played()}


def played() -> Iterable[str]:
    for module in (inspect.getmodule(played), test_text_noise_rounds):
        for name, one in vars(module).items():
            is_test = name.startswith("test_") and inspect.isfunction(one)
            if is_test and (said := one.__doc__):
                yield said


def plainly(said: str) -> str:
    """A sentence without its links and breaks."""
    return " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", said).split())

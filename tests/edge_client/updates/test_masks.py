"""Secure aggregation: sums to the bit whoever drops out, and what nobody is told."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from smidgen.coordinator.rounds.learning.unmasking import LostSum
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.updates.masks import (
    COMPLETE,
    Graph,
    Member,
    Ring,
    Unmasking,
    graph_of,
    parts_of,
    ring_in,
    unmasking_in,
)
from smidgen.edge_client.updates.secure_sum import (
    BITS,
    NUMBERS,
    SEALS,
    SHARES,
    check_masked,
    lane_of,
    levels_of,
    packed,
    unpacked,
)
from smidgen.edge_client.updates.shamir import correct, recover, weights_of
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import Update
from smidgen.edge_client.wire.training import Training
from tests.edge_client.updates.masked import (
    asked,
    delta_of,
    plain_mean,
    ring_of,
    secret_of,
    sent,
    spoiled,
    step_of,
    unmasked,
    without,
)

SHAPES = {"a": (3, 5), "b": (70,)}
WIDTHS = st.sampled_from(["int4", "int8", "int16"])


def test_the_graph_is_that_of_the_arithmetic() -> None:
    """k and t at 2^-40 and 2^-20, by exact hypergeometric tails and the union bound."""
    found = {n: graph_of(n, complete=0) for n in (50, 200, 1000)}
    assert found == {50: Graph(20, 6), 200: Graph(54, 21), 1000: Graph(88, 36)}
    wide = {n: graph_of(n, corrupt=0.2, complete=0).neighbours for n in (50, 200, 1000)}
    assert wide == {50: 26, 200: 80, 1000: 140}
    assert graph_of(200) == Graph(76, 21)  # more, so that three in ten may go twice and some lie
    for devices in range(3, COMPLETE + 1):
        graph = graph_of(devices)
        assert graph.neighbours == devices - 1
        assert max(1, devices // 10) < graph.threshold <= graph.neighbours
    with pytest.raises(WrongInput, match="3 to 1024 devices a round are expected, 2 came"):
        graph_of(2)


@pytest.mark.parametrize("devices", [3, 8, 65, 66, 200])
def test_neighbours_are_each_others_and_as_many_as_the_graph_says(devices: int) -> None:
    ring = Ring("run", 1, 1, 0.0, tuple(n.to_bytes(32, "big") for n in range(devices)))
    near = [set(ring.neighbours(place)) for place in range(devices)]
    assert all(len(one) == ring.graph.neighbours for one in near)
    assert all(place not in near[place] for place in range(devices))
    assert all(place in near[other] for place in range(devices) for other in near[place])
    assert ring_in(ring.body) == ring and len({ring.name, replace(ring, attempt=2).name}) == 2


@settings(deadline=None, max_examples=25)
@given(
    st.integers(3, 12),
    st.randoms(use_true_random=False),
    st.sampled_from(["int4", "int8", "int16"]),
)
def test_the_sum_is_the_plain_one_to_the_bit_or_is_not_told(
    devices: int, draw: random.Random, bits: str
) -> None:
    ring, all_of_them = ring_of(devices), range(devices)
    updates = {place: sent(place, ring, SHAPES, bits) for place in all_of_them}
    gone = draw.sample(all_of_them, draw.randint(0, devices - 2))
    left = without(updates, gone)
    silent = draw.sample(sorted(left), draw.randint(0, len(left) - 1))
    wrong = draw.sample(sorted(left), draw.randint(0, 1))
    try:
        mean = unmasked(ring, left, silent, wrong, shapes=SHAPES, bits=bits)
    except (LostSum, WireError):
        # A device's neighbours are all others; its own share is nobody's.
        there = len(left) - len(silent) - 1
        assert there < ring.graph.threshold + 2 * len(wrong) or len(left) <= ring.graph.threshold
    else:
        assert np.array_equal(mean, plain_mean(left, SHAPES, bits))


def test_thirty_percent_gone_and_ten_percent_wrong_are_borne() -> None:
    devices = 20
    ring, draw = ring_of(devices), random.Random(7)
    updates = {place: sent(place, ring, SHAPES) for place in range(devices)}
    left = without(updates, draw.sample(range(devices), 6))
    wrong = draw.sample(sorted(left), 1)
    found = unmasked(
        ring, left, draw.sample(sorted(set(left) - set(wrong)), 1), wrong, shapes=SHAPES
    )
    assert np.array_equal(found, plain_mean(left, SHAPES))


def test_a_sparse_ring_bears_the_same() -> None:
    devices = COMPLETE + 36
    ring, draw = ring_of(devices), random.Random(3)
    assert ring.graph.neighbours < devices - 1
    updates = {place: sent(place, ring, {"a": (9,)}) for place in range(devices)}
    left = without(updates, draw.sample(range(devices), 30))
    wrong = set(draw.sample(sorted(left), 3))
    silent = draw.sample(sorted(set(left) - wrong), 10)
    found = unmasked(ring, left, silent, wrong, shapes={"a": (9,)})
    assert np.array_equal(found, plain_mean(left, {"a": (9,)}))


def test_a_masked_update_looks_like_nothing_and_never_twice_alike() -> None:
    ring, later = ring_of(5), ring_of(5, opened_at_s=6.0)
    shapes = {"a": (4096,)}
    one, again = sent(1, ring, shapes), sent(1, ring, shapes)
    assert np.array_equal(one.coded[NUMBERS], again.coded[NUMBERS])  # type: ignore[index]
    assert not one.delta and one.codec == "masked"
    lane = lane_of(8, 5)
    numbers = unpacked(one.coded[NUMBERS], 4096, lane)  # type: ignore[index]
    counts = np.bincount(numbers, minlength=2**lane)
    assert counts.size == 2**lane and counts.max() < 16  # 2 of each are expected
    for other in (sent(1, later, shapes), sent(1, ring, shapes, scale=0.1001)):
        moved = unpacked(other.coded[NUMBERS], 4096, lane) - numbers  # type: ignore[index]
        # Also the difference of two masked updates of one ring is as even: b is of the update.
        assert np.bincount(moved % 2**lane, minlength=2**lane).max() < 16


def test_a_device_answers_for_no_set_of_too_few() -> None:
    """Whoever is said to be gone: what is left of a neighbourhood has to hide its members."""
    devices = 6
    ring, dealer = ring_of(devices), 2
    updates = {place: sent(place, ring, SHAPES) for place in range(devices)}
    members = {place: Member(ring, secret_of(place)) for place in range(devices)}
    for size in range(2, devices):
        for included in itertools.combinations(range(devices), size):
            for place in set(included) - {dealer} if dealer in included else ():
                what = asked(ring, place, {one: updates[one] for one in included})
                if len(included) > ring.graph.threshold:
                    assert members[place].answer(what)
                else:
                    with pytest.raises(WireError, match="too few to hide each other"):
                        members[place].answer(what)


@pytest.mark.parametrize("devices", [5, 12, COMPLETE + 16])
def test_colluders_below_the_threshold_open_nobody(devices: int) -> None:
    """They tell all shares they hold, and all seeds they have a part in; one more opens b."""
    ring, victim = ring_of(devices), 2
    updates = {place: sent(place, ring, {"a": (9,)}) for place in range(devices)}
    seal = (updates[victim].coded or {})[SEALS][0].tobytes()
    near, least = ring.neighbours(victim), ring.graph.threshold
    shares = {}
    for place in near[:least]:
        index = [one for one in ring.neighbours(place) if one in updates].index(victim)
        own = parts_of(Member(ring, secret_of(place)).answer(asked(ring, place, updates)))
        shares[1 + near.index(place)] = own[index]
    few = dict(list(shares.items())[: least - 1])
    found = recover(few.values(), weights_of(list(few))) if few else None
    assert found is None or ring.seal(found) != seal
    assert correct(few, least) is None
    hidden = set(near) - set(near[: least - 1])
    assert len(hidden) >= 2  # whose seeds with the victim nobody has told
    found = recover(shares.values(), weights_of(list(shares)))
    assert found is not None and ring.seal(found) == seal  # one colluder more: what t says


def test_many_at_once_who_deal_inconsistent_shares_are_not_blamed() -> None:
    """Who answers wrongly would have honest devices shut out."""
    ring = ring_of(8)
    updates = {place: sent(place, ring, SHAPES) for place in range(8)}
    for place in (1, 3):
        updates[place] = spoiled(updates[place], SHARES, range(7))
    with pytest.raises(LostSum, match="dealt inconsistent shares") as lost:
        unmasked(ring, updates, shapes=SHAPES)
    assert lost.value.dealers == ()


REFUSED: list[tuple[Callable[[Unmasking], Unmasking], str]] = [
    (lambda one: replace(one, ring=ring_of(5, 9.0).body), "not of this device's update"),
    (lambda one: replace(one, included=one.included[1:]), "not of this device's update"),
    (lambda one: replace(one, shares=one.shares[1:]), "not of this device's update"),
    (
        lambda one: replace(one, shares=(one.shares[0] + bytes(17), *one.shares[1:])),
        "too few or too many shares",
    ),
]


@pytest.mark.parametrize(("spoil", "said"), REFUSED)
def test_a_device_answers_nothing_else(spoil: Callable[[Unmasking], Unmasking], said: str) -> None:
    ring = ring_of(5)
    what = asked(ring, 0, {place: sent(place, ring, SHAPES) for place in range(5)})
    assert unmasking_in(what.body) == what
    with pytest.raises(WireError, match=said):
        Member(ring, secret_of(0)).answer(spoil(what))


def test_inconsistent_shares_name_the_one_who_dealt_them() -> None:
    devices = 8
    ring = ring_of(devices)
    updates = {place: sent(place, ring, SHAPES) for place in range(devices)}
    updates[3] = spoiled(updates[3], SHARES, range(devices - 1))
    with pytest.raises(LostSum, match="dealt inconsistent shares") as lost:
        unmasked(ring, updates, shapes=SHAPES)
    assert lost.value.dealers == (3,)
    updates[3] = spoiled(sent(3, ring, SHAPES), SEALS, [0])
    with pytest.raises(LostSum) as lost:
        unmasked(ring, updates, shapes=SHAPES)
    assert lost.value.dealers == (3,)


def test_a_sum_that_no_updates_give_is_not_taken() -> None:
    ring = ring_of(4)
    updates = {place: sent(place, ring, SHAPES) for place in range(4)}
    updates[1] = spoiled(updates[1], NUMBERS, range(20))
    with pytest.raises(LostSum, match="larger than such updates can be"):
        unmasked(ring, updates, shapes=SHAPES)


@pytest.mark.parametrize("lane", [1, 8, 11, 16, 17, 26, 32])
@pytest.mark.parametrize("size", [0, 1, 7, 65536, 65539])
def test_packing_keeps_the_low_bits(lane: int, size: int) -> None:
    kind = np.uint16 if lane <= 16 else np.uint32
    numbers = np.random.default_rng(lane).integers(0, 2**32, size, np.uint32).astype(kind)
    stored = packed(numbers, lane)
    assert stored.dtype == np.uint8 and stored.size == -(-size * lane // 8)
    kept = numbers.astype(np.uint64) & np.uint64(2**lane - 1)
    assert np.array_equal(unpacked(stored, size, lane), kept)


@given(st.sampled_from([4, 8, 16]), st.integers(3, 1024))
def test_no_sum_wraps(bits: int, devices: int) -> None:
    lane = lane_of(bits, devices)
    assert devices * levels_of(bits) < 2 ** (lane - 1) <= 2 * devices * levels_of(bits)
    assert lane <= 32


def test_what_is_left_out_comes_with_the_next_update() -> None:
    """Error feedback: what is sent in many rounds adds up to what was to be sent."""
    steps, rounds, total = [step_of() for _ in range(3)], 20, np.zeros(50)
    delta = np.linspace(-0.6, 0.6, 50).astype(np.float32)  # beyond the range
    for number in range(rounds):
        ring, updates = ring_of(3, opened_at_s=float(number)), dict[int, Update]()
        for place, step in enumerate(steps):
            step.take(ring.body)
            context = DeviceContext(Training(), 3, None, 0, secret_of(place), "run")
            updates[place] = step.outgoing(Update("w", 30, {"a": delta}), context)
        total += unmasked(ring, updates, shapes={"a": (50,)})
    kept = np.mean([(step.state or {})["a"] for step in steps], axis=0)
    assert np.allclose(total + kept, rounds * delta, atol=1e-4)
    assert np.abs(kept).max() < rounds * 0.1 + 0.01 and np.abs(kept)[5:45].max() < 0.01


def test_nothing_is_masked_without_a_ring_or_a_secret_or_for_another_round() -> None:
    ring, context = ring_of(3), DeviceContext(Training(), 3, None, 0, secret_of(0), "run")
    update = Update("w", 3, delta_of(0, SHAPES))
    with pytest.raises(Failed, match="no other devices or no secret"):
        step_of().outgoing(update, context)
    with pytest.raises(Failed, match="no other devices or no secret"):
        step_of(ring).outgoing(update, replace(context, secret=b""))
    for other in (replace(context, round_index=4), replace(context, run_id="other")):
        with pytest.raises(WireError, match="another round's"):
            step_of(ring).outgoing(update, other)
    with pytest.raises(WireError, match="this device's key is not among"):
        step_of(ring).outgoing(update, replace(context, secret=b"another"))


@pytest.mark.parametrize("name", [NUMBERS, SHARES, SEALS])
def test_tensors_of_other_shapes_are_no_masked_update(name: str) -> None:
    ring = ring_of(4)
    update = sent(0, ring, SHAPES)
    check_masked(step_of(ring), ring, update, SHAPES)
    coded = update.coded or {}
    for other in ({**coded, name: coded[name][:-1]}, {**coded, name: coded[name].astype(np.int16)}):
        with pytest.raises(WireError, match="a masked update: uint8 of"):
            check_masked(step_of(ring), ring, replace(update, coded=other), SHAPES)


@pytest.mark.parametrize(
    "keys", [(b"k" * 32,) * 3, (b"a" * 32, b"b" * 32), (b"a" * 32, b"b" * 32, b"c" * 31)]
)
def test_a_ring_has_three_whole_keys_that_differ(keys: tuple[bytes, ...]) -> None:
    with pytest.raises(WrongInput, match="ring: "):
        Ring("run", 1, 1, 0.0, keys)
    with pytest.raises(WireError, match="cannot be read"):
        ring_in(b"\x00")


def test_the_reference_says_what_rings_hide_and_how_wide_numbers_are() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "run-file.md").read_text()
    sizes, cells = (6, 10, 20, 50, 200, 1000), []
    for size in sizes:
        least = graph_of(size).threshold
        may_collude = size // 10 if size > COMPLETE else least - 1
        cells.append((max(3, least + 1), may_collude))
    rows = zip(*cells, strict=True)
    for said, row in zip(("updates without", "devices that"), rows, strict=True):
        assert f"| {said}" in page and " | ".join(map(str, row)) + " |" in page
    for name, bits in BITS.items():
        lanes = ", ".join(str(lane_of(bits, size)) for size in (5, 50, 200))
        assert f'| `"{name}"` | {levels_of(bits):,} | {lanes} |' in page

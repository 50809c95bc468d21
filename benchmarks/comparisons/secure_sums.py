"""What a round of secure aggregation costs beside one whose updates are seen, at any cohort.

Devices are drawn anew whenever they are needed, so that memory holds one update at a time. Three in
ten are gone before their update, as many of the rest before they unmask, and a tenth of those who
answer give wrong shares.
"""

import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from smidgen.coordinator.rounds.learning.unmasking import LostSum, asked_of, sum_of
from smidgen.edge_client.codecs import encode
from smidgen.edge_client.updates.masks import Member, Ring, public_key
from smidgen.edge_client.updates.secure_sum import (
    SEALS,
    SHARES,
    SecureSum,
    flat,
    largest_level,
    levels_of,
    share_of,
)
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.tensors import Update, encode_update
from smidgen.edge_client.wire.training import Training

REACH, MOST = 0.5, 50


@dataclass(frozen=True)
class Cohort:
    """One round.

    Attributes:
        devices: Asked.
        numbers: Trained ones.
        bits: As a run file has them.
        gone: Share that is gone at each of the two exchanges.
        wrong: Share of the answers that are wrong.
        seed: Draws who.
    """

    devices: int
    numbers: int
    bits: str = "int8"
    gone: float = 0.3
    wrong: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Costs:
    """What it took.

    Attributes:
        neighbours, threshold: Of the graph.
        included: Updates in the sum.
        device_s: Median processor seconds of masking an update and dealing its shares.
        answer_s: Of an answer to the unmasking.
        server_s: Of the coordinator, from shares to the mean.
        up_bytes, unmask_bytes: A device's update and unmasking, both ways.
        plain_bytes: An update coded to int8, as it travels without masks.
        down_bytes: An adapter's step coded to int8.
        lost: Why there is no sum; empty where there is one.
        is_exact: Whether it equals the plain sum of the same numbers in each bit.
    """

    neighbours: int
    threshold: int
    included: int
    device_s: float
    answer_s: float
    server_s: float
    up_bytes: int
    unmask_bytes: int
    plain_bytes: int
    down_bytes: int
    lost: str
    is_exact: bool

    @property
    def times_the_bytes(self) -> float:
        """Bytes of a device's round by those of one without masks, both with int8 ways down."""
        plain = self.plain_bytes + self.down_bytes
        return (self.up_bytes + self.unmask_bytes + self.down_bytes) / plain


def measured(cohort: Cohort) -> Costs:
    """One round of these devices."""
    draw, everybody = random.Random(cohort.seed), range(cohort.devices)
    secrets = [hashlib.sha256(f"{cohort.seed} {n}".encode()).digest() for n in everybody]
    ring = Ring("run", 1, 1, float(cohort.seed), tuple(map(public_key, secrets)))
    left = _without(everybody, cohort.gone, draw)
    here = _without(left, cohort.gone, draw)
    liars = set(draw.sample(here, round(cohort.wrong * len(here))))
    step, taken = _step(cohort, ring), list[float]()
    rows, shares, seals = {}, dict[int, np.ndarray](), dict[int, bytes]()
    exact, weight = np.zeros(cohort.numbers), 0.0

    def sent(place: int) -> Update:
        context = DeviceContext(Training(), 1, None, 0, secrets[place], "run")
        return _step(cohort, ring).outgoing(_update(cohort, place), context)

    up_bytes = 0
    for place in left:
        began_s = time.process_time()
        update = sent(place)
        taken.append(time.process_time() - began_s)
        up_bytes = len(encode_update(update))
        coded = update.coded or {}
        rows[place], shares[place] = update, coded[SHARES]
        seals[place] = coded[SEALS][0].tobytes()
        share = share_of(update.num_examples, MOST)
        exact, weight = exact + _whole(cohort, place, share), weight + share
    asked = {place: asked_of(ring, place, shares, seals) for place in here}
    answers, answer_s = dict[int, bytes](), list[float]()
    for place in here:
        began_s = time.process_time()
        answers[place] = Member(ring, secrets[place]).answer(asked[place])
        answer_s.append(time.process_time() - began_s)
        if place in liars:
            answers[place] = draw.randbytes(len(answers[place]))
    began_s, lost, is_exact = time.process_time(), "", False
    try:
        mean = sum_of(step, ring, sorted(rows.items()), answers, {"a": (cohort.numbers,)})
        expected = exact * (REACH / (levels_of(step.bits) * weight))
        is_exact = bool(np.array_equal(mean["a"], expected.astype(np.float32)))
    except LostSum as error:
        lost = str(error)
    server_s = time.process_time() - began_s
    plain, _ = encode(_update(cohort, 0).delta, "int8", {})
    coded_bytes = len(encode_update(Update("w", 1, {}, coded=plain, codec="int8")))
    told = [len(asked[place].body) + len(answers[place]) for place in here]
    return Costs(
        ring.graph.neighbours,
        ring.graph.threshold,
        len(left),
        median(taken),
        median(answer_s),
        server_s,
        up_bytes + len(ring.body),
        int(median(told)) + 200,
        coded_bytes,
        coded_bytes,
        lost,
        is_exact,
    )


def _without(some: Sequence[int], share: float, draw: random.Random) -> list[int]:
    gone = set(draw.sample(some, int(share * len(some))))
    return [one for one in some if one not in gone]


def _step(cohort: Cohort, ring: Ring) -> SecureSum:
    step = SecureSum(cohort.bits, repr(REACH), str(MOST))
    step.take(ring.body)
    return step


def _update(cohort: Cohort, place: int) -> Update:
    numbers = np.random.default_rng([cohort.seed, place]).normal(0, 0.1, cohort.numbers)
    return Update("w", 1 + 13 * place % 60, {"a": numbers.astype(np.float32)})


def _whole(cohort: Cohort, place: int, share: float) -> np.ndarray:
    """What a device adds to the sum, without masks."""
    levels = levels_of(SecureSum(cohort.bits).bits)
    reached = largest_level(levels, share)
    whole = np.rint(flat(_update(cohort, place).delta) * (share * levels / REACH))
    return np.clip(whole, -reached, reached)

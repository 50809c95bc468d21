"""Devices of a secure aggregation without a model: each holds a secret and an update."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from smidgen.coordinator.rounds.learning.unmasking import asked_of, sum_of
from smidgen.edge_client.codecs import Shapes
from smidgen.edge_client.updates.masks import Member, Ring, Unmasking, public_key
from smidgen.edge_client.updates.secure_sum import (
    SEALS,
    SHARES,
    SecureSum,
    largest_level,
    levels_of,
    share_of,
)
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.tensors import AdapterState, Update
from smidgen.edge_client.wire.training import Training

BITS, REACH, MOST = "int8", 0.5, 40


def secret_of(number: int) -> bytes:
    return hashlib.sha256(f"device {number}".encode()).digest()


def ring_of(devices: int, opened_at_s: float = 5.0, run_id: str = "run") -> Ring:
    return Ring(run_id, 3, 1, opened_at_s, tuple(map(public_key, map(secret_of, range(devices)))))


def delta_of(number: int, shapes: Shapes, scale: float = 0.1) -> AdapterState:
    draw = np.random.default_rng(number)
    return {key: draw.normal(0, scale, shapes[key]).astype(np.float32) for key in sorted(shapes)}


def texts_of(number: int) -> int:
    return 1 + 13 * number % 60


def step_of(ring: Ring | None = None, bits: str = BITS) -> SecureSum:
    step = SecureSum(bits, repr(REACH), str(MOST))
    step.take(ring.body if ring else b"")
    return step


def sent(number: int, ring: Ring, shapes: Shapes, bits: str = BITS, scale: float = 0.1) -> Update:
    """One device's masked update."""
    context = DeviceContext(Training(), ring.round_index, None, 0, secret_of(number), ring.run_id)
    update = Update(f"w{number}", texts_of(number), delta_of(number, shapes, scale))
    return step_of(ring, bits).outgoing(update, context)


def plain_mean(
    numbers: Collection[int], shapes: Shapes, bits: str = BITS, scale: float = 0.1
) -> np.ndarray:
    """The mean of the same updates in fixed point without masks, float32, flat."""
    most, total, weight = levels_of(BITS_OF[bits]), np.zeros(0), 0.0
    for number in sorted(numbers):
        delta = delta_of(number, shapes, scale)
        exact = np.concatenate([delta[key].ravel() for key in sorted(delta)]).astype(np.float64)
        share = share_of(texts_of(number), MOST)
        reached = largest_level(most, share)
        whole = np.clip(np.rint(exact * (share * most / REACH)), -reached, reached)
        total = whole if not total.size else total + whole
        weight += share
    return (total * (REACH / (most * weight))).astype(np.float32)


BITS_OF = {"int4": 4, "int8": 8, "int16": 16}


def unmasked(
    ring: Ring,
    updates: Mapping[int, Update],
    silent: Collection[int] = (),
    wrong: Collection[int] = (),
    *,
    shapes: Shapes,
    bits: str = BITS,
    step: SecureSum | None = None,
) -> np.ndarray:
    """The mean that a coordinator gets of updates by place, flat.

    Args:
        ring: The step's.
        updates: That came, by place.
        silent: Places that do not answer the unmasking.
        wrong: Places that answer it wrongly.
        shapes: Of an update.
        bits: As the run says.
        step: The run's, where its updates have noise.
    """
    answers = {}
    for place in updates:
        if place not in silent:
            given = Member(ring, secret_of(place)).answer(asked(ring, place, updates))
            if place in wrong:
                given = np.random.default_rng(place).bytes(len(given))
            answers[place] = given
    mean = sum_of(step or step_of(bits=bits), ring, sorted(updates.items()), answers, shapes)
    return np.concatenate([mean[key].ravel() for key in sorted(mean)])


def asked(ring: Ring, place: int, updates: Mapping[int, Update]) -> Unmasking:
    """What a device is asked, of these updates."""
    coded = {at: one.coded or {} for at, one in updates.items()}
    shares = {at: one[SHARES] for at, one in coded.items()}
    return asked_of(ring, place, shares, {at: one[SEALS][0].tobytes() for at, one in coded.items()})


def without(updates: Mapping[int, Update], gone: Collection[int]) -> dict[int, Update]:
    return {place: one for place, one in updates.items() if place not in gone}


def spoiled(update: Update, name: str, rows: Sequence[int]) -> Update:
    """An update with other bytes in some rows of one of its tensors."""
    coded = dict(update.coded or {})
    coded[name] = coded[name].copy()
    coded[name][list(rows)] ^= 0x55
    return replace(update, coded=coded)

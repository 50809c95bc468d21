"""The oracle of masks and noise sees what must never be."""

import hmac
from dataclasses import replace

import numpy as np

from smidgen.edge_client.updates.discrete import Words, discrete_gaussians
from smidgen.edge_client.updates.masks import Ring
from smidgen.edge_client.updates.secure_sum import SecureSum
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.tensors import Update
from smidgen.edge_client.wire.training import Training
from tests.coordinator.secure.draws import Sent, is_seen, reused
from tests.edge_client.updates.masked import delta_of, ring_of, secret_of

SIZE = 400


class Careless(SecureSum):
    """Draws a device's noise by its secret alone."""

    def _noised(self, exact: np.ndarray, ring: Ring, context: DeviceContext) -> np.ndarray:
        grid = self.grid(len(ring.keys), exact.size)
        scaled = np.rint(exact * grid.steps / max(np.linalg.norm(exact), self.clip_range))
        key = hmac.digest(context.secret, b"noise", "sha256")
        found: np.ndarray = scaled.astype(np.int64)
        found += discrete_gaussians(grid.variance, exact.size, Words(key))
        return found


def sent_by(kind: type[SecureSum], rounds: int = 2) -> list[Sent]:
    found = []
    for number in range(rounds):
        ring = replace(ring_of(5), opened_at_s=float(number))
        for place in range(5):
            step = kind(*SPEC)
            step.take(ring.body)
            update = Update("w", 1, delta_of(100 * number + place, {"a": (SIZE,)}))
            context = DeviceContext(
                Training(), ring.round_index, None, 0, secret_of(place), ring.run_id
            )
            found.append(Sent(f"d{place}", ring, secret_of(place), step.outgoing(update, context)))
    return found


SPEC = ("int16", "0.5", "1", "1.2", "3")


def test_draws_of_their_own_are_told_from_one_that_comes_twice() -> None:
    step = SecureSum(*SPEC)
    assert is_seen(step, 5, SIZE)
    assert reused(sent_by(SecureSum), step, SIZE) == []
    wrong = reused(sent_by(Careless), step, SIZE)
    assert wrong == [f"d{place}: two updates have the same noise" for place in range(5)]


def test_a_mask_that_hides_two_updates_is_seen() -> None:
    first, *others = sent_by(SecureSum, 1)
    coded = {name: one.copy() for name, one in (first.update.coded or {}).items()}
    coded["y"][0] ^= 1
    twice = replace(first, update=replace(first.update, coded=coded))
    assert reused([first, twice, *others], SecureSum(*SPEC), SIZE) == ["a mask hides 2 updates"]

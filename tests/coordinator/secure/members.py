"""Light devices that mask what they send."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from smidgen.edge_client.updates.masks import Member, public_key, ring_in, unmasking_in
from smidgen.edge_client.updates.secure_sum import (
    BITS,
    SHARES,
    SecureSum,
    largest_level,
    levels_of,
    share_of,
)
from smidgen.edge_client.updates.states import StepInputs, steps_of
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import (
    MASKED,
    AdapterState,
    Update,
    decode_update,
    encode_update,
)
from tests.coordinator.devices import Device


@dataclass
class MaskedDevice(Device):
    """A device without a model, in runs with secure aggregation.

    Attributes:
        plain: What it was to send, by round.
        ends_at: Rounds in which it is gone before its update.
        ends_after: Rounds in which it is gone before it unmasks.
        bodies: All that it has sent, by work.
    """

    plain: dict[int, tuple[int, AdapterState]] = field(default_factory=dict)
    ends_at: Collection[int] = ()
    ends_after: Collection[int] = ()
    bodies: dict[str, bytes] = field(default_factory=dict)

    @property
    def secret(self) -> bytes:
        return hashlib.sha256(self.key.encode()).digest()

    def membership(self) -> Membership:
        return Membership("joined", mask_key=public_key(self.secret).hex())

    def join(self) -> list[object]:  # type: ignore[override]
        while terms := self.next().terms:
            assert self.tell(terms.run_id, self.membership()).json()["accepted"]
        return []

    def file(self, sha256: str) -> bytes:
        return self.http.get(f"/v1/adapters/{sha256}", headers=self.headers).content

    def masked(self, work: Work) -> bytes:
        """The update of a training, as it is sent."""
        plain = decode_update(Device.update(self, work))
        self.plain[work.round_index] = plain.num_examples, plain.delta
        order = next(one for one in work.updates if one.name == SecureSum.name)
        inputs = StepInputs(shared={order.name: self.file(order.shared_sha256)})
        at = (work.training, work.round_index, None, 0, self.secret, work.run_id)
        return encode_update(steps_of(work, inputs).outgoing(plain, DeviceContext(*at)))

    def unmasking(self, work: Work) -> bytes:
        asked = unmasking_in(self.file(work.updates[-1].shared_sha256))
        shares = Member(ring_in(asked.ring), self.secret).answer(asked)
        coded = {SHARES: np.frombuffer(shares, np.uint8)}
        return encode_update(Update(work.work_id, 1, {}, coded=coded, codec=MASKED))

    def do(self, work: Work) -> None:
        if work.kind not in ("train", "unmask"):
            return super().do(work)
        is_training = work.kind == "train"
        if work.round_index in (self.ends_at if is_training else self.ends_after):
            self.report(Report(work.work_id, "failed", failure="internal"))
            return None
        body = self.masked(work) if is_training else self.unmasking(work)
        self.bodies[work.work_id] = body
        assert self.put(work.work_id, body).status_code == 200
        self.report(Report(work.work_id, "done", 8 if is_training else 0, loss=None))
        return None


def members_of(devices: Collection[Device]) -> list[MaskedDevice]:
    return [MaskedDevice(one.http, one.key, one.enrolled) for one in devices]


def plain_mean(devices: Collection[MaskedDevice], round_index: int, spec: str) -> AdapterState:
    """The mean of what devices were to send in a round, in fixed point without masks.

    Args:
        devices: Those whose update is in it.
        round_index: The round.
        spec: The run's step, as its round was opened with.
    """
    bits, clip_range, most = spec.split(":")[1:]
    levels, told = levels_of(BITS[bits]), [one.plain[round_index] for one in devices]
    shares = [share_of(examples, int(most)) for examples, _ in told]
    found = {}
    for name in told[0][1]:
        total = np.zeros(told[0][1][name].shape)
        for share, (_, delta) in zip(shares, told, strict=True):
            whole = np.rint(delta[name].astype(np.float64) * (share * levels / float(clip_range)))
            most_of_it = largest_level(levels, share)
            total += np.clip(whole, -most_of_it, most_of_it)
        found[name] = (total * (float(clip_range) / (levels * sum(shares)))).astype(np.float32)
    return found

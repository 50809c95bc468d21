"""Secure aggregation: masks that cancel in a sum, and how they are taken off when devices drop out.

SecAgg (Bonawitz et al. 2017) on a sparse graph (SecAgg+, Bell et al. 2020), with pairwise keys that
last for a run (Flamingo, Ma et al. 2023), so that nothing is exchanged before training. All devices
that a step asks stand on a ring (`Ring`), each beside its neighbours. Device v sends

    y_v = x_v + PRG(b_v) + sum over neighbours u of +- PRG(h_uv)        modulo a power of two

b_v is drawn for this x_v alone, h_uv follows from the X25519 secret of the two and the ring. With
y_v go shares of b_v and of every h_uv, encrypted, one of each for each neighbour. Then the
coordinator says once which updates came (`Unmasking`), and the devices behind them answer for each
neighbour v among those with the share of b_v, and of h_uv for each u whose update did not come. So
a device that drops out costs no other its update, and of nobody both b and all h are known.

What holds: a coordinator that follows the protocol, and up to a tenth of the devices that tell it
all they know, see sums alone (2^-40 for a graph that is not complete). With three in ten gone
before the end a round fails in one of 2^20; with three in ten gone at either exchange and a tenth
of the others lying, in one of five. A device answers for one set of updates of a ring, whatever
happens, and for none of too few; another update of the same ring has another b, and other shares. A
coordinator that invents devices is not kept out: nobody else vouches for keys.

Law: the sum of all y_v less what `Ring` says is on them is the sum of all x_v, to the bit.
"""

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil, comb, floor
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.updates import shamir
from smidgen.edge_client.wire.messages import WireError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

FEWEST, MOST = 3, 1024  # devices of a ring
MOST_BYTES = 1 << 20  # of what a device of it is handed
COMPLETE = 64  # devices up to which everybody is everybody's neighbour
CORRUPT, GONE = 0.1, 0.3  # share of devices that may collude; that may drop out
SECURE, FAILS = 2.0**-40, 2.0**-20  # how likely more of a neighbourhood collude, or are gone
GONE_TWICE, FAILS_THEN = 1.0 - (1.0 - GONE) ** 2, 0.2  # the same at both, and the rest lie
KEY_BYTES, SEAL_BYTES = 32, 16
AT_ONCE = 1 << 18  # bytes of a mask
NEEDED = "secure aggregation needs the package cryptography, of smidgen's extra `secure`"


class NoCiphers(Failed):
    """The package is missing that masks are made with."""


@dataclass(frozen=True)
class Graph:
    """How many neighbours a device has, and how many shares a secret is recovered from."""

    neighbours: int
    threshold: int


@cache
def graph_of(
    devices: int, corrupt: float = CORRUPT, gone: float = GONE, complete: int = COMPLETE
) -> Graph:
    """The smallest graph that is as safe as the module says.

    By hypergeometric tails and the union over all devices; small ones are complete.

    Args:
        devices: That a step asks.
        corrupt: Share of them that may collude.
        gone: Share of them that may drop out.
        complete: Devices up to which the graph is complete.

    Raises:
        WrongInput: There is none.
    """
    said = f"secure aggregation: {FEWEST} to {MOST} devices a round are expected, {devices} came"
    demand(FEWEST <= devices <= MOST, said)
    others, bad = devices - 1, floor(corrupt * devices)
    if devices <= complete:
        left = others - floor(GONE_TWICE * devices)
        return Graph(others, max(bad + 1, 2, left - 2 * floor(CORRUPT * left)))
    here = [(others - floor(gone * devices), FAILS, 1.0)]
    if complete:
        here.append((others - floor(GONE_TWICE * devices), FAILS_THEN, 1.0 - 2.0 * CORRUPT))
    least = 1  # more neighbours need no lower threshold
    for neighbours in range(2, devices, 2):
        for threshold in range(least, neighbours + 1):
            if devices * _at_least(threshold, neighbours, bad, others) <= SECURE:
                fails = [
                    devices * (1.0 - _at_least(ceil(threshold / right), neighbours, there, others))
                    <= most
                    for there, most, right in here
                ]
                if all(fails):
                    return Graph(neighbours, threshold)
                least = threshold
                break
    raise WrongInput(f"secure aggregation: no graph of {devices} devices is safe; ask others")


def _at_least(least: int, drawn: int, marked: int, of: int) -> float:
    """How likely so many of those drawn are marked, without replacement."""
    ways = (comb(marked, n) * comb(of - marked, drawn - n) for n in range(least, drawn + 1))
    return sum(ways) / comb(of, drawn)


def fewest_of(devices: int, least: int) -> int:
    """Updates without which a ring's sum is not asked for.

    Args:
        devices: Of the ring.
        least: That a round needs in any case.
    """
    return max(least, graph_of(devices).threshold + 1)


@dataclass(frozen=True)
class Ring:
    """The devices of one training step, as each of them is told; its SHA-256 is the sum's name.

    Attributes:
        run_id: The run.
        round_index: 1-based server step.
        attempt: 1-based.
        opened_at_s: Unix time; no two rings of a run have the same.
        keys: X25519 public keys, 32 bytes each, in the order of the ring.
    """

    run_id: str
    round_index: int
    attempt: int
    opened_at_s: float
    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        demand(FEWEST <= len(self.keys) <= MOST, f"ring: {FEWEST} to {MOST} devices expected")
        is_whole = all(len(key) == KEY_BYTES for key in self.keys)
        demand(is_whole and len(set(self.keys)) == len(self.keys), "ring: a key is none, or twice")

    @cached_property
    def body(self) -> bytes:
        return msgspec.msgpack.encode(
            (self.run_id, self.round_index, self.attempt, self.opened_at_s, self.keys)
        )

    @cached_property
    def name(self) -> bytes:
        """SHA-256 of the file."""
        return hashlib.sha256(self.body).digest()

    @cached_property
    def graph(self) -> Graph:
        return graph_of(len(self.keys))

    def neighbours(self, place: int) -> tuple[int, ...]:
        """Places of a device's neighbours, ascending; holder i of its shares is at i - 1."""
        devices, each = len(self.keys), self.graph.neighbours
        if each >= devices - 1:
            return tuple(other for other in range(devices) if other != place)
        near = range(1, each // 2 + 1)
        return tuple(sorted((place + by) % devices for one in near for by in (one, -one)))

    def gone(self, place: int, included: Collection[int]) -> tuple[int, ...]:
        """Which of a device's neighbours sent no update."""
        return tuple(other for other in self.neighbours(place) if other not in included)

    def seal(self, secret: bytes) -> bytes:
        """What tells a right secret from a wrong one, and says nothing of it."""
        return hashlib.sha256(b"seal" + self.name + secret).digest()[:SEAL_BYTES]

    @property
    def shares_bytes(self) -> int:
        """Of one neighbour's shares in an update."""
        return shamir.SHARE_BYTES * (1 + self.graph.neighbours)


def shares_bytes_of(devices: int) -> int:
    """What shares and seals add to an update of a ring of so many devices."""
    neighbours = graph_of(devices).neighbours if devices >= FEWEST else 0
    return (neighbours + 1) * (neighbours * shamir.SHARE_BYTES + SEAL_BYTES)


def ring_in(body: bytes) -> Ring:
    """The ring of a file.

    Raises:
        WireError: It is none.
    """
    try:
        known = msgspec.msgpack.decode(body, type=tuple[str, int, int, float, tuple[bytes, ...]])
        ring = Ring(*known)
    except (msgspec.DecodeError, WrongInput) as error:
        raise WireError(f"the devices of a secure aggregation cannot be read: {error}") from error
    return ring


@dataclass(frozen=True)
class Unmasking:
    """What one device is asked once the updates are there.

    Attributes:
        ring: The step's file.
        included: Places of the devices whose update came, ascending.
        shares: For each of its neighbours among them, ascending, the seal of b and the encrypted
            shares: of b, and of h with each neighbour of that one whose update did not come.
    """

    ring: bytes
    included: tuple[int, ...]
    shares: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        return msgspec.msgpack.encode((self.ring, self.included, self.shares))


def unmasking_in(body: bytes) -> Unmasking:
    """What a device is asked, of a file.

    Raises:
        WireError: It is none.
    """
    try:
        known = msgspec.msgpack.decode(body, type=tuple[bytes, tuple[int, ...], tuple[bytes, ...]])
    except msgspec.DecodeError as error:
        raise WireError(f"what is to be unmasked cannot be read: {error}") from error
    return Unmasking(*known)


def public_key(secret: bytes) -> bytes:
    """A device's X25519 public key in a run, 32 bytes.

    Args:
        secret: Of the device in that run.

    Raises:
        NoCiphers: The package that it takes is missing.
    """
    return _private_key(secret).public_key().public_bytes_raw()


def _private_key(secret: bytes) -> "X25519PrivateKey":
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError as error:
        raise NoCiphers(NEEDED) from error
    return X25519PrivateKey.from_private_bytes(hmac.digest(secret, b"X25519", "sha256"))


def is_key(key: bytes) -> bool:
    """Whether somebody holds the other half of a public key, and secrets with it are any."""
    try:
        _exchanged(_private_key(key), key)
    except ValueError:
        return False
    return True


def _exchanged(own: "X25519PrivateKey", key: bytes) -> bytes:
    """What two share.

    Raises:
        ValueError: The other key is of low order, so that everybody knows it.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return own.exchange(X25519PublicKey.from_public_bytes(key))


class NotAmong(WireError):
    """A secure aggregation that a device's key is not among: it has another one by now."""


class Member:
    """One device on a ring.

    Args:
        ring: The ring.
        secret: Of the device in the ring's run.

    Raises:
        NotAmong: The device is not on it.
    """

    def __init__(self, ring: Ring, secret: bytes) -> None:
        own = public_key(secret)
        if own not in ring.keys:
            raise NotAmong("a secure aggregation that this device's key is not among")
        self._ring, self._secret, self._key = ring, secret, _private_key(secret)
        self._place, self._known = ring.keys.index(own), dict[int, bytes]()
        self.neighbours = ring.neighbours(self._place)

    def _shared(self, other: int) -> bytes:
        """What this device and another know alone."""
        if other not in self._known:
            try:
                found = _exchanged(self._key, self._ring.keys[other])
            except ValueError as error:
                raise WireError("a secure aggregation with a key that hides nothing") from error
            self._known[other] = hmac.digest(self._ring.name, found, "sha256")
        return self._known[other]

    def check(self) -> None:
        """Refuse a ring that this device cannot mask on, before it trains.

        Raises:
            WireError: A neighbour's key is none.
        """
        for other in self.neighbours:
            self._shared(other)

    def pair_seed(self, other: int) -> bytes:
        """h, of this device and a neighbour."""
        return hmac.digest(self._shared(other), b"mask", "sha256")[: shamir.SECRET_BYTES]

    def _pad(self, dealer: int, holder: int, seal: bytes) -> bytes:
        """What shares are encrypted with on their way from one to the other; `seal` is of b."""
        other = holder if dealer == self._place else dealer
        way = b"shares" + self._ring.keys[dealer] + self._ring.keys[holder] + seal
        key = hmac.digest(self._shared(other), way, "sha256")
        return hashlib.shake_256(key).digest(self._ring.shares_bytes)

    def masked(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mask an update.

        Args:
            numbers: As they are added up, unsigned; they are masked in place.

        Returns:
            Encrypted shares by neighbour, uint8 of shape (neighbours, 17 (1 + neighbours)), and the
            seals of b and each h, (1 + neighbours, 16).
        """
        digest = hashlib.sha256(numbers.tobytes()).digest()
        own = hmac.digest(self._secret, b"own mask" + self._ring.name + digest, "sha256")
        secrets = [own[: shamir.SECRET_BYTES], *map(self.pair_seed, self.neighbours)]
        add_mask(numbers, secrets[0], 1)
        for other, seed in zip(self.neighbours, secrets[1:], strict=True):
            add_mask(numbers, seed, sign_of(self._ring, self._place, other))
        key = hmac.digest(own, b"polynomials", "sha256")
        dealt = shamir.share(secrets, len(self.neighbours), self._ring.graph.threshold, key)
        seals = list(map(self._ring.seal, secrets))
        hidden = [
            _xor(one, self._pad(self._place, other, seals[0]))
            for other, one in zip(self.neighbours, dealt, strict=True)
        ]
        return _rows(hidden), _rows(seals)

    def answer(self, asked: Unmasking, fewest: int = 0) -> bytes:
        """The shares that are asked for, in the order of `Unmasking.shares`.

        Args:
            asked: What the coordinator asks.
            fewest: Updates that the run promises to be in the sum.

        Raises:
            WireError: Somebody would be left alone, or it is not what a coordinator asks.
        """
        ring, included = self._ring, set(asked.included)
        near = [other for other in self.neighbours if other in included]
        is_plain = asked.ring == ring.body and self._place in included
        if not is_plain or len(near) != len(asked.shares):
            raise WireError("an unmasking that is not of this device's update")
        if len(included) < fewest:
            raise WireError(f"an unmasking of {len(included)} updates, the run promises {fewest}")
        found = bytearray()
        for dealer, hidden in zip(near, asked.shares, strict=True):
            places, gone = ring.neighbours(dealer), ring.gone(dealer, included)
            if len(places) - len(gone) < ring.graph.threshold:
                raise WireError(
                    f"an unmasking of {len(included)} updates of {len(ring.keys)}: too few to hide "
                    "each other; nothing is said"
                )
            wanted = [0, *(1 + places.index(other) for other in gone)]
            if len(hidden) != SEAL_BYTES + len(wanted) * shamir.SHARE_BYTES:
                raise WireError("an unmasking with too few or too many shares")
            pad = parts_of(self._pad(dealer, self._place, hidden[:SEAL_BYTES]))
            found += _xor(hidden[SEAL_BYTES:], b"".join(map(pad.__getitem__, wanted)))
        return bytes(found)


def parts_of(shares: bytes) -> list[bytes]:
    """Shares that lie one behind the other."""
    size = shamir.SHARE_BYTES
    return [shares[at : at + size] for at in range(0, len(shares), size)]


def sign_of(ring: Ring, place: int, other: int) -> int:
    """Which of a pair adds what the other one takes away."""
    return 1 if ring.keys[place] < ring.keys[other] else -1


def add_mask(numbers: np.ndarray, seed: bytes, sign: int) -> None:
    """Add the AES-128-CTR stream of a seed to unsigned numbers, or take it away, in place."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError as error:
        raise NoCiphers(NEEDED) from error
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    wide = numbers.dtype.newbyteorder("<")
    each, zeros = AT_ONCE // wide.itemsize, bytes(AT_ONCE)
    add = np.add if sign > 0 else np.subtract
    for first in range(0, numbers.size, each):
        some = numbers[first : first + each]
        drawn = np.frombuffer(stream.update(zeros[: some.size * wide.itemsize]), wide)
        add(some, drawn, out=some)


def _rows(parts: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), -1)


def _xor(one: bytes, other: bytes) -> bytes:
    found = np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)
    return found.tobytes()

"""Shamir's secret sharing (1979) over the prime field of 2^128 + 51.

A secret of 16 bytes is the value at 0 of a polynomial of degree threshold - 1; holder i has its
value at i, 17 bytes. Fewer values than the threshold say nothing of it. More of them correct wrong
ones (Gao 2003: half as many as there are too many).

Law: `recover` of any `threshold` true shares gives the secret.
"""

import hashlib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence

PRIME = 2**128 + 51
SECRET_BYTES, SHARE_BYTES = 16, 17
DRAWN_BYTES = 32  # of which a coefficient is the rest: as good as even

Polynomial = list[int]  # the lowest first, without zeros at its end


def share(secrets: Sequence[bytes], holders: int, threshold: int, key: bytes) -> list[bytes]:
    """Each holder's shares of some secrets, one behind the other; holder i is at place i - 1.

    Args:
        secrets: 16 bytes each.
        holders: How many.
        threshold: Shares that a secret is recovered from, 1 to holders.
        key: Polynomials are drawn by: equal arguments give equal shares.
    """
    size = DRAWN_BYTES * (threshold - 1)
    drawn = hashlib.shake_256(key).digest(size * len(secrets))
    found = [bytearray() for _ in range(holders)]
    for index, secret in enumerate(secrets):
        own = drawn[index * size : (index + 1) * size]
        words = (own[at : at + DRAWN_BYTES] for at in range(0, size, DRAWN_BYTES))
        line = [int.from_bytes(secret, "big"), *(int.from_bytes(one, "big") for one in words)]
        for place in range(holders):
            found[place] += value(line, place + 1).to_bytes(SHARE_BYTES, "big")
    return [bytes(one) for one in found]


def value(polynomial: Sequence[int], at: int) -> int:
    found = 0
    for coefficient in reversed(polynomial):
        found = (found * at + coefficient) % PRIME
    return found


def weights_of(holders: Sequence[int]) -> list[int]:
    """What the shares of so many holders as the threshold are multiplied by and added up."""
    found = []
    for at in holders:
        others = [other for other in holders if other != at]
        scale = pow(math.prod(x - at for x in others), -1, PRIME)
        found.append(math.prod(others) * scale % PRIME)
    return found


def recover(shares: Iterable[bytes], weights: Iterable[int]) -> bytes | None:
    """The secret by a threshold of shares; None: no secret has these.

    Args:
        shares: In the order of the holders.
        weights: Of these (`weights_of`).
    """
    values = (int.from_bytes(one, "big") for one in shares)
    return _secret(sum(map(operator.mul, values, weights)) % PRIME)


def correct(shares: Mapping[int, bytes], threshold: int) -> tuple[bytes, set[int]] | None:
    """The secret by all shares, and the holders whose share is wrong; None: too many are.

    Args:
        shares: By holder.
        threshold: As they were made with.
    """
    points = {at: int.from_bytes(one, "big") % PRIME for at, one in shares.items()}
    if len(points) < threshold:
        return None
    zero: Polynomial = [1]
    for at in points:
        zero = _times(zero, [-at % PRIME, 1])
    # The extended Euclidean algorithm, left half way.
    (before, rest), (one, other) = (zero, _through(points, zero)), ([], [1])
    while 2 * (len(rest) - 1) >= len(points) + threshold:
        quotient, left = _divided(before, rest)
        before, rest = rest, left
        one, other = other, _minus(one, _times(quotient, other))
    line, left = _divided(rest, other)
    secret = _secret(line[0] if line else 0)
    if left or len(line) > threshold or secret is None:
        return None
    wrong = {at for at, found in points.items() if value(line, at) != found}
    return (secret, wrong) if 2 * len(wrong) <= len(points) - threshold else None


def _secret(number: int) -> bytes | None:
    return number.to_bytes(SECRET_BYTES, "big") if number < 2 ** (8 * SECRET_BYTES) else None


def _through(points: Mapping[int, int], zero: Polynomial) -> Polynomial:
    """The polynomial through all points."""
    found: Polynomial = []
    for at, one in points.items():
        basis, _ = _divided(zero, [-at % PRIME, 1])
        scale = one * pow(value(basis, at), -1, PRIME)
        found = _minus(found, [-scale * each % PRIME for each in basis])
    return found


def _times(one: Polynomial, other: Polynomial) -> Polynomial:
    found = [0] * (len(one) + len(other) - 1 if one and other else 0)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            found[i + j] = (found[i + j] + a * b) % PRIME
    return _trimmed(found)


def _minus(one: Polynomial, other: Polynomial) -> Polynomial:
    size = max(len(one), len(other))
    wide = [line + [0] * (size - len(line)) for line in (one, other)]
    return _trimmed([(a - b) % PRIME for a, b in zip(*wide, strict=True)])


def _divided(one: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and rest."""
    rest, first = list(one), pow(by[-1], -1, PRIME)
    quotient = [0] * max(0, len(one) - len(by) + 1)
    for place in range(len(quotient) - 1, -1, -1):
        quotient[place] = factor = rest[place + len(by) - 1] * first % PRIME
        for index, coefficient in enumerate(by):
            rest[place + index] = (rest[place + index] - factor * coefficient) % PRIME
    return _trimmed(quotient), _trimmed(rest)


def _trimmed(line: Polynomial) -> Polynomial:
    while line and not line[-1]:
        line.pop()
    return line

"""Shamir's secret sharing: any threshold of shares recovers, fewer say nothing, wrong ones go."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.updates.shamir import (
    PRIME,
    SECRET_BYTES,
    SHARE_BYTES,
    correct,
    recover,
    share,
    weights_of,
)

SECRETS = st.lists(st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES), min_size=1, max_size=3)


def by_some(shares: dict[int, bytes]) -> bytes | None:
    return recover(shares.values(), weights_of(list(shares)))


def by_holder(dealt: list[bytes], index: int) -> dict[int, bytes]:
    at = index * SHARE_BYTES
    return {1 + place: one[at : at + SHARE_BYTES] for place, one in enumerate(dealt)}


@given(SECRETS, st.integers(1, 12), st.integers(0, 10), st.randoms(use_true_random=False))
def test_any_threshold_of_shares_gives_each_secret(
    secrets: list[bytes], threshold: int, more: int, draw: random.Random
) -> None:
    dealt = share(secrets, threshold + more, threshold, b"key")
    assert dealt == share(secrets, threshold + more, threshold, b"key")
    for index, secret in enumerate(secrets):
        shares = by_holder(dealt, index)
        some = {at: shares[at] for at in draw.sample(list(shares), threshold)}
        assert by_some(some) == secret
        assert correct(shares, threshold) == (secret, set())


@given(st.integers(1, 10), st.integers(0, 5), st.integers(0, 1), st.randoms(use_true_random=False))
def test_as_many_wrong_shares_are_found_as_half_of_what_is_too_many(
    threshold: int, wrong: int, odd: int, draw: random.Random
) -> None:
    secret = draw.randbytes(SECRET_BYTES)
    shares = by_holder(share([secret], threshold + 2 * wrong + odd, threshold, b"k"), 0)
    bad = set(draw.sample(list(shares), wrong))
    for at in bad:
        shares[at] = ((int.from_bytes(shares[at], "big") + 1 + at) % PRIME).to_bytes(17, "big")
    assert correct(shares, threshold) == (secret, bad)


def test_one_share_less_fits_every_secret() -> None:
    dealt = share([b"0123456789abcdef"], 5, 3, b"key")
    two = {at: one for at, one in by_holder(dealt, 0).items() if at < 3}
    assert correct(two, 3) is None
    # Whatever the secret is, there is one third share that gives it: two shares tell none apart.
    for other in (b"another secret..", b"0123456789abcdef"):
        at_zero, points = int.from_bytes(other, "big"), [0, 1, 2]
        values = [at_zero, *(int.from_bytes(one, "big") for one in two.values())]
        third = sum(
            value
            * pow((points[i] - points[(i + 1) % 3]) * (points[i] - points[(i + 2) % 3]), -1, PRIME)
            * (3 - points[(i + 1) % 3])
            * (3 - points[(i + 2) % 3])
            for i, value in enumerate(values)
        )
        shares = {**two, 3: (third % PRIME).to_bytes(SHARE_BYTES, "big")}
        assert by_some(shares) == other


def test_too_many_wrong_shares_are_no_secret() -> None:
    shares = by_holder(share([bytes(16)], 7, 3, b"key"), 0)
    for at in (1, 4, 6):
        shares[at] = bytes([0, *random.Random(at).randbytes(16)])
    assert correct(shares, 3) is None


@pytest.mark.parametrize("number", [PRIME - 1, 2**128])
def test_a_value_beyond_sixteen_bytes_is_no_secret(number: int) -> None:
    line = {1: number.to_bytes(SHARE_BYTES, "big")}
    assert by_some(line) is None and correct(line, 1) is None
